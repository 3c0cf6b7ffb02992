//! A clean stop loses nothing, brings nothing back and costs no task anything, however often.

use std::collections::BTreeSet;

use anyhow::Result;
use garenne_tests::harness::{
    suite,
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use serde_json::json;

/// Stops per mode; `./dev test --full` takes as many as a promise needs.
fn rounds() -> usize {
    if suite::is_full() { 20 } else { 5 }
}

/// Acks of a quorum queue are asynchronous: a channel that is closed too early takes some back, and the
/// next worker would do those tasks again.
#[tokio::test]
async fn clean_stops_bring_back_nothing_acked() -> Result<()> {
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
                assert!(finished.insert(done.task_id), "{id} was acked and came back, {mode}");
            }
        }
    }
    let published = rounds() * 4 * 1500;
    eventually("the rest is still there", async || {
        let ready = env.client().ready("garenne.tasks.fast").await?;
        Ok(Seen::when(ready + finished.len() == published, format_args!("{ready} + {}", finished.len())))
    })
    .await
}

/// Deployments hand the same messages back again and again. Brokers before 4.3 count that, and must
/// draw no conclusion from it.
#[tokio::test]
async fn rolling_restarts_cost_no_life() -> Result<()> {
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
