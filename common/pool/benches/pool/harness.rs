//! Interleaved rounds and allocation counts.

use std::{
    alloc::System,
    time::{Duration, Instant},
};

use garenne_bench::Rows;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

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

/// A measurement: runs this number of tasks and returns the result.
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

/// Runs all contestants with `only` in their names in turns, so that other load on the machine affects all of them
/// equally.
pub(crate) fn compete(mut contestants: Vec<Contestant>, rounds: usize, only: &str, rows: &mut Rows) {
    contestants.retain(|contestant| contestant.name.contains(only));
    for contestant in &mut contestants {
        // A warm-up run, which is not counted.
        (contestant.run)();
        (contestant.run)();
    }
    for _ in 0..rounds {
        for contestant in &mut contestants {
            let Measured { took, allocations } = (contestant.run)();
            #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
            let (tasks, allocations) = (contestant.tasks as f64, allocations as f64);
            rows.add(contestant.name.as_str(), "ns/task", took.as_secs_f64() * 1e9 / tasks);
            rows.add(format!("{}/allocations", contestant.name), "allocations/task", allocations / tasks);
        }
    }
}
