//! A poison task, which crashes every worker that runs it, becomes a dead letter, and no other task does.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Result, ensure};
use garenne_tests::harness::{
    handler::{KIND, odd_worker},
    process::Signal,
    suite,
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::{Worker, WorkerEnd, WorkerPlan},
};
use serde_json::{Value, json};

/// Healthy tasks before and after the poison task; `./dev test --full` always uses the number that the documentation
/// states.
fn healthy(by_default: usize) -> usize {
    if suite::is_full() { 500 } else { by_default }
}

/// Address space that a worker may use beyond that at its start, bytes.
const MEMORY_LIMIT: u64 = 256 << 20;

/// What poisons a fleet.
struct Poison {
    kind: &'static str,
    payload: Value,
    /// The kind of the healthy tasks, and what makes one take a few milliseconds.
    healthy: (&'static str, fn(u64) -> Value),
    plan: fn(&TestEnv, &str) -> Result<WorkerPlan>,
}

impl Poison {
    /// A task of a kind that is for that, among tasks that sleep.
    fn of(kind: &'static str, payload: Value) -> Self {
        let plan = |env: &TestEnv, name: &str| Ok(env.worker(name)?.stdout());
        Self { kind, payload, healthy: ("bench.sleep", |ms| json!({ "ms": ms })), plan }
    }

    /// A task whose program kills the worker, among tasks of the same program.
    fn of_program() -> Self {
        let plan = |env: &TestEnv, name: &str| {
            let plan = odd_worker(env, name, "processes = 2")?;
            Ok(plan.env("GARENNE_LANES__FAST__BINDINGS", "odd.#"))
        };
        let sleep = |ms: u64| json!({"do": "sleep", "seconds": Duration::from_millis(ms).as_secs_f64()});
        Self { kind: KIND, payload: json!({"do": "kill-worker"}), healthy: (KIND, sleep), plan }
    }

    async fn begin(&self, env: &TestEnv, name: &str) -> Result<Worker> {
        let plan = (self.plan)(env, name)?.lane("fast:prefetch=50,concurrency=2..2");
        let worker = plan.option("--shutdown-mode", "soft").begin().await?;
        // It may have crashed already.
        let _ = worker.limit_memory(MEMORY_LIMIT);
        Ok(worker)
    }
}

/// The outcomes of workers that ran one after the other.
#[derive(Debug, Default)]
struct Fleet {
    crashes: usize,
    /// Clean stops that requeued tasks.
    drains: usize,
    /// The ids of the tasks that were done.
    done: BTreeSet<String>,
}

impl Fleet {
    fn count(&mut self, end: WorkerEnd) {
        let done = match end {
            WorkerEnd::Crashed(done) => {
                self.crashes += 1;
                done
            }
            WorkerEnd::Stopped(stopped) => {
                self.drains += usize::from(stopped.receipt.requeued > 0);
                stopped.done
            }
        };
        self.done.extend(done.into_iter().map(|done| done.task_id));
    }

    /// Starts workers one after the other, as an orchestrator does, until all tasks are settled. With `drained`,
    /// another worker is started and stopped before each of them, and one beside it.
    async fn restart_until_done(
        env: &TestEnv,
        poison: &Poison,
        healthy: usize,
        drained: bool,
    ) -> Result<Self> {
        let mut fleet = Self::default();
        for restart in 0..10 {
            if drained {
                fleet.drain(env, poison, &format!("before-{restart}")).await?;
            }
            let worker = poison.begin(env, &format!("crashing-{restart}")).await?;
            if drained {
                fleet.drain(env, poison, &format!("beside-{restart}")).await?;
            }
            let crashed = eventually("a crash, or every task settled", async || {
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
            if !crashed {
                fleet.count(WorkerEnd::Stopped(worker.stop().await?));
                return Ok(fleet);
            }
            fleet.count(worker.ended().await?);
        }
        anyhow::bail!("not done after ten workers: {fleet:?}")
    }

    /// Starts a worker and stops it as soon as it holds tasks or none are left. The poison may crash it first.
    async fn drain(&mut self, env: &TestEnv, poison: &Poison, name: &str) -> Result<()> {
        let worker = poison.begin(env, name).await?;
        eventually("the worker holds a task", async || {
            let over = worker.has_ended() || env.client().ready("garenne.tasks.fast").await? == 0;
            let holds = over || worker.metric("garenne_deliveries_total", &[]).await? > 0.0;
            Ok(Seen::when(holds, "no task"))
        })
        .await?;
        // It may have crashed already.
        let _ = worker.signal(Signal::QUIT);
        self.count(worker.ended().await?);
        Ok(())
    }
}

async fn check_poison(poison: Poison, half: usize, drained: bool) -> Result<()> {
    let Poison { kind, payload, healthy: (healthy, sleep), plan } = &poison;
    // Long enough to stop a worker while another one runs tasks.
    let sleep = sleep(if drained { 10 } else { 1 });
    let env = TestEnv::new().await?;
    // Declares the topology.
    plan(&env, "first")?.start().await?.stop().await?;
    let mut ids = env.publish(healthy, &sleep, "early", half).await?;
    env.publish(kind, payload, "poison", 1).await?;
    ids.extend(env.publish(healthy, &sleep, "late", half).await?);
    let fleet = Fleet::restart_until_done(&env, &poison, ids.len(), drained).await?;
    println!("{kind}: {} crashes, {} drains, {} done", fleet.crashes, fleet.drains, fleet.done.len());
    ensure!((2..=4).contains(&fleet.crashes), "{} workers crashed", fleet.crashes);
    ensure!(!drained || fleet.drains > 0, "no stop requeued a task: {fleet:?}");
    assert_eq!(fleet.done, ids.into_iter().collect());
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!((dead.id(), dead.text("garenne-reason").as_str()), ("poison-0", "poison"));
    env.until_lane("fast", 0, 0).await?;
    env.is_empty("garenne.quarantine").await
}

#[tokio::test]
async fn poison_that_aborts_is_the_only_dead_letter() -> Result<()> {
    check_poison(Poison::of("bench.abort", json!({})), healthy(500), false).await
}

#[tokio::test]
async fn poison_that_overflows_the_stack_is_the_only_dead_letter() -> Result<()> {
    check_poison(Poison::of("bench.overflow", json!({})), healthy(100), false).await
}

#[tokio::test]
async fn poison_that_exhausts_memory_is_the_only_dead_letter() -> Result<()> {
    check_poison(Poison::of("bench.hoard", json!({"mib": 4096})), healthy(100), false).await
}

/// Brokers before 4.3 count requeues as returns. They must neither make other tasks dead letters nor hide the poison.
#[tokio::test]
async fn poison_is_the_only_dead_letter_with_drains_in_between() -> Result<()> {
    check_poison(Poison::of("bench.abort", json!({})), healthy(200), true).await
}

/// The program of a handler kills its worker. Tasks that the same program runs meanwhile end.
#[tokio::test]
async fn poison_of_a_program_is_the_only_dead_letter() -> Result<()> {
    check_poison(Poison::of_program(), healthy(100), false).await
}
