//! The cost of a task on the pool, compared with channels and spawned tasks.
//!
//! `cargo bench -p garenne-pool --bench pool -- [--json FILE] [--rounds N] [--only PART]`; PART is part of
//! the names to measure.

#[path = "pool/fair.rs"]
mod fair;
#[path = "pool/harness.rs"]
mod harness;
#[path = "pool/ours.rs"]
mod ours;
#[path = "pool/peers.rs"]
mod peers;

use std::{io, sync::Arc};

use garenne_bench::{Rows, number, option};
use garenne_pool::Run;
use tokio::runtime::{Builder, Runtime};

use harness::{Contestant, compete};
use ours::{Load, Submit};

/// Tasks that are submitted before waiting for any of them.
const GROUP: u64 = 1024;
/// Groups in one measured run.
const GROUPS: u64 = 64;
const TASKS: u64 = GROUP * GROUPS;
const TRIPS: u64 = 20_000;

fn runtime() -> Arc<Runtime> {
    Arc::new(Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime"))
}

fn per_task(rounds: usize, only: &str, rows: &mut Rows) {
    let runtime = runtime();
    let long = Run::Long { deadline: None };
    let mut contestants = Vec::new();
    let loads = [
        ("short/empty", Run::Short, Load::Empty),
        ("short/factorial50", Run::Short, Load::Factorial(50)),
        ("long/empty", long, Load::Empty),
    ];
    for (name, run, load) in loads {
        for (suffix, observed) in [("", false), ("/with-metrics", true)] {
            let pool = ours::start(&runtime, GROUP as usize, 2..=2, observed);
            for (way, submit) in [("", Submit::Together), ("/one-by-one", Submit::OneByOne)] {
                let measure = ours::groups(&runtime, pool.clone(), run, load, (GROUPS, GROUP), submit);
                contestants.push(Contestant::new(&format!("pool/{name}{suffix}{way}"), TASKS, measure));
            }
        }
    }
    for (name, run) in [("short", Run::Short), ("long", long)] {
        let pool = ours::start(&runtime, GROUP as usize, 2..=2, false);
        let measure = ours::round_trips(&runtime, pool, run, TRIPS);
        contestants.push(Contestant::new(&format!("pool/round-trip/{name}"), TRIPS, measure));
    }
    let trips = peers::tokio_mpsc(&runtime, (TRIPS, 1), false);
    contestants.push(Contestant::new("peer/round-trip/tokio-mpsc", TRIPS, trips));
    let mut peer = |name: &str, run: Box<dyn FnMut() -> harness::Measured>| {
        contestants.push(Contestant::new(&format!("peer/{name}"), TASKS, run));
    };
    peer("tokio-mpsc/recv", Box::new(peers::tokio_mpsc(&runtime, (GROUPS, GROUP), false)));
    peer("tokio-mpsc/recv-many", Box::new(peers::tokio_mpsc(&runtime, (GROUPS, GROUP), true)));
    peer("crossbeam", Box::new(peers::crossbeam(&runtime, GROUPS)));
    peer("tokio-spawn", Box::new(peers::spawn(&runtime, GROUPS, false)));
    peer("tokio-spawn/timeout-and-token", Box::new(peers::spawn(&runtime, GROUPS, true)));
    compete(contestants, rounds, only, rows);
}

/// The same tasks on pools that differ in one size only, and groups that fill the queue. The smaller the groups, the more
/// of their cost is waiting for their end.
fn scale(rounds: usize, only: &str, rows: &mut Rows) {
    let runtime = runtime();
    let mut contestants = Vec::new();
    let mut contestant = |name: &str, queue: u64, workers: usize, group: u64| {
        let pool = ours::start(&runtime, queue as usize, workers..=workers, false);
        let measure =
            ours::groups(&runtime, pool, Run::Short, Load::Empty, (100_000 / group, group), Submit::OneByOne);
        contestants.push(Contestant::new(&format!("pool/scale/{name}"), 100_000, measure));
    };
    for queue in [10, 1_000, 100_000] {
        contestant(&format!("tens/queue-{queue}"), queue, 2, 10);
    }
    for queue in [10, 100, 1_000, 10_000, 100_000] {
        contestant(&format!("full/queue-{queue}"), queue, 2, queue);
    }
    for workers in [1, 2, 16, 256] {
        contestant(&format!("workers-{workers}"), 1_000, workers, 1_000);
    }
    for workers in [2, 256] {
        let pool = ours::start(&runtime, GROUP as usize, workers..=workers, false);
        let measure = ours::round_trips(&runtime, pool, Run::Short, TRIPS);
        contestants.push(Contestant::new(
            &format!("pool/scale/round-trip-workers-{workers}"),
            TRIPS,
            measure,
        ));
    }
    compete(contestants, rounds, only, rows);
}

fn main() -> io::Result<()> {
    let rounds = number("--rounds", 15).map_err(io::Error::other)?;
    let only = option("--only").unwrap_or_default();
    let mut rows = Rows::default();
    per_task(rounds, &only, &mut rows);
    scale(rounds, &only, &mut rows);
    if only.is_empty() {
        fair::run(&runtime(), rounds, &mut rows);
    }
    rows.publish()
}
