//! The command-line tool `garenne`: topology and status.

use anyhow::Result;
use garenne_tests::harness::{process::Program, test_env::TestEnv, vhost::Rights};
use lapin::options::QueueDeleteOptions;
use serde_json::Value;

#[tokio::test]
async fn console_applies_the_topology_and_names_differences() -> Result<()> {
    let env = TestEnv::new().await?;
    let management = env.vhost().management_url();
    let check = ["topology", "check", "--management-url", &management];

    let before = env.try_garenne(&["topology", "check"]).await?;
    assert_eq!(before.code, Some(1));
    assert!(
        before.stdout.iter().any(|line| line == "exchange garenne.tasks: missing"),
        "{:?}",
        before.stdout
    );

    env.garenne(&["topology", "apply"]).await?;
    env.garenne(&check).await?;

    let channel = env.client().channel();
    channel.queue_delete("garenne.tasks.slow".into(), QueueDeleteOptions::default()).await?;
    let lacking = env.try_garenne(&check).await?;
    assert_eq!(lacking.code, Some(1));
    assert_eq!(
        lacking.stdout[..3],
        [
            "queue garenne.tasks.slow: missing",
            "binding garenne.tasks -> garenne.tasks.slow (spectrum.#): missing",
            "binding garenne.tasks -> garenne.tasks.slow (alert.#): missing",
        ]
        .map(str::to_owned),
        "{:?}",
        lacking.stdout
    );
    let status = env.try_garenne(&["status", "--json"]).await?;
    assert_eq!(status.code, Some(1));
    let status: Value = serde_json::from_str(&status.stdout.join("\n"))?;
    assert_eq!(status["missing"], serde_json::json!(["garenne.tasks.slow"]));
    Ok(())
}

#[tokio::test]
async fn console_without_the_permission_ends_with_code_77() -> Result<()> {
    let env = TestEnv::new().await?;
    let rights = Rights { configure: "^$", write: ".*", read: ".*" };
    let url = env.vhost().user_url("reader", rights).await?;
    let denied = Program::garenne(&url, &["topology", "apply"]).run().await?;
    assert_eq!(denied.code, Some(77));
    assert_eq!(
        denied.stderr,
        [
            "garenne: this user lacks the right configure on queue \"garenne.dead\": run `garenne topology apply` as a user with the configure permission"
        ]
    );
    Ok(())
}

#[tokio::test]
async fn console_exports_definitions_of_the_topology() -> Result<()> {
    let arguments = ["topology", "export", "--broker-version", "4.0"];
    let export = Program::garenne("amqp://127.0.0.1:1", &arguments).succeed().await?;
    let definitions: Value = serde_json::from_str(&export.stdout.join("\n"))?;
    let queues = definitions["queues"].as_array().map_or(0, Vec::len);
    assert!(queues > 15 && definitions["exchanges"].as_array().map_or(0, Vec::len) == 7, "{definitions}");
    Ok(())
}

#[tokio::test]
async fn console_drains_every_worker_only_if_that_is_confirmed() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("w")?.start().await?;
    let refused = env.try_garenne(&["drain", "--all"]).await?;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let expected =
        "garenne: drain --all shuts every worker down, and no command starts them again: repeat with --yes";
    assert_eq!(refused.stderr, [expected]);
    env.garenne(&["drain", "--all", "--yes"]).await?;
    worker.stopped().await?;
    Ok(())
}
