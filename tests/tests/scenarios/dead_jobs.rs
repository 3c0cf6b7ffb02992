//! Replays and drops of the dashboard are jobs: they outlive their client, use little memory, and can be stopped.

use anyhow::{Context, Result};
use futures_util::{StreamExt, TryStreamExt, stream};
use garenne_tests::harness::{
    client::{headers, text, with_id},
    dashboard::{Dashboard, TOKEN},
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use reqwest::StatusCode;
use serde_json::{Value, json};

const DEAD: &str = "garenne.dead";
const MIB: u64 = 1 << 20;

/// An environment without workers, with `count` dead letters `letter-0` and so on, each of `bytes`.
async fn with_letters(count: usize, bytes: usize) -> Result<TestEnv> {
    let env = TestEnv::new().await?;
    env.worker("declares")?.start().await?.stop().await?;
    let body = format!("\"{}\"", "x".repeat(bytes));
    let letter = |n: usize| {
        let letter = with_id(&format!("letter-{n}")).with_type("bench.noop".into()).with_delivery_mode(2);
        letter.with_headers(headers([("garenne-reason", text("rejected")), ("garenne-lane", text("fast"))]))
    };
    let published =
        stream::iter(0..count).map(|n| env.client().publish("", DEAD, letter(n), body.as_bytes()));
    // Few of the large ones at once.
    published.buffered(if bytes > 10_000 { 4 } else { 500 }).try_collect::<()>().await?;
    env.until_ready_in(DEAD, count).await?;
    Ok(env)
}

/// The ids of a page, newest first.
fn ids(list: &Value) -> Vec<String> {
    let letters = list["letters"].as_array().into_iter().flatten();
    letters.filter_map(|letter| letter["id"].as_str().map(str::to_owned)).collect()
}

fn all() -> Value {
    json!({"kind": "bench.noop", "reason": "rejected"})
}

/// The figures of a job's record.
async fn records(env: &TestEnv, command: &str, job: &Value) -> Result<Vec<Value>> {
    let ended = env.garenne(&["audit", "list", "--json", "--command", command]).await?;
    let records: Vec<Value> =
        ended.stdout.iter().map(|line| serde_json::from_str(line)).collect::<Result<_, _>>()?;
    Ok(records.into_iter().filter(|record| record["arguments"]["job"] == job["id"]).collect())
}

#[tokio::test]
async fn a_replay_of_large_letters_is_a_job_that_uses_little_memory() -> Result<()> {
    let letters = 60;
    let env = with_letters(letters, 4 * MIB as usize).await?;
    let mut dashboard = Dashboard::start(&env).await?;
    let (status, _) = dashboard.post("/api/dead/replay", all()).await?;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    dashboard.login(TOKEN).await?;
    let before = dashboard.peak_memory()?;
    assert_eq!(dashboard.json("/api/dead").await?["read"], json!(letters));
    let listed = dashboard.peak_memory()? - before;
    assert!(listed < 130 * MIB, "a list uses {} MiB for {} MiB of letters", listed / MIB, letters * 4);
    let (status, job) = dashboard.post("/api/dead/replay", all()).await?;
    assert_eq!((status, &job["state"]), (StatusCode::ACCEPTED, &json!("queued")), "{job}");
    // Another client, such as a page after a reload, finds the job and its progress.
    let jobs = dashboard.json("/api/jobs").await?;
    assert_eq!(jobs["jobs"][0]["id"], job["id"]);
    let ended = dashboard.until_job_ended(&job).await?;
    assert_eq!((&ended["state"], &ended["report"]["moved"]), (&json!("done"), &json!(letters)), "{ended}");
    let progress = &ended["progress"];
    assert_eq!(
        (&progress["total"], &progress["read"], &progress["moved"]),
        (&json!(letters), &json!(letters), &json!(letters))
    );
    assert_eq!(progress["bytes"], json!(letters as u64 * (4 * MIB + 2)));
    let used = dashboard.peak_memory()? - before;
    assert!(used < 160 * MIB, "a replay uses {} MiB for {} MiB of letters", used / MIB, letters * 4);
    env.until_ready("fast", letters).await?;
    let records = records(&env, "dead.replay", &job).await?;
    assert_eq!(records.len(), 2, "{records:?}");
    assert_eq!(records[1]["result"]["moved"], json!(letters));
    Ok(())
}

#[tokio::test]
async fn jobs_run_one_after_the_other_and_can_be_stopped() -> Result<()> {
    // A job of several seconds: it must still run when it is stopped.
    let letters = 10_000;
    let env = with_letters(letters, 10).await?;
    let mut dashboard = Dashboard::start(&env).await?;
    dashboard.login(TOKEN).await?;
    let listed = dashboard.json("/api/dead").await?;
    assert_eq!(listed["read"], json!(letters));
    let payload = "/api/dead/letter?id=letter-7";
    assert_eq!(dashboard.get(payload).await?.status(), StatusCode::FORBIDDEN, "without the CSRF token");
    let letter: Value = dashboard.get_privately(payload).await?.error_for_status()?.json().await?;
    assert_eq!((&letter["id"], &letter["payload"]), (&json!("letter-7"), &json!("\"xxxxxxxxxx\"")));
    let missing = dashboard.get_privately("/api/dead/letter?id=none").await?;
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);

    // A job that reads the whole queue returns the others in their order.
    let before = ids(&listed);
    let (_, one) = dashboard.post("/api/dead/drop", json!({"ids": [before[0]]})).await?;
    let one = dashboard.until_job_ended(&one).await?;
    assert_eq!((&one["state"], &one["report"]["moved"]), (&json!("done"), &json!(1)), "{one}");
    let listed = dashboard.json("/api/dead").await?;
    assert_eq!(listed["read"], json!(letters - 1));
    assert_eq!(ids(&listed)[..99], before[1..]);

    let (_, first) = dashboard.post("/api/dead/drop", all()).await?;
    let (_, second) = dashboard.post("/api/dead/drop", json!({"ids": ["letter-7"]})).await?;
    // While a job moves letters, the page shows the list that was read before.
    assert_eq!(dashboard.json("/api/dead").await?, listed);
    let busy = dashboard.get_privately(payload).await?;
    assert_eq!(busy.status(), StatusCode::CONFLICT);
    let stop = |job: &Value| format!("/api/jobs/{}/stop", job["id"].as_str().unwrap_or_default());
    let (status, answer) = dashboard.post(&stop(&second), json!({})).await?;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let second = dashboard.until_job_ended(&second).await?;
    assert_eq!((&second["state"], &second["started_at"]), (&json!("stopped"), &Value::Null), "{second}");
    let moves = eventually("the first job moves letters", async || {
        let job = dashboard.json(&format!("/api/jobs/{}", first["id"].as_str().context("id")?)).await?;
        Ok(Seen::when(job["progress"]["moved"].as_u64() > Some(0), job))
    });
    moves.await?;
    let (status, answer) = dashboard.post(&stop(&first), json!({})).await?;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let first = dashboard.until_job_ended(&first).await?;
    assert_eq!(first["state"], "stopped", "{first}");
    let moved = usize::try_from(first["report"]["moved"].as_u64().context("moved")?)?;
    env.until_ready_in(DEAD, letters - 1 - moved).await?;
    let (status, problem) = dashboard.post(&stop(&first), json!({})).await?;
    assert_eq!(status, StatusCode::CONFLICT, "{problem}");
    let (status, _) = dashboard.post("/api/jobs/none/stop", json!({})).await?;
    assert_eq!(status, StatusCode::NOT_FOUND);
    for refused in
        [json!({}), json!({"ids": []}), json!({"kind": "k", "ids": ["a"]}), json!({"ids": vec!["a"; 1_001]})]
    {
        let (status, problem) = dashboard.post("/api/dead/replay", refused).await?;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
    }
    assert_eq!(records(&env, "dead.drop", &first).await?[1]["result"]["moved"], json!(moved));
    let ended = dashboard.stop().await?;
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
    Ok(())
}
