//! However often workers stop cleanly, no task is lost, no acked task is redelivered, and no attempt is spent.

use std::collections::BTreeSet;

use anyhow::Result;
use garenne_tests::harness::{
    suite,
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use serde_json::json;

/// Stops per mode; `./dev test --full` runs the number that the documentation states.
fn rounds() -> usize {
    if suite::is_full() { 20 } else { 5 }
}

/// A quorum queue applies acks asynchronously. If the channel closes before it has, the broker requeues those
/// deliveries, and the next worker would run the tasks again.
#[tokio::test]
async fn clean_stops_redeliver_no_acked_task() -> Result<()> {
    let env = TestEnv::new().await?;
    let mut finished: BTreeSet<String> = BTreeSet::new();
    for round in 0..rounds() {
        for mode in ["light", "soft", "soft-timeout", "hard"] {
            let plan = env.worker("stopping")?.stdout().lane("fast:prefetch=500,concurrency=4..4");
            let worker = plan.option("--shutdown-mode", mode).start().await?;
            env.publish("bench.noop", &json!({}), &format!("{round}-{mode}"), 1500).await?;
            worker.until_done(400).await?;
            let stopped = worker.stop().await?;
            let receipt = &stopped.receipt;
            assert_eq!((stopped.code, receipt.lost_settlements + receipt.abandoned), (0, 0), "{receipt:?}");
            assert_eq!(receipt.acked as usize, stopped.done.len(), "{receipt:?}");
            for done in stopped.done {
                assert_eq!(done.attempt, 1);
                let id = done.task_id.clone();
                assert!(finished.insert(done.task_id), "{id} was acked and redelivered, {mode}");
            }
        }
    }
    let published = rounds() * 4 * 1500;
    eventually("every unfinished task is ready in the queue", async || {
        let ready = env.client().ready("garenne.tasks.fast").await?;
        Ok(Seen::when(ready + finished.len() == published, format_args!("{ready} + {}", finished.len())))
    })
    .await
}

/// Each restart requeues the same messages. Brokers before 4.3 count these returns as deliveries. They must
/// neither spend an attempt nor count as crashes.
#[tokio::test]
async fn clean_stops_that_requeue_the_same_tasks_spend_no_attempt() -> Result<()> {
    const RESTARTS: usize = 25;
    let env = TestEnv::new().await?;
    for restart in 0..RESTARTS {
        let plan = env.worker("restarted")?.stdout().lane("fast:prefetch=30,concurrency=2..2");
        let mode = if restart % 2 == 0 { "hard" } else { "soft-timeout" };
        let plan = plan.option("--shutdown-mode", mode).option("--shutdown-timeout", "100ms");
        let worker = plan.start().await?;
        if restart == 0 {
            env.publish("bench.sleep", &json!({"ms": 600_000}), "task", 30).await?;
        }
        worker.until_holds("fast", 2, 28).await?;
        let stopped = worker.stop().await?;
        assert_eq!((stopped.code, stopped.receipt.requeued), (0, 30), "{restart}: {:?}", stopped.receipt);
    }
    for queue in ["garenne.dead", "garenne.quarantine", "garenne.unroutable"] {
        env.is_empty(queue).await?;
    }
    let mut ids = BTreeSet::new();
    for task in env.take_all("garenne.tasks.fast", 30).await? {
        assert!(!task.has("garenne-attempt") && !task.has("garenne-quarantine-runs"), "{task:?}");
        ids.insert(task.id().to_owned());
    }
    assert_eq!(ids.len(), 30);
    Ok(())
}
