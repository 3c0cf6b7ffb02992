//! The summary line, which is updated each second.

use std::time::Duration;

use crate::table::grouped;

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Readings acknowledged by the gateway.
    pub(super) published: u64,
    /// Messages in the lanes' queues; unknown while the broker is away.
    pub(super) queued: Option<u64>,
    /// Distinct tasks in the execution logs.
    pub(super) done: u64,
    /// Redeliveries.
    pub(super) requeued: u64,
    /// New dead letters.
    pub(super) dead: u64,
    /// Running workers.
    pub(super) workers: usize,
}

/// Formats counts, with the change of each per second.
#[derive(Clone, Debug, Default)]
pub(super) struct Summary {
    last: Counts,
    at: Duration,
}

impl Summary {
    /// The line for `counts` at `elapsed` after the start.
    pub(super) fn line(&mut self, elapsed: Duration, counts: Counts) -> String {
        let since = (elapsed - self.at).as_secs_f64().max(1e-3);
        let rate = |now: u64, before: u64| {
            let per_second = now.saturating_sub(before) as f64 / since;
            format!("{} ({}/s)", grouped(now), grouped(per_second.round() as u64))
        };
        let last = std::mem::replace(&mut self.last, counts);
        self.at = elapsed;
        format!(
            "{:>4}s  published {}  queued {}  done {}  requeued {}  dead {}  workers {}",
            elapsed.as_secs(),
            rate(counts.published, last.published),
            counts.queued.map_or("?".to_owned(), grouped),
            rate(counts.done, last.done),
            rate(counts.requeued, last.requeued),
            rate(counts.dead, last.dead),
            counts.workers
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_per_second_since_the_previous_line() {
        let mut summary = Summary::default();
        let counts =
            Counts { published: 1_000, queued: Some(7), done: 900, requeued: 0, dead: 0, workers: 3 };
        assert_eq!(
            summary.line(Duration::from_secs(1), counts),
            "   1s  published 1,000 (1,000/s)  queued 7  done 900 (900/s)  requeued 0 (0/s)  dead 0 (0/s)  workers 3"
        );
        let later = Counts { published: 1_400, queued: None, requeued: 30, ..counts };
        assert_eq!(
            summary.line(Duration::from_secs(3), later),
            "   3s  published 1,400 (200/s)  queued ?  done 900 (0/s)  requeued 30 (15/s)  dead 0 (0/s)  workers 3"
        );
    }
}
