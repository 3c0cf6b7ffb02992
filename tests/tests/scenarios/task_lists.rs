//! Lists of waiting, retrying and scheduled tasks: who may see them, that a look makes no task suspicious, and that a task
//! can be run at once or dropped.

use anyhow::{Context, Result};
use garenne_protocol::task::header;
use garenne_tests::harness::{
    broker::BrokerVersion,
    browser::{self, Browser},
    client::{headers, with_id},
    dashboard::Dashboard,
    suite,
    test_env::TestEnv,
    vhost::Rights,
    wait::{Seen, eventually},
    worker::Worker,
};
use lapin::{
    options::{BasicGetOptions, BasicNackOptions},
    types::AMQPValue,
};
use reqwest::StatusCode;
use serde_json::{Value, json};

const FAST: &str = "garenne.tasks.fast";
const SLOW: &str = "garenne.tasks.slow";
const SCHEDULED: &str = "garenne.retry.fast.5m";
/// Above the returns from which on a task is suspicious, and above the broker's default delivery limit.
const LOOKS: usize = 25;
const PASSWORD: &str = "correct horse battery";
/// Its hash, as `garenne operators hash` printed it.
const HASH: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$UXbcGNKGrKeGXAYuUBGjiA$OuTTV65RahkZN5xdr8CfG1ibr/ZL9C+VBlmfzO1hDFU";

/// A dashboard that may read queues, for people of whom anna may look at tasks.
async fn dashboard(env: &TestEnv) -> Result<Dashboard> {
    let file = env.folder().join("operators");
    std::fs::write(&file, format!("anna operator {HASH} queues\nben operator {HASH}\n"))?;
    let all = Rights { configure: ".*", write: ".*", read: ".*" };
    let url = env.vhost().user_url("looker", all).await?;
    Dashboard::start_as(env, &url, |program| program.option("--operators", &file)).await
}

async fn worker(env: &TestEnv, name: &str) -> Result<Worker> {
    let plan = env.worker(name)?.stdout().env("GARENNE_RETRY__DELAYS", "1s,5s,15s,1m,5m,15m,1h");
    plan.lane("fast:prefetch=20,concurrency=2..2").lane("slow:prefetch=20,concurrency=2..2").start().await
}

/// Two workers crash, so that each task that was returned twice is suspected.
async fn crashes(env: &TestEnv) -> Result<()> {
    for name in ["crashing-0", "crashing-1"] {
        env.worker_of_kinds(name, &["kind.other"])?.stdout().start().await?.kill().await?;
    }
    Ok(())
}

async fn listed(dashboard: &Dashboard, state: &str) -> Result<Value> {
    let answer = dashboard.get_privately(&format!("/v1/lanes/fast/tasks?state={state}")).await?;
    let status = answer.status();
    let body: Value = answer.json().await?;
    anyhow::ensure!(status == StatusCode::OK, "{state}: {status} {body}");
    Ok(body)
}

fn ids(list: &Value) -> Result<Vec<&str>> {
    let tasks = list["tasks"].as_array().context("tasks")?;
    tasks.iter().map(|task| task["id"].as_str().context("id")).collect()
}

/// Takes the messages of a queue and returns them, as any client can.
async fn return_all(env: &TestEnv, queue: &str, times: usize) -> Result<()> {
    for _ in 0..times {
        let count = env.client().ready(queue).await?;
        let mut last = 0;
        for _ in 0..count {
            let got = env.client().channel().basic_get(queue.into(), BasicGetOptions::default()).await?;
            last = got.context("a message")?.delivery_tag;
        }
        let all = BasicNackOptions { multiple: true, requeue: true };
        env.client().channel().basic_nack(last, all).await?;
        env.until_ready_in(queue, count).await?;
    }
    Ok(())
}

async fn settled(worker: &Worker, lane: &str, settlement: &str) -> Result<f64> {
    let labels = [format!("lane=\"{lane}\""), format!("settlement=\"{settlement}\"")];
    let labels: Vec<_> = labels.iter().map(String::as_str).collect();
    Ok(worker.find_metric("garenne_settlements_total", &labels).await?.unwrap_or(0.0))
}

#[tokio::test]
async fn a_look_at_a_paused_lane_makes_no_task_suspicious() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let running = worker(&env, "w").await?;
    for lane in ["fast", "slow"] {
        env.garenne(&["lane", "pause", lane]).await?;
        env.until_no_consumer(lane).await?;
    }
    let tasks = env.publish("bench.noop", &json!({}), "task", 5).await?;
    // Nobody tells the workers of these returns.
    let stranger = with_id("stranger").with_type("bench.noop".into());
    env.client().publish("", SLOW, stranger, b"{}").await?;
    env.until_ready_in(FAST, 5).await?;
    env.until_ready_in(SLOW, 1).await?;

    let mut dashboard = dashboard(&env).await?;
    let address = "/v1/lanes/fast/tasks?state=waiting";
    assert_eq!(dashboard.get(address).await?.status(), StatusCode::UNAUTHORIZED);
    dashboard.login_as("ben", PASSWORD).await?;
    let refused = dashboard.get_privately(address).await?;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    let detail = refused.json::<Value>().await?["detail"].to_string();
    assert!(detail.contains("ben has not the right queues"), "{detail}");
    dashboard.login_as("anna", PASSWORD).await?;
    for _ in 0..LOOKS {
        let list = listed(&dashboard, "waiting").await?;
        assert_eq!(ids(&list)?, tasks, "{list}");
        assert_eq!((&list["total"], &list["more"]), (&json!(5), &json!(false)));
    }
    let printed = env.garenne(&["queue", "list", FAST, "--json"]).await?;
    assert_eq!(printed.stdout.len(), 5);
    return_all(&env, SLOW, 3).await?;

    crashes(&env).await?;
    for lane in ["fast", "slow"] {
        env.garenne(&["lane", "resume", lane]).await?;
    }
    let done = running.until_done(6).await?;
    assert!(done.iter().all(|done| done.attempt == 1), "{done:?}");
    assert_eq!(settled(&running, "fast", "quarantined").await?, 0.0);
    // The same number of crashes condemns what was returned without a look.
    let counts = env.vhost().broker().version() < BrokerVersion(4, 3, 0);
    assert_eq!(settled(&running, "slow", "quarantined").await?, f64::from(u8::from(counts)));
    env.is_empty("garenne.dead").await?;
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_task_in_a_retry_queue_begins_without_a_count_in_its_lane() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let running = worker(&env, "w").await?;
    crashes(&env).await?;
    env.client()
        .publish("", "garenne.retry.fast.15s", with_id("task").with_type("bench.noop".into()), b"{}")
        .await?;
    return_all(&env, "garenne.retry.fast.15s", LOOKS).await?;
    assert_eq!(running.until_done_with("task").await?.attempt, 1);
    assert_eq!(settled(&running, "fast", "quarantined").await?, 0.0);
    env.is_empty("garenne.dead").await?;
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn scheduled_and_retrying_tasks_are_listed_run_now_and_dropped() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let running = worker(&env, "w").await?;
    let delay = headers([(header::DELAY_MS, AMQPValue::LongLongInt(600_000))]);
    for n in 0..4 {
        let properties = with_id(&format!("later-{n}")).with_headers(delay.clone());
        env.client().publish("garenne.tasks", "bench.noop", properties, b"{}").await?;
        env.until_ready_in(SCHEDULED, n + 1).await?;
    }
    let failed = headers([(header::ATTEMPT, AMQPValue::LongUInt(1))]);
    let failed = with_id("failed").with_type("bench.noop".into()).with_headers(failed);
    env.client().publish("", SCHEDULED, failed, b"{}").await?;
    env.until_ready_in(SCHEDULED, 5).await?;
    let mut dashboard = dashboard(&env).await?;
    dashboard.login_as("anna", PASSWORD).await?;
    for _ in 0..LOOKS {
        assert_eq!(
            ids(&listed(&dashboard, "scheduled").await?)?,
            ["later-0", "later-1", "later-2", "later-3"]
        );
    }
    let retrying = listed(&dashboard, "retrying").await?;
    assert_eq!(ids(&retrying)?, ["failed"]);
    let task = &retrying["tasks"][0];
    assert_eq!(
        (&task["attempts"], &task["within"], &task["due_at"]),
        (&json!(1), &json!("5m"), &Value::Null)
    );
    let printed =
        env.garenne(&["task", "waiting", "--lane", "fast", "--state", "retrying", "--json"]).await?;
    assert_eq!(printed.stdout.len(), 1, "{printed:?}");

    let (status, problem) = dashboard.post("/api/tasks/run", json!({"id": "x", "lane": "fast"})).await?;
    assert_eq!(status, StatusCode::CONFLICT, "{problem}");
    let (status, answer) = dashboard.post("/api/tasks/run", json!({"id": "later-1", "lane": "fast"})).await?;
    assert_eq!((status, &answer["lane"]), (StatusCode::OK, &json!("fast")), "{answer}");
    assert_eq!(running.until_done_with("later-1").await?.attempt, 1);
    env.garenne(&["task", "run-now", "failed"]).await?;
    assert_eq!(running.until_done_with("failed").await?.attempt, 2);
    assert_eq!(ids(&listed(&dashboard, "scheduled").await?)?, ["later-0", "later-2", "later-3"]);

    // A task that is dropped does not run, also if it is run now.
    let (status, answer) = dashboard.post("/api/tasks/stop", json!({"id": "later-2"})).await?;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let (status, answer) = dashboard.post("/api/tasks/run", json!({"id": "later-2", "lane": "fast"})).await?;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!((dead.id(), dead.text(header::REASON).as_str()), ("later-2", "stopped"));
    assert_eq!(ids(&listed(&dashboard, "scheduled").await?)?, ["later-0", "later-3"]);
    assert_eq!(running.done()?.len(), 2, "each task ran once");

    let records = eventually("the records", async || {
        let ended = env.garenne(&["audit", "list", "--json"]).await?;
        let records: Vec<Value> =
            ended.stdout.iter().map(|line| Ok(serde_json::from_str(line)?)).collect::<Result<_>>()?;
        Ok(if records.len() == 10 { Seen::Wanted(records) } else { Seen::Other(format!("{records:?}")) })
    })
    .await?;
    let ended: Vec<_> = records.iter().filter(|it| it["state"] != "started").collect();
    let ended: Vec<_> = ended.iter().map(|it| (it["command"].as_str(), it["state"].as_str())).collect();
    let (run, stop) = (Some("task.run-now"), Some("task.stop"));
    let (done, failed) = (Some("done"), Some("failed"));
    assert_eq!(ended, [(run, failed), (run, done), (run, done), (stop, done), (run, done)]);
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn the_page_lists_tasks_runs_one_now_and_drops_one() -> Result<()> {
    let Some(program) = browser::installed() else {
        suite::leave_out("no Chromium is installed (apt-get install chromium)");
        return Ok(());
    };
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let running = worker(&env, "w").await?;
    for n in 0..3 {
        let delay = headers([(header::DELAY_MS, AMQPValue::LongLongInt(600_000))]);
        let properties = with_id(&format!("later-{n}")).with_headers(delay);
        env.client().publish("garenne.tasks", "bench.noop", properties, b"{}").await?;
        env.until_ready_in(SCHEDULED, n + 1).await?;
    }
    let dashboard = dashboard(&env).await?;
    let mut browser = Browser::start(&program).await?;
    browser.open(&format!("{}/tasks?lane=fast&state=scheduled", dashboard.url()), false).await?;
    browser.until("document.getElementById('lane').value === 'fast'").await?;
    browser.value("document.querySelector('#selection button').click()").await?;
    browser.until("document.getElementById('login').open").await?;
    let log_in = format!(
        "document.getElementById('name').value = 'anna'; document.getElementById('token').value = '{PASSWORD}';
         document.querySelector('#login button[value=login]').click()"
    );
    browser.value(&log_in).await?;
    let rows = |count: usize| format!("document.querySelectorAll('#task-table tbody tr').length === {count}");
    browser.until(&rows(3)).await?;
    browser.picture("tasks").await?;
    for (id, command, does, class, left) in [
        ("later-1", "Run now", "Run later-1 now", "primary", 2),
        ("later-2", "Drop", "Drop later-2", "danger", 1),
    ] {
        let click = format!(
            "[...document.querySelectorAll('#task-table tbody tr')].find((row) => row.textContent.includes('{id}'))
                .querySelectorAll('button').forEach((it) => {{ if (it.textContent === '{command}') it.click(); }})"
        );
        browser.value(&click).await?;
        browser.until("document.getElementById('confirm').open").await?;
        let button = browser
            .value("document.getElementById('confirm-yes').textContent + ' ' + document.getElementById('confirm-yes').className")
            .await?;
        assert_eq!(button, format!("{does} {class}"));
        browser.value("document.getElementById('confirm-yes').click()").await?;
        browser.until(&rows(left)).await?;
    }
    running.until_done_with("later-1").await?;
    assert!(browser.errors.is_empty(), "{:?}", browser.errors);
    running.stop().await?;
    Ok(())
}
