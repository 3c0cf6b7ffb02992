//! Cost and benefit of a lane with several queues: no-op tasks with a key through one queue and through four, in turns,
//! each on its own virtual host. Tasks without a key through one queue show the cost of reading the key.
//!
//! `./dev bench shards [--rounds N] [--tasks N] [--before PROGRAM] [--json FILE]`; `--before` is an older
//! `garenne-worker` to compare with.

use anyhow::Result;
use garenne_bench::{Rows, number, option};

use crate::{
    broker::{Broker, QueueType},
    garenne::{Build, Garenne},
    race::{Tasks, Who, race},
};

/// Name, number of queues, format of the tasks, and worker.
const CONTESTANTS: [(&str, u16, Tasks, Build); 4] = [
    ("1-unkeyed", 1, Tasks::Garenne, Build::Now),
    ("1", 1, Tasks::Sharded, Build::Now),
    ("4", 4, Tasks::Sharded, Build::Now),
    ("4-before", 4, Tasks::Sharded, Build::Before),
];
/// The compared contestants, with the name of the ratio.
const PAIRS: [(&str, &str, &str); 3] =
    [("4-to-1", "4", "1"), ("key-to-no-key", "1", "1-unkeyed"), ("4-to-before", "4", "4-before")];
const PREFETCH: u16 = 1000;

pub(crate) async fn run(rows: &mut Rows) -> Result<()> {
    let rounds = number("--rounds", 10).map_err(anyhow::Error::msg)?;
    let tasks = number("--tasks", 60_000).map_err(anyhow::Error::msg)?;
    rows.version("garenne", Garenne::version().await?);
    let mut contestants = Vec::new();
    for (name, shards, written, build) in CONTESTANTS {
        if build == Build::Before && option("--before").is_none() {
            continue;
        }
        let broker = Broker::fresh_at(QueueType::Quorum, &format!("garenne-bench-shards-{name}")).await?;
        rows.version("rabbitmq", broker.version().await?);
        Garenne::declare_topology(&broker, shards).await?;
        let who = Who::Garenne { build, sink: None, shards };
        contestants.push((name, who, written, broker));
    }
    for round in 0..rounds {
        for (name, who, written, broker) in &contestants {
            let seen = race(broker, *who, PREFETCH, (0..tasks).map(|_| written.one())).await?;
            eprintln!("shards/{name} {round}: {seen:?}");
            seen.add_to(rows, &format!("shards/{name}"));
        }
    }
    for what in ["tasks_per_s", "cpu_us", "rss_mb"] {
        for (name, one, other) in PAIRS {
            let row = |contestant| format!("shards/{contestant}/{what}");
            rows.compare(format!("shards/{name}/{what}"), &row(one), &row(other));
        }
    }
    for (_, _, _, broker) in contestants {
        broker.clear().await?;
    }
    Ok(())
}
