//! Every worker of a fleet is restarted, one after the other, again and again, while tasks flow; or most
//! of the fleet goes at once, and comes again: nobody is condemned, quarantined or charged with an attempt,
//! and no task runs twice.

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

/// Tasks of a batch, and how many wait with the broker before another is published.
const BATCH: usize = 100;
const BACKLOG: usize = 300;

/// How often each worker is restarted; `./dev test --full` takes as many as the promise says.
fn rounds() -> usize {
    if suite::is_full() { 25 } else { 4 }
}

/// How often four of five workers go and come.
fn scalings() -> usize {
    if suite::is_full() { 20 } else { 3 }
}

fn plan(env: &TestEnv, worker: usize, mode: &str) -> Result<WorkerPlan> {
    let plan = env.worker(&format!("worker-{worker}"))?.stdout();
    let plan = plan.lane("fast:prefetch=50,concurrency=4..4").option("--shutdown-mode", mode);
    Ok(plan.option("--shutdown-timeout", "100ms"))
}

/// Publishes for as long as the restarts go on; the broker always has more than the fleet can hold.
async fn keep_busy(env: &TestEnv, over: CancellationToken) -> Result<BTreeSet<String>> {
    let mut ids = BTreeSet::new();
    for batch in 0.. {
        eventually("the fleet works", async || {
            let ready = env.client().ready("garenne.tasks.fast").await?;
            Ok(Seen::when(over.is_cancelled() || ready <= BACKLOG, ready))
        })
        .await?;
        if over.is_cancelled() {
            break;
        }
        // One in ten is long enough to be interrupted by whoever does not wait for it.
        let (long, short) = (json!({"ms": 300}), json!({"ms": 5}));
        ids.extend(env.publish("bench.sleep", &long, &format!("long-{batch}"), BATCH / 10).await?);
        ids.extend(env.publish("bench.sleep", &short, &format!("short-{batch}"), BATCH).await?);
    }
    Ok(ids)
}

/// The sum of what all that stopped did and say that they did.
#[derive(Debug, Default)]
struct Account {
    done: BTreeSet<String>,
    acked: u64,
    requeued: u64,
    stops: usize,
}

impl Account {
    fn add(&mut self, Stopped { code, receipt, done }: Stopped) -> Result<()> {
        let other = receipt.retried + receipt.dead + receipt.quarantined;
        let lost = receipt.lost_settlements + receipt.abandoned;
        ensure!((code, other + lost) == (0, 0), "{receipt:?}");
        ensure!(receipt.acked as usize == done.len(), "{} done, {receipt:?}", done.len());
        for done in done {
            ensure!(done.attempt == 1, "a restart was counted as an attempt: {done:?}");
            let id = done.task_id.clone();
            ensure!(self.done.insert(done.task_id), "{id} was acked and came back");
        }
        self.acked += receipt.acked;
        self.requeued += receipt.requeued;
        self.stops += 1;
        Ok(())
    }
}

async fn restart_all(env: &TestEnv, account: &mut Account) -> Result<Vec<Worker>> {
    let modes = ["hard", "soft-timeout", "soft", "light"];
    let mut fleet = Vec::new();
    for (worker, mode) in modes.into_iter().take(3).enumerate() {
        fleet.push(plan(env, worker, mode)?.start().await?);
    }
    for round in 1..=rounds() {
        for worker in 0..3 {
            account.add(fleet.remove(0).stop().await?)?;
            fleet.push(plan(env, worker, modes[(round + worker) % modes.len()])?.start().await?);
        }
    }
    Ok(fleet)
}

/// From five workers to one and back, all at once, as a scaler does it.
async fn scale(env: &TestEnv, account: &mut Account) -> Result<Vec<Worker>> {
    let start = async |workers: Range<usize>| {
        let plans = workers.map(|worker| plan(env, worker, "soft-timeout")).collect::<Result<Vec<_>>>()?;
        try_join_all(plans.into_iter().map(WorkerPlan::start)).await
    };
    let mut fleet = start(0..5).await?;
    for _ in 0..scalings() {
        for stopped in try_join_all(fleet.drain(1..).map(Worker::stop)).await? {
            account.add(stopped)?;
        }
        fleet.extend(start(1..5).await?);
    }
    Ok(fleet)
}

/// Keeps the fleet busy while `change` stops and starts its workers, and then looks at what became of
/// every task.
async fn costs_nothing(
    env: &TestEnv,
    change: impl AsyncFnOnce(&mut Account) -> Result<Vec<Worker>>,
) -> Result<()> {
    // Makes the topology.
    plan(env, 0, "soft")?.start().await?.stop().await?;
    let (over, mut account) = (CancellationToken::new(), Account::default());
    let began = Instant::now();
    let changing = async {
        let fleet = change(&mut account).await;
        over.cancel();
        fleet
    };
    let (fleet, published) = tokio::join!(changing, keep_busy(env, over.clone()));
    let (fleet, published) = (fleet?, published?);
    let (stops, handed_back) = (account.stops, account.requeued);
    // By what the workers say: the broker's statistics, which lag, may still be those of the beginning.
    eventually("everything is done", async || {
        let mut done = account.done.len();
        for worker in &fleet {
            done += worker.done()?.len();
        }
        Ok(Seen::when(done == published.len(), format_args!("{done} of {}", published.len())))
    })
    .await?;
    for worker in fleet {
        account.add(worker.stop().await?)?;
    }
    println!(
        "RabbitMQ {}: {stops} stops in {:.0} s, {} tasks, {handed_back} handed back",
        env.vhost().broker().version(),
        began.elapsed().as_secs_f64(),
        published.len()
    );
    assert!(handed_back > 0, "no stop found anything to hand back");
    let missing: Vec<_> = published.difference(&account.done).collect();
    assert_eq!(missing, Vec::<&String>::new(), "{} of {}: {account:?}", missing.len(), published.len());
    assert_eq!(account.acked as usize, published.len());
    for queue in ["garenne.dead", "garenne.quarantine", "garenne.unroutable"] {
        env.is_empty(queue).await?;
        let path = ["queues", env.vhost().name(), queue];
        let status: Value = env.vhost().broker().management().get(&path).await?;
        let came = status["message_stats"]["publish"].as_u64().unwrap_or(0);
        assert_eq!(came, 0, "{queue} was touched: {status}");
    }
    Ok(())
}

#[tokio::test]
async fn rolling_restarts_of_every_worker_cost_nothing() -> Result<()> {
    let env = TestEnv::new().await?;
    costs_nothing(&env, async |account| restart_all(&env, account).await).await
}

#[tokio::test]
async fn scaling_in_and_out_costs_nothing() -> Result<()> {
    let env = TestEnv::new().await?;
    costs_nothing(&env, async |account| scale(&env, account).await).await
}
