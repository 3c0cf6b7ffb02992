//! No-op tasks of 200 B on Garenne's worker and on workers of other libraries.
//!
//! `./dev bench worker [--rounds N] [--only QUEUE/PREFETCH] [--among NAME,…] [--tasks N] [--before PROGRAM]
//! [--python] [--json FILE]`; `--before` is an older `garenne-worker` to compare with, and `--python` adds Celery and
//! Dramatiq.

use anyhow::Result;
use garenne_bench::{Rows, number, option};

use crate::{
    broker::{Broker, LANE, QueueType},
    garenne::{Build, Garenne},
    race::{Contestant, Tasks, Who, race},
    rival::python,
};

/// The reference and Garenne run right after each other, so that their pairs are comparable.
const CONTESTANTS: [Contestant; 13] = [
    rival("raw-lapin", "raw-lapin", &[], Tasks::Garenne),
    ours("garenne", Build::Now, None),
    ours("garenne-before", Build::Before, None),
    ours("garenne-results", Build::Now, Some("results")),
    Contestant { name: "garenne-celery", who: Who::CeleryOnGarenne },
    Contestant { name: "garenne-python", who: Who::PythonOnGarenne },
    Contestant { name: "garenne-http", who: Who::HttpOnGarenne },
    Contestant { name: "bare-http", who: Who::BareHttp },
    rival("raw-lapin-multiple", "raw-lapin", &["--multiple"], Tasks::Garenne),
    rival("apalis", "apalis", &[], Tasks::Garenne),
    rival("rusty-celery", "rusty-celery", &[], Tasks::Celery),
    rival("celery-prefork", "celery_rival.py", &[], Tasks::Celery),
    rival("dramatiq", "dramatiq_rival.py", &[], Tasks::Dramatiq),
];

const fn ours(name: &'static str, build: Build, sink: Option<&'static str>) -> Contestant {
    Contestant { name, who: Who::Garenne { build, sink, shards: 1 } }
}

const fn rival(
    name: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
    tasks: Tasks,
) -> Contestant {
    Contestant { name, who: Who::Rival { program, arguments, tasks } }
}

/// Rivals in Python get fewer tasks by this factor, because they are much slower.
const FEWER_IN_PYTHON: usize = 10;

/// Prefetch, and a number of tasks that takes a second or two.
const LOADS: [(u16, usize); 4] = [(10, 8_000), (100, 40_000), (200, 60_000), (1000, 100_000)];

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

/// Whether `--only` selects it; without the option, everything is selected.
fn wanted(kind: QueueType, prefetch: u16) -> bool {
    option("--only").is_none_or(|only| format!("{kind}/{prefetch}/").starts_with(&format!("{only}/")))
}

/// Whether a contestant takes part: `--among` selects it or is not given, and its program is available. An older build
/// needs `--before`, rivals in Python need `--python`.
fn takes_part(contestant: &Contestant) -> bool {
    let there = match contestant.who {
        Who::Garenne { build: Build::Before, .. } => option("--before").is_some(),
        Who::Rival { program, .. } if program.ends_with(".py") => python().is_some(),
        _ => true,
    };
    there && option("--among").is_none_or(|among| among.split(',').any(|name| name == contestant.name))
}

/// Declares the topology, and replaces the lane's queue by a classic queue if that type is measured.
async fn prepare(broker: &Broker, kind: QueueType) -> Result<()> {
    Garenne::declare_topology(broker, 1).await?;
    broker.declare(Tasks::Celery.queue()).await?;
    let (dramatiq, rejects) = (Tasks::Dramatiq.queue(), format!("{}.XQ", Tasks::Dramatiq.queue()));
    let arguments = [("x-dead-letter-exchange", ""), ("x-dead-letter-routing-key", &*rejects)];
    broker.declare_with(dramatiq, &arguments).await?;
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
    let contestants: Vec<_> = CONTESTANTS.into_iter().filter(takes_part).collect();
    let mut excluded: Vec<&str> = Vec::new();
    for round in 0..rounds {
        for &Contestant { name, who } in &contestants {
            if excluded.contains(&name) {
                continue;
            }
            let slow = matches!(who, Who::Rival { program, .. } if program.ends_with(".py"));
            let tasks = if slow { tasks as usize / FEWER_IN_PYTHON } else { tasks as usize };
            match race(broker, who, prefetch, (0..tasks).map(|_| who.tasks().one())).await {
                Ok(seen) => {
                    eprintln!("{under}/{name} {round}: {seen:?}");
                    seen.add_to(rows, &format!("{under}/{name}"));
                }
                // A rival that does not work with this type of queue is reported and left out.
                Err(error) if matches!(who, Who::Rival { .. }) && name != "raw-lapin" => {
                    eprintln!("{under}/{name} does not work here: {error:#}");
                    broker.purge(who.tasks().queue()).await?;
                    excluded.push(name);
                }
                Err(error) => return Err(error),
            }
        }
    }
    for Contestant { name, .. } in contestants.iter().filter(|it| it.name != "garenne") {
        compare(rows, &under, "garenne", name);
    }
    compare(rows, &under, "garenne-python", "celery-prefork");
    compare(rows, &under, "garenne-http", "bare-http");
    Ok(())
}

/// Adds the ratios of one contestant to another one, if both took part.
fn compare(rows: &mut Rows, under: &str, one: &str, other: &str) {
    for what in ["tasks_per_s", "cpu_us", "own_cpu_us", "rss_mb", "pss_mb"] {
        let (ours, theirs) = (format!("{under}/{one}/{what}"), format!("{under}/{other}/{what}"));
        rows.compare(format!("{under}/{one}-to-{other}/{what}"), &ours, &theirs);
    }
}
