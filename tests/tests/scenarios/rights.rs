//! Each program works with the permissions that `deploy/rabbitmq/definitions.json` gives its user, and a stolen user
//! can do no more than `SECURITY.md` says.

use anyhow::{Result, ensure};
use garenne_tests::harness::{
    client::{Client, with_id},
    dashboard::Dashboard,
    gateway::GatewayPlan,
    process::Program,
    test_env::{DELAYS, TestEnv},
    users,
    wait::{Seen, eventually},
};
use serde_json::{Value, json};

/// [`users::user`] on the test environment's virtual host.
async fn user(env: &TestEnv, role: &str) -> Result<String> {
    users::user(env.vhost(), role).await
}

/// The console with the retry delays of the test environment's workers, which are a part of the topology.
fn console_at(url: &str, arguments: &[&str]) -> Program {
    Program::garenne(url, arguments).env("GARENNE_RETRY__DELAYS", DELAYS)
}

async fn succeeds(url: &str, arguments: &[&str]) -> Result<()> {
    console_at(url, arguments).succeed().await.map(drop)
}

#[tokio::test]
async fn each_program_needs_only_its_users_permissions() -> Result<()> {
    let env = TestEnv::new().await?;
    succeeds(&user(&env, "topology").await?, &["topology", "apply"]).await?;
    let (console, worker) = (user(&env, "console").await?, user(&env, "worker").await?);
    let plan = env
        .worker_at("limited", &worker)?
        .env("GARENNE_UNKNOWN_KIND_WAIT", "0s")
        .stdout()
        .option("--sink", "results");
    let worker = plan.start().await?;
    let gateway = GatewayPlan::at(&user(&env, "gateway").await?)?;
    let gateway = gateway.env("GARENNE_RETRY__DELAYS", DELAYS).start().await?;

    eventually("status finds no problem", async || {
        let ended = console_at(&console, &["status"]).run().await?;
        Ok(Seen::when(ended.code == Some(0), format_args!("{ended:?}")))
    })
    .await?;
    for (kind, body) in [("bench.fail", r#"{"times":1}"#), ("bench.nothing", "{}")] {
        gateway.post(&format!("/v1/tasks/{kind}"), "application/json", body).await?.ids()?;
    }
    worker.until_done(1).await?;
    env.until_queue("garenne.dead", 1, 0).await?;
    succeeds(&console, &["dead", "list"]).await?;
    succeeds(&console, &["dead", "replay", "--kind", "bench.nothing"]).await?;
    worker.until_metric("garenne_settlements_total", &["settlement=\"dead\""], 2.0).await?;
    env.until_ready_in("garenne.dead", 1).await?;
    succeeds(&console, &["dead", "drop", "--kind", "bench.nothing", "--yes"]).await?;
    succeeds(&console, &["task", "stop", "missing"]).await?;
    succeeds(&console, &["drain", "limited"]).await?;
    let receipt = worker.stopped().await?.receipt;
    assert_eq!((receipt.acked, receipt.retried, receipt.dead), (1, 1, 2), "{receipt:?}");
    assert_eq!(gateway.stop().await?.code, Some(0));
    Ok(())
}

#[tokio::test]
async fn a_stolen_user_can_do_no_more_than_its_program() -> Result<()> {
    let env = TestEnv::new().await?;
    succeeds(&user(&env, "topology").await?, &["topology", "apply"]).await?;
    env.client().publish("garenne.dead", "any.kind", with_id("letter"), b"{}").await?;
    for (role, arguments) in [
        ("gateway", &["drain", "--all", "--yes"][..]),
        ("gateway", &["task", "stop", "any"]),
        ("gateway", &["dead", "list"]),
        ("bridge", &["drain", "--all", "--yes"]),
        ("bridge", &["dead", "list"]),
        ("worker", &["drain", "--all", "--yes"]),
        ("worker", &["dead", "list"]),
        ("scaler", &["drain", "--all", "--yes"]),
        ("scaler", &["dead", "list"]),
    ] {
        let ended = console_at(&user(&env, role).await?, arguments).run().await?;
        let refused = ended.stderr.iter().any(|line| line.contains("lacks the right"));
        assert!(ended.code == Some(77) && refused, "{role} {arguments:?}: {ended:?}");
    }
    Ok(())
}

#[tokio::test]
async fn users_of_gateways_and_bridges_cannot_forge_a_workers_heartbeat() -> Result<()> {
    let env = TestEnv::new().await?;
    succeeds(&user(&env, "topology").await?, &["topology", "apply"]).await?;
    let beat = |program: &str, id: &str| {
        json!({"program": program, "id": id, "incarnation": "1", "started_at": 1, "at": 2, "every_ms": 600_000,
               "stance": "open"})
        .to_string()
    };
    let dashboard = Dashboard::start(&env).await?;
    for (program, list) in [("gateway", "gateways"), ("bridge", "bridges")] {
        let url = user(&env, program).await?;
        let publish = async |key: &str, body: String| {
            let options = lapin::options::BasicPublishOptions::default();
            let client = Client::connect(&url).await?;
            let sent = client.channel().basic_publish(
                "garenne.events".into(),
                key.into(),
                options,
                body.as_bytes(),
                Default::default(),
            );
            sent.await?.await?;
            anyhow::Ok(())
        };
        let heard = eventually("the program's own heartbeat is shown, and no other", async || {
            let refused = publish("beat.worker.forged", beat("worker", "forged")).await;
            if !refused.as_ref().is_err_and(|error| format!("{error:#}").contains("ACCESS_REFUSED")) {
                return Ok(Seen::Never(format!("a worker's heartbeat of a {program}: {refused:?}")));
            }
            // Its own key, with a worker's body.
            publish(&format!("beat.{program}.forged"), beat("worker", "forged")).await?;
            publish(&format!("beat.{program}.real"), beat(program, "real")).await?;
            let now = dashboard.json("/api/now").await?;
            let known = now[list].as_array().is_some_and(|all| all.iter().any(|it| it["id"] == "real"));
            Ok(if known { Seen::Wanted(now) } else { Seen::Other(now.to_string()) })
        });
        let now = heard.await?;
        ensure!(now["workers"] == json!([]), "{now}");
    }
    Ok(())
}

#[tokio::test]
async fn a_read_only_dashboard_needs_no_right_to_write() -> Result<()> {
    let env = TestEnv::new().await?;
    succeeds(&user(&env, "topology").await?, &["topology", "apply"]).await?;
    let viewer = user(&env, "viewer").await?;
    let worker = env.worker("w")?.stdout().env("GARENNE_EVENTS__HEARTBEAT", "200ms").start().await?;
    let dashboard = Dashboard::start_as(&env, &viewer, |program| program.arg("--read-only")).await?;
    let shown = |now: &Value| {
        now["workers"][0]["state"] == "open"
            && now["point"]["lanes"]["fast"].is_object()
            && now["fleet_problem"].is_null()
            && now["queue_problem"].is_null()
    };
    dashboard.until("the worker and the queues", shown).await?;
    // The right to read dead letters includes their removal.
    env.client().publish("garenne.dead", "any.kind", with_id("letter"), b"{}").await?;
    let dead = dashboard.get("/api/dead").await?;
    let (status, text) = (dead.status().as_u16(), dead.text().await?);
    ensure!(status == 502 && text.contains("denied access"), "{status} {text}");
    // The user can send no command, and neither can it remove a message.
    for arguments in [
        &["drain", "--all", "--yes"][..],
        &["task", "stop", "any"],
        &["group", "pause", "g"],
        &["dead", "replay", "--all"],
        &["dead", "drop", "--all", "--yes"],
    ] {
        let ended = console_at(&viewer, arguments).run().await?;
        ensure!(ended.code == Some(77), "{arguments:?}: {ended:?}");
    }
    for (exchange, key) in [
        ("", "garenne.dead"),
        ("garenne.tasks", "reading.process"),
        ("garenne.control", "workers"),
        ("garenne.events", "beat.worker.w"),
        ("garenne.events", "audit.x"),
    ] {
        let sent = Client::connect(&viewer).await?.publish(exchange, key, with_id("x"), b"{}").await;
        ensure!(sent.is_err_and(|error| format!("{error:#}").contains("ACCESS_REFUSED")), "{exchange} {key}");
    }
    worker.stop().await?;
    Ok(())
}
