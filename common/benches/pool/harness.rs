//! Interleaved rounds, allocation counts, and the rows they end in.

use std::{
    alloc::System,
    io,
    path::Path,
    time::{Duration, Instant},
};

use serde::Serialize;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// One measured quantity over all rounds.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) runs: usize,
}

impl Row {
    pub(crate) fn new(name: String, unit: &'static str, mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
        let (median, last) = (at(values.len() / 2), values.len().saturating_sub(1));
        Self { name, unit, median, min: at(0), max: at(last), runs: values.len() }
    }
}

/// A stopwatch that counts allocations too, those of all threads.
pub(crate) struct Watch {
    begun: Instant,
    region: Region<'static, System>,
}

pub(crate) struct Measured {
    pub(crate) took: Duration,
    allocations: usize,
}

impl Watch {
    pub(crate) fn start() -> Self {
        Self { region: Region::new(ALLOCATOR), begun: Instant::now() }
    }

    pub(crate) fn stop(&self) -> Measured {
        let took = self.begun.elapsed();
        let stats = self.region.change();
        Measured { took, allocations: stats.allocations + stats.reallocations }
    }
}

/// Something to measure: does the work for this many tasks and answers what it took.
pub(crate) struct Contestant {
    pub(crate) name: String,
    pub(crate) tasks: u64,
    pub(crate) run: Box<dyn FnMut() -> Measured>,
}

impl Contestant {
    pub(crate) fn new(name: &str, tasks: u64, run: impl FnMut() -> Measured + 'static) -> Self {
        Self { name: name.to_owned(), tasks, run: Box::new(run) }
    }
}

/// Runs all contestants with `only` in their names in turns, so that whatever else the machine does meets
/// each alike.
pub(crate) fn compete(mut contestants: Vec<Contestant>, rounds: usize, only: &str) -> Vec<Row> {
    contestants.retain(|contestant| contestant.name.contains(only));
    let mut times = vec![Vec::new(); contestants.len()];
    let mut allocations = vec![Vec::new(); contestants.len()];
    for contestant in &mut contestants {
        // Pages, queues and caches are warm before anything counts.
        (contestant.run)();
        (contestant.run)();
    }
    for _ in 0..rounds {
        for (at, contestant) in contestants.iter_mut().enumerate() {
            let Measured { took, allocations: allocated } = (contestant.run)();
            #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
            let tasks = contestant.tasks as f64;
            times[at].push(took.as_secs_f64() * 1e9 / tasks);
            #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
            allocations[at].push(allocated as f64 / tasks);
        }
    }
    let mut rows = Vec::new();
    for (at, contestant) in contestants.iter().enumerate() {
        rows.push(Row::new(contestant.name.clone(), "ns/task", std::mem::take(&mut times[at])));
        let name = format!("{}/allocations", contestant.name);
        rows.push(Row::new(name, "allocations/task", std::mem::take(&mut allocations[at])));
    }
    rows
}

#[derive(Serialize)]
struct Report<'a> {
    machine: Machine,
    rows: &'a [Row],
}

#[derive(Serialize)]
struct Machine {
    cpus: usize,
    os: &'static str,
    arch: &'static str,
}

/// Prints the rows, and writes them as JSON where asked.
pub(crate) fn publish(rows: &[Row], json: Option<&Path>) -> io::Result<()> {
    for row in rows {
        println!("{:<48} {:>12.3} {:<16} ({:.3} … {:.3})", row.name, row.median, row.unit, row.min, row.max);
    }
    if let Some(path) = json {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let machine = Machine { cpus, os: std::env::consts::OS, arch: std::env::consts::ARCH };
        std::fs::write(path, serde_json::to_vec_pretty(&Report { machine, rows })?)?;
    }
    Ok(())
}
