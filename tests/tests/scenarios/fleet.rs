//! Three workers end in three ways while tasks are published, and a fourth takes over: no task is lost.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use garenne_tests::harness::{
    process::Signal,
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use serde_json::json;

const TASKS: usize = 10_000;
/// Tasks that wait before the workers start.
const EARLY: usize = 3_000;

#[tokio::test]
async fn fleet_loses_no_task_when_its_workers_end_in_different_ways() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = |name: &str| -> Result<_> {
        Ok(env.worker(name)?.stdout().lane("fast:prefetch=100,concurrency=4..4"))
    };
    let (soft, hard, killed) = tokio::try_join!(
        plan("soft")?.option("--shutdown-mode", "soft").start(),
        plan("hard")?.option("--shutdown-mode", "hard").start(),
        plan("killed")?.start(),
    )?;
    // Stopping workers must have deliveries to requeue: the broker delivers tasks of 20 ms faster than four slots run
    // them, also on a busy machine.
    let (early, late) = (json!({"ms": 20}), json!({"ms": 2}));
    for worker in [&soft, &hard, &killed] {
        worker.signal(Signal::TSTP)?;
    }
    env.until_no_consumer("fast").await?;
    let mut ids = env.publish("bench.sleep", &early, "early", EARLY).await?;
    for worker in [&soft, &hard, &killed] {
        worker.signal(Signal::CONT)?;
    }
    let published = env.publish("bench.sleep", &late, "late", TASKS - EARLY);
    let ends = async {
        soft.until_done(200).await?;
        soft.signal(Signal::TERM)?;
        hard.until_done(300).await?;
        hard.signal(Signal::TERM)?;
        killed.until_done(400).await?;
        let killed = killed.kill().await?;
        let fourth = plan("fourth")?.option("--shutdown-mode", "light").start().await?;
        let (soft, hard) = tokio::try_join!(soft.stopped(), hard.stopped())?;
        anyhow::Ok((soft, hard, killed, fourth))
    };
    let (late, (soft, hard, killed, fourth)) = tokio::try_join!(published, ends)?;
    ids.extend(late);
    // Only the fourth worker is left. The queue's own count may lag behind, so the executions are counted.
    let before: BTreeSet<_> =
        soft.done.iter().chain(&hard.done).chain(&killed).map(|done| done.task_id.clone()).collect();
    eventually("every task was done", async || {
        let mut done: BTreeSet<_> = fourth.done()?.into_iter().map(|done| done.task_id).collect();
        done.extend(before.iter().cloned());
        Ok(Seen::when(done.len() == TASKS, done.len()))
    })
    .await?;
    let fourth = fourth.stop().await?;

    for clean in [&soft, &hard, &fourth] {
        assert_eq!(clean.code, 0, "{:?}", clean.receipt);
        assert_eq!(clean.receipt.acked as usize, clean.done.len(), "{:?}", clean.receipt);
        assert_eq!(clean.receipt.retried + clean.receipt.dead + clean.receipt.lost_settlements, 0);
    }
    assert!(hard.receipt.requeued > 0 && soft.receipt.requeued > 0, "{:?} {:?}", hard.receipt, soft.receipt);

    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for done in soft.done.iter().chain(&hard.done).chain(&killed).chain(&fourth.done) {
        assert_eq!(done.attempt, 1, "{done:?}");
        *times.entry(&done.task_id).or_default() += 1;
    }
    let lost: Vec<_> = ids.iter().filter(|id| !times.contains_key(id.as_str())).collect();
    assert!(lost.is_empty(), "{} lost, such as {:?}", lost.len(), lost[0]);
    assert_eq!(times.len(), TASKS, "an unknown task was done");
    // Only the kill may cause repetitions: of tasks that were done and not yet acked, at most one prefetch.
    let clean: Vec<_> = soft.ids().into_iter().chain(hard.ids()).chain(fourth.ids()).collect();
    let once: BTreeSet<_> = clean.iter().collect();
    assert_eq!(once.len(), clean.len(), "workers that stopped cleanly ran a task twice");
    let repeated = times.values().filter(|&&times| times > 1).count();
    assert!(repeated <= 100, "{repeated} tasks were repeated");
    env.until_lane("fast", 0, 0).await?;
    env.is_empty("garenne.dead").await
}
