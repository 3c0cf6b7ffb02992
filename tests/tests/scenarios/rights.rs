//! Each program works with the permissions that `deploy/rabbitmq/definitions.json` gives its user, and a stolen user
//! can do no more than `SECURITY.md` says.

use anyhow::{Result, ensure};
use garenne_tests::harness::{
    client::with_id,
    gateway::GatewayPlan,
    process::{Ended, Program},
    test_env::TestEnv,
    users,
};

/// The retry delays of the test environment's workers. All programs must agree on them, as they are in the topology.
const DELAYS: &str = "200ms,400ms";

/// [`users::user`] on the test environment's virtual host.
async fn user(env: &TestEnv, role: &str) -> Result<String> {
    users::user(env.vhost(), role).await
}

async fn garenne(url: &str, arguments: &[&str]) -> Result<Ended> {
    let program = Program::new("garenne").option("--amqp-url", url).env("GARENNE_RETRY__DELAYS", DELAYS);
    arguments.iter().fold(program, |program, argument| program.arg(argument)).run().await
}

async fn succeeds(url: &str, arguments: &[&str]) -> Result<()> {
    let ended = garenne(url, arguments).await?;
    ensure!(ended.code == Some(0), "{arguments:?}: {:?} {:?}", ended.code, ended.stderr);
    Ok(())
}

#[tokio::test]
async fn each_program_needs_only_its_users_permissions() -> Result<()> {
    let env = TestEnv::new().await?;
    succeeds(&user(&env, "topology").await?, &["topology", "apply"]).await?;
    let (console, worker) = (user(&env, "console").await?, user(&env, "worker").await?);
    let plan = env.worker_at("limited", &worker)?.stdout().option("--sink", "results");
    let worker = plan.start().await?;
    let gateway = GatewayPlan::at(&user(&env, "gateway").await?)?;
    let gateway = gateway.env("GARENNE_RETRY__DELAYS", DELAYS).start().await?;

    for (kind, body) in [("bench.fail", r#"{"times":1}"#), ("bench.nothing", "{}")] {
        gateway.post(&format!("/v1/tasks/{kind}"), "application/json", body).await?.ids()?;
    }
    worker.until_done(1).await?;
    env.until_queue("garenne.dead", 1, 0).await?;
    succeeds(&console, &["status"]).await?;
    succeeds(&console, &["dead", "list"]).await?;
    succeeds(&console, &["dead", "replay", "--kind", "bench.nothing"]).await?;
    env.until_queue("garenne.dead", 1, 0).await?;
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
        ("gateway", &["drain", "--all"][..]),
        ("gateway", &["task", "stop", "any"]),
        ("gateway", &["dead", "list"]),
        ("worker", &["drain", "--all"]),
        ("worker", &["dead", "list"]),
        ("scaler", &["drain", "--all"]),
        ("scaler", &["dead", "list"]),
    ] {
        let ended = garenne(&user(&env, role).await?, arguments).await?;
        let refused = ended.stderr.iter().any(|line| line.contains("ACCESS_REFUSED"));
        assert!(ended.code == Some(77) && refused, "{role} {arguments:?}: {ended:?}");
    }
    Ok(())
}
