//! Metrics are exact: two workers run a known mix of tasks, and every figure is compared with the expected one.

use anyhow::{Result, ensure};
use garenne_tests::harness::{
    client::with_id,
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::Worker,
};
use serde_json::json;

/// The sum of a metric over the workers. A worker that never received a kind has no series for it. A series that no
/// worker has is an error, not zero.
async fn sum(workers: &[Worker; 2], name: &str, labels: &[&str]) -> Result<f64> {
    let mut found = Vec::new();
    for worker in workers {
        found.extend(worker.find_metric(name, labels).await?);
    }
    ensure!(!found.is_empty(), "no worker has {name} with {labels:?}");
    Ok(found.iter().sum())
}

#[tokio::test]
async fn metrics_equal_the_expected_figures_under_load() -> Result<()> {
    const DONE: usize = 2_000;
    const RETRIED: usize = 40;
    const EXHAUSTED: usize = 20;
    const INVALID: usize = 10;
    const UNKNOWN: usize = 5;
    let env = TestEnv::new().await?;
    let plan = |name: &str| -> Result<_> {
        let plan = env.worker(name)?.lane("fast:prefetch=50,concurrency=4..4").option("--max-attempts", "3");
        Ok(plan.env("GARENNE_UNKNOWN_KIND_WAIT", "0s"))
    };
    let (a, b) = tokio::try_join!(plan("a")?.start(), plan("b")?.start())?;
    let workers = [a, b];
    env.publish("bench.noop", &json!({}), "done", DONE).await?;
    env.publish("bench.fail", &json!({"times": 2}), "retried", RETRIED).await?;
    env.publish("bench.fail", &json!({"times": 99}), "exhausted", EXHAUSTED).await?;
    env.publish("bench.sleep", &json!({"ms": "long"}), "invalid", INVALID).await?;
    for n in 0..UNKNOWN {
        let properties = with_id(&format!("unknown-{n}"));
        env.client().publish("garenne.tasks", "bench.nothing", properties, b"{}").await?;
    }
    let dead_letters = EXHAUSTED + INVALID + UNKNOWN;
    env.until_queue("garenne.dead", dead_letters, 0).await?;
    let acked = (DONE + RETRIED) as f64;
    let all = DONE + RETRIED + EXHAUSTED + INVALID + UNKNOWN + 2 * RETRIED + 2 * EXHAUSTED;
    eventually("everything is settled", async || {
        let settled = sum(&workers, "garenne_settlements_total", &[]).await?;
        Ok(Seen::when(settled >= all as f64, settled))
    })
    .await?;

    let attempts = |kind: &str| [format!("kind=\"{kind}\"")];
    let tasks = async |kind: &str, outcome: &str| {
        let labels = [format!("kind=\"{kind}\""), format!("outcome=\"{outcome}\"")];
        let labels: Vec<_> = labels.iter().map(String::as_str).collect();
        sum(&workers, "garenne_tasks_total", &labels).await
    };
    let dead = async |kind: &str, reason: &str| {
        let labels = [format!("kind=\"{kind}\""), format!("reason=\"{reason}\"")];
        let labels: Vec<_> = labels.iter().map(String::as_str).collect();
        sum(&workers, "garenne_dead_total", &labels).await
    };
    // Every retried task fails twice. Every exhausted task fails three times and is retried twice.
    let (errors, retried) = (2 * RETRIED + 3 * EXHAUSTED, 2 * RETRIED + 2 * EXHAUSTED);
    assert_eq!(tasks("bench.noop", "success").await?, DONE as f64);
    assert_eq!(tasks("bench.fail", "success").await?, RETRIED as f64);
    assert_eq!(tasks("bench.fail", "error").await?, errors as f64);
    assert_eq!(tasks("bench.sleep", "rejected").await?, INVALID as f64);
    assert_eq!(dead("bench.fail", "attempts-exhausted").await?, EXHAUSTED as f64);
    assert_eq!(dead("bench.sleep", "invalid-payload").await?, INVALID as f64);
    assert_eq!(dead("unknown", "unknown-kind").await?, UNKNOWN as f64);
    assert_eq!(sum(&workers, "garenne_dead_total", &[]).await?, dead_letters as f64);

    let delivered = DONE + RETRIED + EXHAUSTED + INVALID + UNKNOWN + retried;
    assert_eq!(sum(&workers, "garenne_deliveries_total", &["lane=\"fast\""]).await?, delivered as f64);
    assert_eq!(sum(&workers, "garenne_redeliveries_total", &[]).await?, 0.0);
    let settled = async |settlement: &str| {
        let label = format!("settlement=\"{settlement}\"");
        sum(&workers, "garenne_settlements_total", &["lane=\"fast\"", &label]).await
    };
    assert_eq!(settled("acked").await?, acked);
    assert_eq!(settled("retried").await?, retried as f64);
    assert_eq!(settled("dead").await?, dead_letters as f64);
    assert_eq!(sum(&workers, "garenne_settlements_total", &[]).await?, delivered as f64);

    for (kind, count) in [("bench.noop", DONE), ("bench.fail", RETRIED + errors), ("bench.sleep", INVALID)] {
        let labels = attempts(kind);
        let measured = sum(&workers, "garenne_task_duration_seconds_count", &[&labels[0]]).await?;
        assert_eq!(measured, count as f64, "durations of {kind}");
    }
    // Tasks of unknown kinds never start.
    let waited = sum(&workers, "garenne_task_wait_seconds_count", &["lane=\"fast\""]).await?;
    assert_eq!(waited, (delivered - UNKNOWN) as f64);
    let [a, b] = workers;
    let (a, b) = tokio::try_join!(a.stop(), b.stop())?;
    let receipts = a.receipt.delivered + b.receipt.delivered;
    assert_eq!(receipts, delivered as u64, "the receipts and the metrics differ");
    Ok(())
}
