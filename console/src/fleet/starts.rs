//! How often processes started lately, as far as they were heard or are on record.

use std::collections::BTreeMap;

use garenne_protocol::heartbeat::Program;

/// How long starts of a process are remembered, milliseconds.
pub(super) const STARTS_WINDOW: i64 = 10 * 60 * 1000;
/// Limit on the starts of a process.
pub(super) const MAX_STARTS: usize = 32;
/// Limit on processes, so that forged heartbeats cannot exhaust the memory.
const MAX_PROCESSES: usize = 5_000;

/// The incarnations of a process that started lately.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessStarts {
    /// The times of their starts.
    at: BTreeMap<String, i64>,
    /// Whether the broker's stream of starts has some of them. Anybody who may publish a heartbeat can invent the others.
    on_record: bool,
}

impl ProcessStarts {
    /// Adds an incarnation, unless it is known or its start is too long ago.
    pub(super) fn add(&mut self, incarnation: &str, at: i64, now: i64) {
        self.at.retain(|_, start| !is_old(*start, now));
        if !is_old(at, now) && self.at.len() < MAX_STARTS && !self.at.contains_key(incarnation) {
            self.at.insert(incarnation.to_owned(), at);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.at.iter().map(|(incarnation, at)| (incarnation.as_str(), *at))
    }

    /// How many of them started within the last minutes.
    pub(super) fn count(&self, now: i64) -> usize {
        self.at.values().filter(|start| !is_old(**start, now)).count()
    }
}

fn is_old(start: i64, now: i64) -> bool {
    now.saturating_sub(start) >= STARTS_WINDOW
}

/// The starts of each process. They outlive a process that ended before it was confirmed, which may be heard again as the
/// same incarnation.
#[derive(Debug, Default)]
pub(super) struct Starts(BTreeMap<(Program, String), ProcessStarts>);

impl Starts {
    /// Adds an incarnation that is heard, unless it is known.
    pub(super) fn add(&mut self, process: (Program, String), incarnation: &str, at: i64, now: i64) {
        if !is_old(at, now) && (self.0.len() < MAX_PROCESSES || self.0.contains_key(&process)) {
            self.0.entry(process).or_default().add(incarnation, at, now);
        }
    }

    /// Adds those incarnations of a worker on record that are not known.
    pub(super) fn add_recorded(&mut self, worker: &str, starts: &ProcessStarts, now: i64) {
        let process = (Program::Worker, worker.to_owned());
        for (incarnation, at) in starts.iter() {
            self.add(process.clone(), incarnation, at, now);
        }
        if let Some(known) = self.0.get_mut(&process) {
            known.on_record = true;
        }
    }

    /// How often each worker on record started within the last minutes. It may have stopped since.
    pub(super) fn of_recorded_workers(&self, now: i64) -> impl Iterator<Item = (&str, usize)> {
        let workers = self.0.iter().filter(|((program, _), it)| *program == Program::Worker && it.on_record);
        workers.map(move |((_, worker), starts)| (worker.as_str(), starts.count(now)))
    }

    /// How often a process started within the last minutes.
    pub(super) fn count(&self, process: &(Program, String), now: i64) -> usize {
        self.0.get(process).map_or(0, |starts| starts.count(now))
    }

    /// Removes what is older.
    pub(super) fn forget(&mut self, now: i64) {
        self.0.retain(|_, starts| starts.count(now) > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incarnation_counts_once_however_often_it_is_heard_and_expires() {
        let (mut starts, worker) = (Starts::default(), (Program::Worker, "w".to_owned()));
        let mut add = |incarnation: &str, at: i64, now: i64| {
            starts.add(worker.clone(), incarnation, at, now);
            starts.count(&worker, now)
        };
        assert_eq!(
            [add("1", 100, 100), add("1", 200, 200), add("0", 10, 200), add("2", 190, 200)],
            [1, 1, 2, 3]
        );
        assert_eq!(add("3", 200, 200 + STARTS_WINDOW), 0, "all of them are too old");
        let many: usize =
            (0..1_000).map(|n| add(&n.to_string(), STARTS_WINDOW + 300, STARTS_WINDOW + 300)).max().unwrap();
        assert_eq!(many, MAX_STARTS);
        assert_eq!(starts.count(&worker, STARTS_WINDOW + 300), MAX_STARTS);
        starts.forget(2 * STARTS_WINDOW + 300);
        assert!(starts.0.is_empty());
    }
}
