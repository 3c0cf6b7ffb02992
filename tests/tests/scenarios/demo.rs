//! `garenne-drill demo` accounts for every reading.

use anyhow::Result;
use garenne_tests::harness::{mqtt, process::Program, test_env::TestEnv};
use serde_json::{Value, json};
use tokio::sync::Mutex;

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
    let demo = Program::new("garenne-drill").option("--amqp-url", env.vhost().amqp_url()).arg("demo");
    let demo = demo.option("--recording", &recording).option("--speed", "120x").option("--for", lasts);
    let demo = demo.option("--dir", &folder).args(options);
    let ended = demo.run().await?;
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
    // Without a database, executions are known and effects are not.
    assert!(audit.lines().all(|line| line.contains("\"verdict\":\"executed\",\"effects\":null")));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("report.json"))?)?;
    let totals = &report["totals"];
    assert_eq!((&totals["executed"], &totals["doubled"]), (&json!(receipts), &Value::Null), "{report:#}");
    assert_eq!(report["crashes"], json!({"killed": 1, "by_themselves": 0}));
    Ok(ended.stderr)
}

#[tokio::test]
async fn demo_accounts_for_every_reading() -> Result<()> {
    let messages = demo(&TestEnv::new().await?, "6s", &[]).await?;
    for step in ["gets SIGTERM", "gets SIGKILL"] {
        assert!(messages.iter().any(|line| line.contains(step)), "{step}");
    }
    Ok(())
}

#[tokio::test]
async fn demo_accounts_for_every_message_of_devices_while_bridge_and_mosquitto_are_killed() -> Result<()> {
    if !mqtt::is_installed() {
        return Ok(());
    }
    let messages = demo(&TestEnv::new().await?, "6s", &["--mqtt"]).await?;
    for step in ["bridge gets SIGKILL", "Mosquitto gets SIGKILL", "gets SIGTERM, as in a deployment"] {
        assert!(messages.iter().any(|line| line.contains(step)), "{step}");
    }
    Ok(())
}
