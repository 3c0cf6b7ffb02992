//! The memory of a worker: idle, and for each thousand messages that it holds.
//!
//! `./dev bench memory [--rounds N] [--before PROGRAM] [--json FILE]`

use std::time::Duration;

use anyhow::Result;
use garenne_bench::{Rows, number};

use crate::{
    broker::{Broker, LANE, QueueType, body, lane_queues, task},
    garenne::{Build, Garenne},
};

/// Numbers of held messages.
const HELD: [u32; 2] = [1000, 2000];
/// How long a worker is idle before it is measured.
const SETTLED: Duration = Duration::from_secs(2);

pub(crate) async fn run(rows: &mut Rows) -> Result<()> {
    let rounds = number("--rounds", 5).map_err(anyhow::Error::msg)?;
    let broker = Broker::fresh(QueueType::Quorum).await?;
    rows.version("garenne", Garenne::version().await?);
    rows.version("rabbitmq", broker.version().await?);
    Garenne::declare_topology(&broker, 1).await?;
    for _ in 0..rounds {
        for (build, name) in Build::compared("memory") {
            measure(&broker, build, &name, rows).await?;
        }
    }
    broker.clear().await
}

async fn measure(broker: &Broker, build: Build, name: &str, rows: &mut Rows) -> Result<()> {
    let worker = Garenne::start(build, broker.amqp_url(), &[]).await?;
    worker.ready().await?;
    tokio::time::sleep(SETTLED).await;
    rows.add(format!("{name}/idle_mb"), "MB", worker.usage().rss_mb);
    worker.stop().await?;
    let mut occupied = Vec::new();
    for held in HELD {
        occupied.push(holding(broker, build, held).await?);
        rows.add(format!("{name}/holding-{held}_mb"), "MB", occupied[occupied.len() - 1]);
    }
    // The difference of two workers that hold messages, so that the cost of the first message does not count.
    rows.add(format!("{name}/per-1000-prefetched_mb"), "MB", occupied[1] - occupied[0]);
    Ok(())
}

/// The resident memory of a worker that holds this number of tasks of 200 B, one of which runs.
async fn holding(broker: &Broker, build: Build, held: u32) -> Result<f64> {
    let waiting = (1..held).map(|_| task("bench.noop", body(200)));
    let first = std::iter::once(task("bench.sleep", br#"{"ms":600000}"#.to_vec()));
    broker.fill(LANE, first.chain(waiting)).await?;
    let lane = format!("fast:prefetch={held},concurrency=1..1");
    let worker = Garenne::start(build, broker.amqp_url(), &["--lane".to_owned(), lane]).await?;
    worker.until_holds(held.into()).await?;
    tokio::time::sleep(SETTLED).await;
    let occupied = worker.usage().rss_mb;
    worker.kill().await?;
    // The broker requeues them when the connection is closed.
    broker.until(&lane_queues(1), Duration::from_millis(20), |ready| ready == held).await?;
    broker.purge(LANE).await?;
    Ok(occupied)
}
