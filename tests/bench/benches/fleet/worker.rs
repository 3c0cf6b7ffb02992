//! A no-op task of 200 B through Garenne and through others' workers.
//!
//! `./dev bench worker [--rounds N] [--only QUEUE/PREFETCH] [--tasks N] [--json FILE]`

use anyhow::Result;
use garenne_bench::{Rows, number, option};

use crate::{
    broker::{Broker, LANE, QueueType},
    garenne::Garenne,
    race::{Contestant, Tasks, Who, race},
};

/// The reference first, then us, so that both stand as close as can be.
const CONTESTANTS: [Contestant; 4] = [
    Contestant {
        name: "raw-lapin",
        who: Who::Rival { program: "raw-lapin", arguments: &[], tasks: Tasks::Same },
    },
    Contestant { name: "garenne", who: Who::Garenne { sink: None } },
    Contestant { name: "garenne-results", who: Who::Garenne { sink: Some("results") } },
    Contestant {
        name: "raw-lapin-multiple",
        who: Who::Rival { program: "raw-lapin", arguments: &["--multiple"], tasks: Tasks::Same },
    },
];

/// Prefetch, and as many tasks as take a second or two.
const LOADS: [(u16, usize); 3] = [(10, 8_000), (100, 40_000), (1000, 100_000)];

pub(crate) async fn run(rows: &mut Rows) -> Result<()> {
    let rounds = number("--rounds", 3).map_err(anyhow::Error::msg)?;
    rows.version("garenne", Garenne::version().await?);
    for kind in [QueueType::Quorum, QueueType::Classic] {
        let loads: Vec<_> = LOADS.into_iter().filter(|(prefetch, _)| wanted(kind, *prefetch)).collect();
        if loads.is_empty() {
            continue;
        }
        let broker = Broker::fresh(kind).await?;
        rows.version("rabbitmq", broker.version().await?);
        prepare(&broker, kind).await?;
        for (prefetch, tasks) in loads {
            let tasks = number("--tasks", tasks).map_err(anyhow::Error::msg)?;
            contest(&broker, kind, prefetch, u32::try_from(tasks)?, rounds, rows).await?;
        }
        broker.clear().await?;
    }
    Ok(())
}

/// Whether `--only` names it; everything where that is not given.
fn wanted(kind: QueueType, prefetch: u16) -> bool {
    option("--only").is_none_or(|only| format!("{kind}/{prefetch}/").starts_with(&format!("{only}/")))
}

/// Has a worker make the topology, and puts a classic queue in the place of the lane's where one is asked for.
async fn prepare(broker: &Broker, kind: QueueType) -> Result<()> {
    let worker = Garenne::start(broker.amqp_url(), &[]).await?;
    worker.ready().await?;
    worker.stop().await?;
    if kind == QueueType::Classic {
        broker.declare(LANE).await?;
    }
    Ok(())
}

async fn contest(
    broker: &Broker,
    kind: QueueType,
    prefetch: u16,
    tasks: u32,
    rounds: usize,
    rows: &mut Rows,
) -> Result<()> {
    let under = format!("worker/{kind}/{prefetch}");
    for round in 0..rounds {
        for Contestant { name, who } in CONTESTANTS {
            let seen = race(broker, who, prefetch, tasks).await?;
            eprintln!("{under}/{name} {round}: {seen:?}");
            seen.add_to(rows, &format!("{under}/{name}"));
        }
    }
    for Contestant { name, .. } in CONTESTANTS.iter().filter(|it| it.name != "garenne") {
        for what in ["tasks_per_s", "cpu_us", "rss_mb"] {
            let (ours, theirs) = (format!("{under}/garenne/{what}"), format!("{under}/{name}/{what}"));
            rows.compare(format!("{under}/garenne-to-{name}/{what}"), &ours, &theirs);
        }
    }
    Ok(())
}
