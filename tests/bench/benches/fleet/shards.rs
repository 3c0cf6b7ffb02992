//! What a lane with several queues costs a worker, and what it brings: the same no-op tasks through one queue
//! and through four, in turns, each on a virtual host of its own.
//!
//! `./dev bench shards [--rounds N] [--tasks N] [--json FILE]`

use anyhow::Result;
use garenne_bench::{Rows, number};

use crate::{
    broker::{Broker, QueueType},
    garenne::{Build, Garenne},
    race::{Who, race},
};

const SHARDS: [u16; 2] = [1, 4];
const PREFETCH: u16 = 1000;

pub(crate) async fn run(rows: &mut Rows) -> Result<()> {
    let rounds = number("--rounds", 10).map_err(anyhow::Error::msg)?;
    let tasks = number("--tasks", 60_000).map_err(anyhow::Error::msg)?;
    rows.version("garenne", Garenne::version().await?);
    let mut brokers = Vec::new();
    for shards in SHARDS {
        let broker = Broker::fresh_at(QueueType::Quorum, &format!("garenne-bench-shards-{shards}")).await?;
        rows.version("rabbitmq", broker.version().await?);
        Garenne::declare_topology(&broker, shards).await?;
        brokers.push((shards, broker));
    }
    for round in 0..rounds {
        for (shards, broker) in &brokers {
            let who = Who::Garenne { build: Build::Now, sink: None, shards: *shards };
            let seen = race(broker, who, PREFETCH, (0..tasks).map(|_| who.tasks().one())).await?;
            eprintln!("shards/{shards} {round}: {seen:?}");
            seen.add_to(rows, &format!("shards/{shards}"));
        }
    }
    for what in ["tasks_per_s", "cpu_us", "rss_mb"] {
        let name = |shards| format!("shards/{shards}/{what}");
        rows.compare(format!("shards/4-to-1/{what}"), &name(4), &name(1));
    }
    for (_, broker) in brokers {
        broker.clear().await?;
    }
    Ok(())
}
