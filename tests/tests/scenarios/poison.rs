//! A task that kills its worker is found out, and nobody else is condemned with it.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use garenne_tests::harness::{
    process::Signal,
    suite,
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::{Worker, WorkerEnd},
};
use serde_json::{Value, json};

/// Healthy tasks before and after the poison; `./dev test --full` takes as many as a promise needs in
/// every form, the default in one.
fn healthy(by_default: usize) -> usize {
    if suite::is_full() { 500 } else { by_default }
}

/// What a worker may take beyond what it has at its start, bytes.
const MEMORY: u64 = 256 << 20;

/// What became of the workers that ran one after the other.
#[derive(Debug, Default)]
struct Fleet {
    deaths: usize,
    /// Stopped in order, with tasks that they handed back.
    drains: usize,
    /// The ids of what was done.
    done: BTreeSet<String>,
}

impl Fleet {
    fn count(&mut self, end: WorkerEnd) {
        let done = match end {
            WorkerEnd::Died(done) => {
                self.deaths += 1;
                done
            }
            WorkerEnd::Stopped(stopped) => {
                self.drains += usize::from(stopped.receipt.requeued > 0);
                stopped.done
            }
        };
        self.done.extend(done.into_iter().map(|done| done.task_id));
    }

    /// Starts workers one after the other, as an orchestrator does, until nothing is left. With `drained`,
    /// others are stopped before and beside each that goes on, whatever they hold.
    async fn restart_until_done(env: &TestEnv, healthy: usize, drained: bool) -> Result<Self> {
        let mut fleet = Self::default();
        for restart in 0..10 {
            if drained {
                fleet.drain(env, &format!("before-{restart}")).await?;
            }
            let worker = begin(env, &format!("mortal-{restart}")).await?;
            if drained {
                fleet.drain(env, &format!("beside-{restart}")).await?;
            }
            let died = eventually("it dies, or everything is settled", async || {
                if worker.has_ended() {
                    return Ok(Seen::Wanted(true));
                }
                let dead = env.client().ready("garenne.dead").await?;
                let now = worker.done()?;
                let all = now.iter().map(|it| &it.task_id).chain(&fleet.done).collect::<BTreeSet<_>>().len();
                Ok(if dead == 1 && all == healthy {
                    Seen::Wanted(false)
                } else {
                    Seen::Other(format!("{dead} dead, {all} done"))
                })
            })
            .await?;
            if !died {
                fleet.count(WorkerEnd::Stopped(worker.stop().await?));
                return Ok(fleet);
            }
            fleet.count(worker.ended().await?);
        }
        anyhow::bail!("not done after so many workers: {fleet:?}")
    }

    /// Stops a worker as soon as it holds something, or there is nothing more to hold. The poison may be
    /// quicker.
    async fn drain(&mut self, env: &TestEnv, name: &str) -> Result<()> {
        let worker = begin(env, name).await?;
        eventually("it holds something", async || {
            let over = worker.has_ended() || env.client().ready("garenne.tasks.fast").await? == 0;
            let holds = over || worker.metric("garenne_deliveries_total", &[]).await? > 0.0;
            Ok(Seen::when(holds, "nothing"))
        })
        .await?;
        // It may be dead by now.
        let _ = worker.signal(Signal::QUIT);
        self.count(worker.ended().await?);
        Ok(())
    }
}

async fn begin(env: &TestEnv, name: &str) -> Result<Worker> {
    let plan = env.worker(name)?.stdout().lane("fast:prefetch=50,concurrency=2..2");
    let worker = plan.option("--shutdown-mode", "soft").begin().await?;
    // It may be dead by now.
    let _ = worker.limit_memory(MEMORY);
    Ok(worker)
}

async fn is_condemned_alone(kind: &str, payload: Value, half: usize, drained: bool) -> Result<()> {
    // Long enough for somebody to be stopped beside who works on it.
    let fine = json!({ "ms": if drained { 10 } else { 1 } });
    let env = TestEnv::new().await?;
    // Makes the topology.
    env.worker("first")?.start().await?.stop().await?;
    let mut ids = env.publish("bench.sleep", &fine, "early", half).await?;
    env.publish(kind, &payload, "poison", 1).await?;
    ids.extend(env.publish("bench.sleep", &fine, "late", half).await?);
    let fleet = Fleet::restart_until_done(&env, ids.len(), drained).await?;
    println!("{kind}: {} deaths, {} clean drains, {} done", fleet.deaths, fleet.drains, fleet.done.len());
    ensure!((2..=4).contains(&fleet.deaths), "{} workers died", fleet.deaths);
    ensure!(!drained || fleet.drains > 0, "nothing was handed back in between: {fleet:?}");
    assert_eq!(fleet.done, ids.into_iter().collect());
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!((dead.id(), dead.text("garenne-reason").as_str()), ("poison-0", "poison"));
    env.until_lane("fast", 0, 0).await?;
    env.is_empty("garenne.quarantine").await
}

#[tokio::test]
async fn poison_that_aborts_is_condemned_alone() -> Result<()> {
    is_condemned_alone("bench.abort", json!({}), healthy(500), false).await
}

#[tokio::test]
async fn poison_that_overflows_the_stack_is_condemned_alone() -> Result<()> {
    is_condemned_alone("bench.overflow", json!({}), healthy(100), false).await
}

#[tokio::test]
async fn poison_that_takes_all_memory_is_condemned_alone() -> Result<()> {
    is_condemned_alone("bench.hoard", json!({"mib": 4096}), healthy(100), false).await
}

/// Hand-backs count as returns on brokers before 4.3; they must condemn nobody, nor save the poison.
#[tokio::test]
async fn poison_is_condemned_alone_with_clean_drains_in_between() -> Result<()> {
    is_condemned_alone("bench.abort", json!({}), healthy(200), true).await
}
