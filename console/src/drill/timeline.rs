//! What happened when, and how long it took until work went on.

use std::time::SystemTime;

use garenne_protocol::task::epoch_ms;
use serde::Serialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::plan::Act;
use crate::audit::Execution;

/// One act, as it happened. Times are seconds since the start.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Happening {
    /// When it began.
    pub at: f64,
    /// When the broker took connections again, or the network was whole; the same as `at` for signals.
    pub until: f64,
    /// What was done; nothing for a worker that ended by itself.
    pub act: Option<Act>,
    /// To whom.
    pub whom: String,
    /// Who started in its place.
    pub replacement: Option<String>,
    /// Seconds from `until` to the first task that the replacement began, or anybody where nobody
    /// was replaced; nothing when none was.
    pub recovered_after: Option<f64>,
}

/// Everything with its second.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Timeline {
    /// Acts and crashes.
    pub happenings: Vec<Happening>,
    /// Tasks confirmed to the publishers in each second.
    pub published: Vec<u64>,
    /// Tasks begun in each second, as the execution logs have it.
    pub executed: Vec<u64>,
    #[serde(skip)]
    starts: Vec<(f64, std::sync::Arc<str>)>,
    #[serde(skip)]
    origin_ms: i64,
}

impl Timeline {
    /// A timeline that begins at `origin`.
    pub fn starting(origin: SystemTime) -> Self {
        Self { origin_ms: epoch_ms(origin), ..Self::default() }
    }

    /// Seconds since the start at `now`.
    pub fn seconds(&self, now: SystemTime) -> f64 {
        (epoch_ms(now) - self.origin_ms) as f64 / 1e3
    }

    /// Writes down what happens now and answers its place.
    pub fn happened(&mut self, act: Option<Act>, whom: String, replacement: Option<String>) -> usize {
        let at = self.seconds(SystemTime::now());
        self.happenings.push(Happening { at, until: at, act, whom, replacement, recovered_after: None });
        self.happenings.len() - 1
    }

    /// Corrects a happening that lasted for a while.
    pub fn lasted(&mut self, index: usize, from: SystemTime, until: SystemTime) {
        let (at, until) = (self.seconds(from), self.seconds(until));
        if let Some(happening) = self.happenings.get_mut(index) {
            (happening.at, happening.until) = (at, until);
        }
    }

    /// Counts confirmed tasks into their second.
    pub fn published(&mut self, now: SystemTime, count: u64) {
        let second = self.seconds(now);
        bump(&mut self.published, second, count);
    }

    /// Counts an execution into the second it began; one that does not say when counts at `seen`.
    pub fn executed(&mut self, execution: &Execution, seen: SystemTime) {
        let told = OffsetDateTime::parse(&execution.started_at, &Rfc3339).ok();
        let at = self.seconds(told.map_or(seen, SystemTime::from));
        bump(&mut self.executed, at, 1);
        self.starts.push((at, std::sync::Arc::clone(&execution.worker)));
    }

    /// Works out how long each happening held work up. Call it when all executions are known.
    pub fn conclude(&mut self) {
        self.starts.sort_by(|a, b| a.0.total_cmp(&b.0));
        for happening in &mut self.happenings {
            let from = self.starts.partition_point(|(at, _)| *at < happening.until);
            let by = |worker: &str| happening.replacement.as_deref().is_none_or(|name| name == worker);
            let first = self.starts[from..].iter().find(|(_, worker)| by(worker));
            happening.recovered_after = first.map(|(at, _)| at - happening.until);
        }
    }
}

fn bump(seconds: &mut Vec<u64>, at: f64, count: u64) {
    let index = at.max(0.0) as usize;
    if seconds.len() <= index {
        seconds.resize(index + 1, 0);
    }
    seconds[index] += count;
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn begun(worker: &str, at: &str) -> Execution {
        Execution { worker: worker.into(), attempt: 1, started_at: at.into() }
    }

    #[test]
    fn recovery_is_counted_to_the_replacements_first_task() {
        let mut timeline = Timeline::starting(UNIX_EPOCH);
        let seen = UNIX_EPOCH + Duration::from_secs(9);
        timeline.executed(&begun("b", "1970-01-01T00:00:03.250Z"), seen);
        timeline.executed(&begun("a", "1970-01-01T00:00:02.100Z"), seen);
        timeline.executed(&begun("a", "1970-01-01T00:00:02.900Z"), seen);
        timeline.executed(&begun("a", "soon"), seen);
        let happening = |replacement: Option<&str>| Happening {
            at: 2.0,
            until: 2.0,
            act: Some(Act::Kill),
            whom: "x".into(),
            replacement: replacement.map(str::to_owned),
            recovered_after: None,
        };
        timeline.happenings = vec![happening(Some("b")), happening(None), happening(Some("c"))];
        timeline.conclude();
        let after: Vec<_> = timeline.happenings.iter().map(|it| it.recovered_after).collect();
        assert_eq!(after.len(), 3);
        assert!((after[0].unwrap() - 1.25).abs() < 1e-9 && (after[1].unwrap() - 0.1).abs() < 1e-9);
        assert_eq!(after[2], None);
        assert_eq!(timeline.executed, [0, 0, 2, 1, 0, 0, 0, 0, 0, 1]);
    }
}
