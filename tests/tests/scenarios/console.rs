//! The command-line tool `garenne`: topology, status and the demo.

use anyhow::Result;
use garenne_tests::harness::{
    mqtt,
    process::{Ended, Program},
    test_env::TestEnv,
    vhost::Rights,
};
use lapin::options::QueueDeleteOptions;
use serde_json::Value;
use tokio::sync::Mutex;

async fn garenne(url: &str, arguments: &[&str]) -> Result<Ended> {
    let program = Program::new("garenne").option("--amqp-url", url);
    arguments.iter().fold(program, |program, argument| program.arg(argument)).run().await
}

#[tokio::test]
async fn console_applies_the_topology_and_names_differences() -> Result<()> {
    let env = TestEnv::new().await?;
    let (url, management) = (env.vhost().amqp_url(), env.vhost().management_url());
    let check = ["topology", "check", "--management-url", &management];

    let before = garenne(&url, &["topology", "check"]).await?;
    assert_eq!(before.code, Some(1));
    assert!(
        before.stdout.iter().any(|line| line == "exchange garenne.tasks: missing"),
        "{:?}",
        before.stdout
    );

    let applied = garenne(&url, &["topology", "apply"]).await?;
    assert_eq!(applied.code, Some(0), "{:?}", applied.stderr);
    let same = garenne(&url, &check).await?;
    assert_eq!(same.code, Some(0), "{:?}", same.stdout);

    let channel = env.client().channel();
    channel.queue_delete("garenne.tasks.slow".into(), QueueDeleteOptions::default()).await?;
    let lacking = garenne(&url, &check).await?;
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
    let status = garenne(&url, &["status", "--json"]).await?;
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
    let denied = garenne(&url, &["topology", "apply"]).await?;
    assert_eq!(denied.code, Some(77));
    assert_eq!(
        denied.stderr,
        [
            "garenne: queue \"garenne.dead\" is missing and this user may not create it: run `garenne topology apply` as a user with the configure permission"
        ]
    );
    Ok(())
}

#[tokio::test]
async fn console_exports_definitions_of_the_topology() -> Result<()> {
    let export = garenne("amqp://127.0.0.1:1", &["topology", "export", "--broker-version", "4.0"]).await?;
    assert_eq!(export.code, Some(0), "{:?}", export.stderr);
    let definitions: Value = serde_json::from_str(&export.stdout.join("\n"))?;
    let queues = definitions["queues"].as_array().map_or(0, Vec::len);
    assert!(queues > 15 && definitions["exchanges"].as_array().map_or(0, Vec::len) == 7, "{definitions}");
    Ok(())
}

/// Demos run one after the other: two that start at the same time could choose the same free ports.
static DEMO: Mutex<()> = Mutex::const_new(());

/// Runs a demo of ten recorded minutes in five seconds, repeatedly for `lasts`. Every reading must be accounted for. Returns
/// its messages.
async fn demo(env: &TestEnv, lasts: &str, options: &[&str]) -> Result<Vec<String>> {
    let _alone = DEMO.lock().await;
    let folder = env.folder().join("demo");
    let recording = env.folder().join("recording.csv");
    let rows: String =
        (0..600).map(|n| format!("2026-05-04T05:{:02}:{:02}Z,d{},{n}.5\n", n / 60, n % 60, n % 7)).collect();
    std::fs::write(&recording, format!("time,device,temperature_C\n{rows}"))?;
    let (dir, recording) = (folder.display().to_string(), recording.display().to_string());
    let demo = ["demo", "--recording", &recording, "--speed", "120x", "--for", lasts, "--dir", &dir];
    let ended = garenne(&env.vhost().amqp_url(), &[&demo[..], options].concat()).await?;
    assert_eq!(ended.code, Some(0), "{:?} {:?}", ended.stdout, ended.stderr);
    let mut receipts = 0;
    for entry in std::fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(".receipts.ndjson") {
            receipts += std::fs::read_to_string(path)?.lines().count();
        }
    }
    let audit = std::fs::read_to_string(folder.join("audit.ndjson"))?;
    assert!(receipts > 600, "{receipts}");
    assert_eq!(audit.lines().count(), receipts);
    assert!(audit.lines().all(|line| line.contains("\"verdict\":\"once\"")));
    Ok(ended.stderr)
}

#[tokio::test]
async fn console_demo_accounts_for_every_reading() -> Result<()> {
    let messages = demo(&TestEnv::new().await?, "6s", &[]).await?;
    for step in ["gets SIGTERM", "gets SIGKILL"] {
        assert!(messages.iter().any(|line| line.contains(step)), "{step}");
    }
    Ok(())
}

#[tokio::test]
async fn console_demo_accounts_for_every_message_of_devices_while_bridge_and_mosquitto_are_killed()
-> Result<()> {
    if !mqtt::is_installed() {
        return Ok(());
    }
    let messages = demo(&TestEnv::new().await?, "6s", &["--mqtt"]).await?;
    for step in ["bridge gets SIGKILL", "Mosquitto gets SIGKILL", "gets SIGTERM, as in a deployment"] {
        assert!(messages.iter().any(|line| line.contains(step)), "{step}");
    }
    Ok(())
}
