//! How the cost of a task grows with the number of workers, the prefetch, the size of a task, the number of kinds, layers,
//! and the share of tasks that fail.
//!
//! `./dev bench growth [--rounds N] [--only PART] [--json FILE]`

use std::time::{Duration, Instant};

use anyhow::Result;
use garenne_bench::{Rows, Usage, number, option};

use crate::{
    broker::{Broker, LANE, QueueType, body, lane_queues, task},
    garenne::{Build, Garenne},
    race::{Who, race},
};

const PROCESSES: [usize; 4] = [1, 2, 4, 8];
const PREFETCHES: [u16; 6] = [1, 10, 50, 200, 1000, 2000];
/// Bytes of a body.
const SIZES: [usize; 5] = [100, 1_000, 10_000, 100_000, 1_000_000];
const KINDS: [u32; 4] = [1, 10, 100, 1_000];
/// Percentages of tasks that fail once, or that have no handler.
const SHARES: [u32; 4] = [0, 1, 10, 50];
/// A handler without layers, and with two that do nothing.
const LAYERS: [(&str, Build); 2] = [("none", Build::ManyKinds(1)), ("two", Build::TwoLayers)];
const PREFETCH: u16 = 200;
/// Several times smaller than the number of tasks of the largest size.
const PREFETCH_BY_SIZE: u16 = 50;
const OURS: Who = Who::Garenne { build: Build::Now, sink: None, shards: 1 };

pub(crate) async fn run(rows: &mut Rows) -> Result<()> {
    let rounds = number("--rounds", 3).map_err(anyhow::Error::msg)?;
    let wanted = |part: &str| option("--only").is_none_or(|only| only == part);
    let broker = Broker::fresh(QueueType::Quorum).await?;
    rows.version("garenne", Garenne::version().await?);
    rows.version("rabbitmq", broker.version().await?);
    Garenne::declare_topology(&broker, 1).await?;
    for _ in 0..rounds {
        for processes in PROCESSES.into_iter().filter(|_| wanted("processes")) {
            together(&broker, processes, rows).await?;
        }
        for prefetch in PREFETCHES.into_iter().filter(|_| wanted("prefetch")) {
            // A number of tasks that takes a second or two.
            let tasks = (u32::from(prefetch) * 400).clamp(2_000, 60_000);
            let bodies = (0..tasks).map(|_| task("bench.noop", body(200)));
            let seen = race(&broker, OURS, prefetch, bodies).await?;
            seen.add_to(rows, &format!("growth/prefetch/{prefetch}"));
        }
        for size in SIZES.into_iter().filter(|_| wanted("size")) {
            let tasks = (100_000_000 / size).clamp(300, 40_000);
            let bodies = (0..tasks).map(|_| task("bench.noop", body(size)));
            let seen = race(&broker, OURS, PREFETCH_BY_SIZE, bodies).await?;
            seen.add_to(rows, &format!("growth/size/{size}"));
        }
        for kinds in KINDS.into_iter().filter(|_| wanted("kinds")) {
            let who = Who::Garenne { build: Build::ManyKinds(kinds), sink: None, shards: 1 };
            let bodies = (0..40_000).map(|n| task(&format!("many.{}", n % kinds), body(200)));
            let seen = race(&broker, who, PREFETCH, bodies).await?;
            seen.add_to(rows, &format!("growth/kinds/{kinds}"));
        }
        for (name, build) in LAYERS.into_iter().filter(|_| wanted("layers")) {
            let who = Who::Garenne { build, sink: None, shards: 1 };
            let seen = race(&broker, who, PREFETCH, (0..40_000).map(|_| task("many.0", body(200)))).await?;
            seen.add_to(rows, &format!("growth/layers/{name}"));
        }
        for share in SHARES.into_iter().filter(|_| wanted("failures")) {
            for (way, kind, payload) in
                [("retried", "bench.fail", br#"{"times":1}"#.to_vec()), ("dead", "bench.unknown", body(200))]
            {
                failing(&broker, way, (kind, &payload), share, rows).await?;
            }
        }
    }
    for what in ["tasks_per_s", "cpu_us"] {
        let of = |name: &str| format!("growth/layers/{name}/{what}");
        rows.compare(of("two-to-none"), &of("two"), &of("none"));
    }
    broker.clear().await
}

/// Measures several workers on one queue.
async fn together(broker: &Broker, processes: usize, rows: &mut Rows) -> Result<()> {
    const TASKS: u32 = 60_000;
    broker.fill(LANE, (0..TASKS).map(|_| task("bench.noop", body(200)))).await?;
    let mut workers = Vec::new();
    for _ in 0..processes {
        let lane = ["--lane".to_owned(), format!("fast:prefetch={PREFETCH}")];
        // The measurement begins when all workers are connected.
        workers.push(Garenne::start_quiet(broker.amqp_url(), &lane).await?);
    }
    let usage = || workers.iter().map(|worker| worker.usage().cpu).sum::<Duration>();
    let (begun, before) = (Instant::now(), usage());
    workers.iter().try_for_each(Garenne::resume)?;
    broker.until(&lane_queues(1), Duration::from_millis(5), |ready| ready == 0).await?;
    loop {
        let mut settled = 0;
        for worker in &workers {
            settled += worker.settled().await?;
        }
        if settled >= TASKS.into() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let (took, cpu) = (begun.elapsed().as_secs_f64(), usage().saturating_sub(before).as_secs_f64());
    let name = format!("growth/processes/{processes}");
    rows.add(format!("{name}/tasks_per_s"), "tasks/s", f64::from(TASKS) / took);
    rows.add(format!("{name}/cpu_us"), "us/task", cpu * 1e6 / f64::from(TASKS));
    rows.add(format!("{name}/rss_mb"), "MB", workers.iter().map(|worker| worker.usage().rss_mb).sum());
    for worker in workers {
        worker.stop().await?;
    }
    Ok(())
}

/// Measures a share of failing tasks among others. A task that is retried is settled twice.
async fn failing(
    broker: &Broker,
    way: &str,
    (kind, payload): (&str, &[u8]),
    share: u32,
    rows: &mut Rows,
) -> Result<()> {
    const TASKS: u32 = 10_000;
    let fails = |n: u32| n % 100 < share;
    let tasks = (0..TASKS).map(|n| match fails(n) {
        true => task(kind, payload.to_vec()),
        false => task("bench.noop", body(200)),
    });
    broker.fill(LANE, tasks).await?;
    let failed = (0..TASKS).filter(|n| fails(*n)).count() as u64;
    let settlements = u64::from(TASKS) + if way == "retried" { failed } else { 0 };
    let lane = ["--lane".to_owned(), format!("fast:prefetch={PREFETCH}")];
    let worker = Garenne::start(Build::Now, broker.amqp_url(), &lane).await?;
    broker.until(&lane_queues(1), Duration::from_millis(1), |ready| ready < TASKS).await?;
    let before: Usage = worker.usage();
    // Retried tasks return after seconds. The poll interval is long, so that polling does not affect the measurement.
    worker.until_settled(settlements, Duration::from_millis(250)).await?;
    let cpu = worker.usage().cpu.saturating_sub(before.cpu).as_secs_f64();
    rows.add(format!("growth/{way}/{share}-percent/cpu_us"), "us/task", cpu * 1e6 / f64::from(TASKS));
    worker.stop().await
}
