//! People on the dashboard and on the command line: who may do what, and the records of what they did.

use anyhow::{Context, Result};
use garenne_tests::harness::{
    client::{Client, with_id},
    dashboard::Dashboard,
    test_env::TestEnv,
    users,
    wait::{Seen, eventually},
};
use reqwest::StatusCode;
use serde_json::{Value, json};

const PASSWORD: &str = "correct horse battery";
/// Its hash, as `garenne operators hash` printed it.
const HASH: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$UXbcGNKGrKeGXAYuUBGjiA$OuTTV65RahkZN5xdr8CfG1ibr/ZL9C+VBlmfzO1hDFU";

/// The options of a dashboard with a file of two people.
fn with_people(env: &TestEnv) -> Result<std::path::PathBuf> {
    let file = env.folder().join("operators");
    std::fs::write(&file, format!("# people\nanna operator {HASH}\nben viewer {HASH}\n"))?;
    Ok(file)
}

/// The records of commands that `garenne audit list` shows, in order.
async fn records(env: &TestEnv) -> Result<Vec<Value>> {
    let ended = env.garenne(&["audit", "list", "--json"]).await?;
    ended.stdout.iter().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// Waits until there are `count` records.
async fn until_records(env: &TestEnv, count: usize) -> Result<Vec<Value>> {
    eventually("the records", async || {
        let found = records(env).await?;
        Ok(if found.len() == count { Seen::Wanted(found) } else { Seen::Other(format!("{found:?}")) })
    })
    .await
}

/// An environment whose whole topology is there, with the stream of audit records.
async fn with_topology() -> Result<TestEnv> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    Ok(env)
}

#[tokio::test]
async fn people_log_in_by_name_and_each_command_is_on_record() -> Result<()> {
    let env = TestEnv::new().await?;
    let running = env.worker("w")?.lane("fast:prefetch=4,concurrency=2..2").start().await?;
    let file = with_people(&env)?;
    let start = |env| Dashboard::start_with(env, |it| it.option("--operators", &file).arg("--require-login"));
    let mut dashboard = start(&env).await?;
    for path in ["/api/now", "/api/events", "/api/dead", "/v1/devices"] {
        assert_eq!(dashboard.get(path).await?.status(), StatusCode::UNAUTHORIZED, "{path}");
    }
    for path in ["/", "/app.js", "/livez", "/metrics", "/api/session"] {
        assert_eq!(dashboard.get(path).await?.status(), StatusCode::OK, "{path}");
    }
    assert!(dashboard.login_as("anna", "wrong horse battery").await.is_err());
    assert!(
        dashboard.login("test-token").await.is_err(),
        "the admin token is no login beside a file of people"
    );
    dashboard.login_as("ben", PASSWORD).await?;
    assert_eq!(dashboard.get("/api/now").await?.status(), StatusCode::OK);
    let (status, problem) = dashboard.post("/api/workers/w/quiet", json!({})).await?;
    assert_eq!(
        (status, problem["detail"].as_str()),
        (StatusCode::FORBIDDEN, Some("ben has the role viewer, this needs the role operator"))
    );

    for path in [
        "/api/dead/replay",
        "/api/dead/drop",
        "/api/jobs/any/stop",
        "/api/lanes/fast/pause",
        "/api/kinds/k/resume",
    ] {
        let (status, problem) = dashboard.post(path, json!({"ids": ["any"]})).await?;
        assert_eq!(status, StatusCode::FORBIDDEN, "{path}: {problem}");
    }

    dashboard.login_as("anna", PASSWORD).await?;
    let (status, answer) = dashboard.post("/api/workers/w/quiet", json!({})).await?;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let (status, _) = dashboard.post("/api/workers/missing/drain", json!({})).await?;
    assert_eq!(status, StatusCode::CONFLICT);
    env.garenne(&["drain", "w", "--mode", "light"]).await?;
    running.stopped().await?;

    let found = until_records(&env, 6).await?;
    let of = |record: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        [&record["command"], &record["state"], &record["actor"]["via"]].map(text).join(" ")
    };
    let shown: Vec<_> = found.iter().map(of).collect();
    assert_eq!(
        shown,
        [
            "worker.quiet started dashboard",
            "worker.quiet done dashboard",
            "worker.drain started dashboard",
            "worker.drain failed dashboard",
            "worker.drain started command-line",
            "worker.drain done command-line",
        ]
    );
    let actor = &found[0]["actor"];
    assert_eq!((&actor["name"], &actor["address"]), (&json!("anna"), &json!("127.0.0.1")));
    assert!(actor["amqp_user"].as_str().is_some_and(|user| user.starts_with("console-")), "{actor}");
    assert_eq!(found[0]["id"], found[1]["id"]);
    assert_eq!(
        (&found[2]["arguments"]["worker"], &found[4]["arguments"]["mode"]),
        (&json!("missing"), &json!("light"))
    );
    assert!(found[3]["error"].as_str().is_some_and(|it| it.contains("no worker is called")), "{}", found[3]);

    let listed = env.garenne(&["audit", "list", "--by", "anna", "--command", "worker.quiet"]).await?;
    assert_eq!(listed.stdout.len(), 2, "{:?}", listed.stdout);
    assert!(listed.stdout[1].contains("worker=w"), "{:?}", listed.stdout);
    let ended = dashboard.stop().await?;
    let logged = ended.stderr.iter().filter(|line| line.contains("garenne_console::audit")).count();
    assert_eq!(logged, 4, "{:?}", ended.stderr);
    assert!(
        ended.stderr.iter().any(|line| line.contains("failed login") && line.contains("address=127.0.0.1"))
    );
    assert!(!ended.stderr.iter().any(|line| line.contains("horse")), "a password in the log");
    Ok(())
}

#[tokio::test]
async fn replays_are_on_record_with_their_counts_and_forged_records_are_not_shown() -> Result<()> {
    let env = with_topology().await?;
    for id in ["a", "b"] {
        env.client().publish("garenne.dead", "bench.noop", with_id(id), b"{}").await?;
    }
    env.garenne(&["dead", "replay", "--id", "a", "--id", "b", "--dry-run"]).await?;
    let replayed = env.garenne_with_log(&["dead", "replay", "--id", "a", "--id", "c"]).await?;
    assert_eq!(replayed.code, Some(0), "{replayed:?}");
    let logged: Vec<_> =
        replayed.stderr.iter().filter(|line| line.contains("garenne_console::audit")).collect();
    assert_eq!(logged.len(), 1, "{:?}", replayed.stderr);
    assert!(logged[0].contains("dead.replay") && logged[0].contains(r#""moved":1"#), "{}", logged[0]);
    let found = until_records(&env, 2).await?;
    assert_eq!(found[1]["arguments"]["id"], json!(["a", "c"]));
    assert_eq!((&found[1]["result"]["moved"], &found[1]["result"]["read"]), (&json!(1), &json!(2)));

    // A stolen worker's user can publish to every queue, but not through the exchange whose keys the broker checks.
    let forged = found[1].to_string().replace("\"a\"", "\"x\"");
    let worker = users::user(env.vhost(), "worker").await?;
    let properties = || with_id("forged");
    Client::connect(&worker).await?.publish("", "garenne.audit", properties(), forged.as_bytes()).await?;
    for (role, key) in [("worker", "audit.dead.replay"), ("gateway", "audit.dead.replay")] {
        let url = users::user(env.vhost(), role).await?;
        let published = Client::connect(&url)
            .await?
            .publish("garenne.events", key, properties(), forged.as_bytes())
            .await;
        let refused = published.err().context("the broker has accepted a forged record")?;
        assert!(format!("{refused:#}").contains("ACCESS_REFUSED"), "{role}: {refused:#}");
    }
    let listed = eventually("the forged record is in the stream", async || {
        let listed = env.garenne(&["audit", "list"]).await?;
        let noticed = listed.stderr.iter().any(|line| line.starts_with("1 messages are ignored"));
        Ok(if noticed { Seen::Wanted(listed) } else { Seen::Other(format!("{listed:?}")) })
    })
    .await?;
    assert_eq!(listed.stdout.len(), 2, "{:?}", listed.stdout);
    Ok(())
}

#[tokio::test]
async fn a_command_whose_record_cannot_be_stored_does_nothing() -> Result<()> {
    let env = with_topology().await?;
    env.client().publish("garenne.dead", "bench.noop", with_id("a"), b"{}").await?;
    env.client().channel().queue_delete("garenne.audit".into(), Default::default()).await?;
    let dropped = env.try_garenne(&["dead", "drop", "--id", "a", "--yes"]).await?;
    assert_eq!(dropped.code, Some(1), "{dropped:?}");
    assert!(
        dropped.stderr.iter().any(|line| line.contains("the stream of audit records is missing")),
        "{dropped:?}"
    );
    assert_eq!(env.client().ready("garenne.dead").await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_page_of_another_site_reads_nothing_and_commands_nothing() -> Result<()> {
    let env = with_topology().await?;
    let file = with_people(&env)?;
    let mut dashboard = Dashboard::start_with(&env, |it| {
        it.option("--operators", &file).env("GARENNE_ALLOWED_HOSTS", "garenne.example.org")
    })
    .await?;
    dashboard.login_as("anna", PASSWORD).await?;
    let url = dashboard.url().to_owned();
    let http = reqwest::Client::new();
    let status = async |path: &str, headers: &[(&str, &str)]| -> Result<StatusCode> {
        let request = http.get(format!("{url}{path}"));
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        Ok(request.send().await?.status())
    };
    // A name of the attacker's that resolves to this host now.
    for path in ["/", "/api/now", "/metrics", "/api/session"] {
        assert_eq!(
            status(path, &[("host", "evil.example")]).await?,
            StatusCode::MISDIRECTED_REQUEST,
            "{path}"
        );
        assert_eq!(
            status(path, &[("origin", "http://evil.example")]).await?,
            StatusCode::FORBIDDEN,
            "{path}"
        );
        assert_eq!(status(path, &[("host", "garenne.example.org")]).await?, StatusCode::OK, "{path}");
    }
    let (status, _) = dashboard.post("/api/groups/g/pause", json!({})).await?;
    assert_eq!(status, StatusCode::OK);
    Ok(())
}
