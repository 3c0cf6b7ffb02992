//! Workers are restarted repeatedly while tasks are published, one after the other or most of the fleet at once. No
//! task becomes a dead letter, enters the quarantine, spends an attempt, or runs twice.

use std::{collections::BTreeSet, ops::Range, time::Instant};

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use garenne_tests::harness::{
    suite,
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::{Stopped, Worker, WorkerPlan},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Tasks that are published at a time.
const CHUNK: usize = 100;
/// The next tasks are published when at most this many are ready in the queue.
const BACKLOG: usize = 300;

/// How often each worker is restarted; `./dev test --full` runs the number that the documentation states.
fn rounds() -> usize {
    if suite::is_full() { 25 } else { 4 }
}

/// How often four of five workers are stopped and started.
fn scalings() -> usize {
    if suite::is_full() { 20 } else { 3 }
}

fn plan(env: &TestEnv, worker: usize, mode: &str) -> Result<WorkerPlan> {
    let plan = env.worker(&format!("worker-{worker}"))?.stdout();
    let plan = plan.lane("fast:prefetch=50,concurrency=4..4").option("--shutdown-mode", mode);
    // A stalled machine must not end the settlements of a stop.
    Ok(plan.option("--shutdown-timeout", "100ms").option("--hard-grace", "20s"))
}

/// Publishes tasks until `over`, so that the broker always has more than the workers can hold.
async fn keep_busy(env: &TestEnv, over: CancellationToken) -> Result<BTreeSet<String>> {
    let mut ids = BTreeSet::new();
    for chunk in 0.. {
        eventually("a shorter queue", async || {
            let ready = env.client().ready("garenne.tasks.fast").await?;
            Ok(Seen::when(over.is_cancelled() || ready <= BACKLOG, ready))
        })
        .await?;
        if over.is_cancelled() {
            break;
        }
        // One in ten runs long enough to be interrupted by a stop that does not wait for it.
        let (long, short) = (json!({"ms": 300}), json!({"ms": 5}));
        ids.extend(env.publish("bench.sleep", &long, &format!("long-{chunk}"), CHUNK / 10).await?);
        ids.extend(env.publish("bench.sleep", &short, &format!("short-{chunk}"), CHUNK).await?);
    }
    Ok(ids)
}

/// The totals of all stopped workers: the tasks that they did, and their receipts.
#[derive(Debug, Default)]
struct Totals {
    done: BTreeSet<String>,
    acked: u64,
    requeued: u64,
    stops: usize,
}

impl Totals {
    fn add(&mut self, Stopped { code, receipt, done }: Stopped) -> Result<()> {
        let other = receipt.retried + receipt.dead + receipt.quarantined;
        let lost = receipt.lost_settlements + receipt.abandoned;
        ensure!((code, other + lost) == (0, 0), "{receipt:?}");
        ensure!(receipt.acked as usize == done.len(), "{} done, {receipt:?}", done.len());
        for done in done {
            ensure!(done.attempt == 1, "a restart was counted as an attempt: {done:?}");
            let id = done.task_id.clone();
            ensure!(self.done.insert(done.task_id), "{id} was acked and redelivered");
        }
        self.acked += receipt.acked;
        self.requeued += receipt.requeued;
        self.stops += 1;
        Ok(())
    }
}

async fn restart_all(env: &TestEnv, totals: &mut Totals) -> Result<Vec<Worker>> {
    let modes = ["hard", "soft-timeout", "soft", "light"];
    let mut fleet = Vec::new();
    for (worker, mode) in modes.into_iter().take(3).enumerate() {
        fleet.push(plan(env, worker, mode)?.start().await?);
    }
    for round in 1..=rounds() {
        for worker in 0..3 {
            totals.add(fleet.remove(0).stop().await?)?;
            fleet.push(plan(env, worker, modes[(round + worker) % modes.len()])?.start().await?);
        }
    }
    Ok(fleet)
}

/// Scales from five workers to one and back, all at once, as an autoscaler does.
async fn scale(env: &TestEnv, totals: &mut Totals) -> Result<Vec<Worker>> {
    let start = async |workers: Range<usize>| {
        let plans = workers.map(|worker| plan(env, worker, "soft-timeout")).collect::<Result<Vec<_>>>()?;
        try_join_all(plans.into_iter().map(WorkerPlan::start)).await
    };
    let mut fleet = start(0..5).await?;
    for _ in 0..scalings() {
        for stopped in try_join_all(fleet.drain(1..).map(Worker::stop)).await? {
            totals.add(stopped)?;
        }
        fleet.extend(start(1..5).await?);
    }
    Ok(fleet)
}

/// Keeps the workers busy while `change` stops and starts them, and then checks the outcome of every task.
async fn check_restarts(
    env: &TestEnv,
    change: impl AsyncFnOnce(&mut Totals) -> Result<Vec<Worker>>,
) -> Result<()> {
    // Declares the topology.
    plan(env, 0, "soft")?.start().await?.stop().await?;
    let (over, mut totals) = (CancellationToken::new(), Totals::default());
    let began = Instant::now();
    let changing = async {
        let fleet = change(&mut totals).await;
        over.cancel();
        fleet
    };
    let (fleet, published) = tokio::join!(changing, keep_busy(env, over.clone()));
    let (fleet, published) = (fleet?, published?);
    let (stops, requeued) = (totals.stops, totals.requeued);
    // Counted from the workers' output, because the broker's statistics lag.
    eventually("everything is done", async || {
        let mut done = totals.done.len();
        for worker in &fleet {
            done += worker.done()?.len();
        }
        Ok(Seen::when(done == published.len(), format_args!("{done} of {}", published.len())))
    })
    .await?;
    for worker in fleet {
        totals.add(worker.stop().await?)?;
    }
    println!(
        "RabbitMQ {}: {stops} stops in {:.0} s, {} tasks, {requeued} requeued",
        env.vhost().broker().version(),
        began.elapsed().as_secs_f64(),
        published.len()
    );
    assert!(requeued > 0, "no stop requeued a task");
    let missing: Vec<_> = published.difference(&totals.done).collect();
    assert_eq!(missing, Vec::<&String>::new(), "{} of {}: {totals:?}", missing.len(), published.len());
    assert_eq!(totals.acked as usize, published.len());
    for queue in ["garenne.dead", "garenne.quarantine", "garenne.unroutable"] {
        env.is_empty(queue).await?;
        let path = ["queues", env.vhost().name(), queue];
        let status: Value = env.vhost().broker().management().get(&path).await?;
        let published = status["message_stats"]["publish"].as_u64().unwrap_or(0);
        assert_eq!(published, 0, "{queue} received messages: {status}");
    }
    Ok(())
}

#[tokio::test]
async fn rolling_restarts_lose_and_repeat_no_task() -> Result<()> {
    let env = TestEnv::new().await?;
    check_restarts(&env, async |totals| restart_all(&env, totals).await).await
}

#[tokio::test]
async fn scaling_in_and_out_loses_and_repeats_no_task() -> Result<()> {
    let env = TestEnv::new().await?;
    check_restarts(&env, async |totals| scale(&env, totals).await).await
}
