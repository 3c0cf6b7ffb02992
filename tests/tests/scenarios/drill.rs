//! `garenne-drill run` passes correct workers and detects faulty ones.

use anyhow::{Context, Result};
use garenne_tests::harness::{process::Program, test_env::TestEnv};
use serde_json::{Value, json};

/// Drills `drilled-worker FAULT` and returns the exit code and the report.
async fn drill(fault: &str, faults: &[&str]) -> Result<(Option<i32>, Value)> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let folder = env.folder().join("drill");
    let worker = format!("{} {fault}", env!("CARGO_BIN_EXE_drilled-worker"));
    let mut program = Program::new("garenne-drill")
        .arg("run")
        .option("--amqp-url", env.operator_url())
        .option("--worker-amqp-url", env.worker_url())
        .option("--worker", worker)
        .option("--report", &folder)
        .option("--kind", "bench.noop")
        .option("--payload", "{}")
        .option("--tasks", "600")
        .option("--rate", "300")
        .option("--workers", "2")
        .option("--patience", "20s")
        .arg("--json");
    for argument in faults {
        program = program.arg(argument);
    }
    let ended = program.run().await?;
    let report: Value = serde_json::from_str(&ended.stdout.join("\n"))
        .with_context(|| format!("no report: {}", ended.stderr.join("\n")))?;
    let page = std::fs::read_to_string(folder.join("report.html"))?;
    assert_eq!(page.contains("promise kept"), report["kept"] == true);
    let lines = std::fs::read_to_string(folder.join("audit.ndjson"))?;
    assert_eq!(lines.lines().count(), 600);
    Ok((ended.code, report))
}

fn count(report: &Value, what: &str) -> u64 {
    report["totals"][what].as_u64().unwrap_or(u64::MAX)
}

const KILLS: &[&str] = &["--kills", "4", "--softs", "0", "--hards", "0"];
const STOPS: &[&str] = &["--kills", "0", "--softs", "4", "--hards", "0"];

#[tokio::test]
async fn drill_passes_a_correct_worker() -> Result<()> {
    let (code, report) =
        drill("none", &["--kills", "3", "--softs", "2", "--hards", "1", "--pauses", "1"]).await?;
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!((count(&report, "sent"), count(&report, "once")), (600, 600), "{report:#}");
    assert_eq!(report["witness"], "file");
    assert_eq!(report["crashes"], json!({"killed": 3, "by_themselves": 0}));
    assert_eq!(report["timeline"]["happenings"].as_array().map(Vec::len), Some(7));
    Ok(())
}

#[tokio::test]
async fn drill_detects_a_worker_that_acks_before_execution() -> Result<()> {
    let (code, report) = drill("acks-first", KILLS).await?;
    assert_eq!(code, Some(1), "{report:#}");
    assert!(count(&report, "lost") > 0, "{report:#}");
    Ok(())
}

#[tokio::test]
async fn drill_detects_a_worker_that_drops_tasks_on_shutdown() -> Result<()> {
    let (code, report) = drill("drops-on-shutdown", STOPS).await?;
    assert_eq!(code, Some(1), "{report:#}");
    assert!(count(&report, "lost") > 0, "{report:#}");
    Ok(())
}

#[tokio::test]
async fn drill_detects_a_worker_without_a_unique_key() -> Result<()> {
    let (code, report) = drill("no-unique-key", KILLS).await?;
    assert_eq!(code, Some(1), "{report:#}");
    assert!(count(&report, "doubled") > 0, "{report:#}");
    assert_eq!(count(&report, "lost"), 0, "{report:#}");
    Ok(())
}

#[tokio::test]
async fn drill_waits_for_the_effects_of_executed_tasks() -> Result<()> {
    let (code, report) = drill("fails-first", &["--kills", "0", "--softs", "0", "--hards", "0"]).await?;
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!((count(&report, "once"), count(&report, "rerun")), (600, 600), "{report:#}");
    Ok(())
}

#[tokio::test]
async fn drill_passes_the_stock_worker() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let ended = Program::new("garenne-drill")
        .arg("run")
        .option("--amqp-url", env.operator_url())
        .option("--worker-amqp-url", env.worker_url())
        .option("--report", env.folder().join("drill"))
        .option("--tasks", "3000")
        .option("--rate", "600")
        .option("--kills", "3")
        .option("--softs", "2")
        .option("--hards", "2")
        .option("--patience", "30s")
        .arg("--json")
        .run()
        .await?;
    let report: Value = serde_json::from_str(&ended.stdout.join("\n"))
        .with_context(|| format!("no report: {}", ended.stderr.join("\n")))?;
    assert_eq!(ended.code, Some(0), "{report:#}");
    assert_eq!((count(&report, "sent"), count(&report, "lost")), (3000, 0), "{report:#}");
    // No database shows what took effect, so that only the executions are known.
    let totals = &report["totals"];
    assert_eq!(
        (&totals["executed"], &totals["doubled"], &totals["once"]),
        (&json!(3000), &Value::Null, &Value::Null)
    );
    assert_eq!(report["crashes"]["killed"], 3, "{report:#}");
    Ok(())
}
