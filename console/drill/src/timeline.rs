//! When faults and crashes happened, and how long it took until tasks were executed again.

use std::{ops::Range, sync::Arc, time::SystemTime};

use garenne_protocol::task::epoch_ms;
use serde::Serialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{account::Execution, fault::Fault};

/// One fault or crash. Times are seconds since the start of the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct TimelineEvent {
    /// When it began.
    pub(crate) at: f64,
    /// When the broker accepted connections again, or bytes passed again. Equal to `at` for signals.
    pub(crate) until: f64,
    /// The fault; nothing for a crash.
    #[serde(rename = "act")]
    pub(crate) fault: Option<Fault>,
    /// The worker, `broker`, `network` or, in a demo, `mqtt`.
    #[serde(rename = "whom")]
    pub(crate) target: String,
    /// The worker that was started instead of the target.
    pub(crate) replacement: Option<String>,
    /// Seconds from `until` to the first task that the replacement started, or any worker if there is no replacement.
    /// Nothing if no task was started.
    pub(crate) recovered_after: Option<f64>,
}

impl TimelineEvent {
    /// The event, as reports name it.
    pub(crate) fn name(&self) -> &'static str {
        self.fault.map_or("crash", Into::into)
    }
}

/// Events and task counts of a run, by second.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Timeline {
    /// Faults and crashes.
    #[serde(rename = "happenings")]
    pub(crate) events: Vec<TimelineEvent>,
    /// Tasks acknowledged to their senders, per second.
    pub(crate) published: Vec<u64>,
    /// Tasks started, per second, from the execution logs.
    pub(crate) executed: Vec<u64>,
    /// When tasks started, and by which worker.
    #[serde(skip)]
    starts: Vec<(f64, Arc<str>)>,
    #[serde(skip)]
    origin_ms: i64,
}

impl Timeline {
    /// A timeline that begins at `origin`.
    pub(crate) fn starting(origin: SystemTime) -> Self {
        Self { origin_ms: epoch_ms(origin), ..Self::default() }
    }

    /// Seconds from the start to `now`.
    pub(crate) fn seconds(&self, now: SystemTime) -> f64 {
        (epoch_ms(now) - self.origin_ms) as f64 / 1e3
    }

    /// Records an event that happens now.
    pub(crate) fn record(&mut self, fault: Option<Fault>, target: String, replacement: Option<String>) {
        let at = self.seconds(SystemTime::now());
        self.events.push(TimelineEvent { at, until: at, fault, target, replacement, recovered_after: None });
    }

    /// Sets when an event began and ended.
    pub(crate) fn set_span(&mut self, event: usize, span: Range<SystemTime>) {
        let (at, until) = (self.seconds(span.start), self.seconds(span.end));
        if let Some(event) = self.events.get_mut(event) {
            (event.at, event.until) = (at, until);
        }
    }

    /// Counts tasks acknowledged at `now`.
    pub(crate) fn published(&mut self, now: SystemTime, count: u64) {
        let second = self.seconds(now);
        bump(&mut self.published, second, count);
    }

    /// Counts an execution in the second of its start. One without a start time counts at `seen`.
    pub(crate) fn executed(&mut self, execution: &Execution, seen: SystemTime) {
        let started = OffsetDateTime::parse(&execution.started_at, &Rfc3339).ok();
        let at = self.seconds(started.map_or(seen, SystemTime::from));
        bump(&mut self.executed, at, 1);
        self.starts.push((at, Arc::clone(&execution.worker)));
    }

    /// Computes after how long tasks were executed again. Call it when all executions are known.
    pub(crate) fn conclude(&mut self) {
        self.starts.sort_by(|a, b| a.0.total_cmp(&b.0));
        for event in &mut self.events {
            let from = self.starts.partition_point(|(at, _)| *at < event.until);
            let counts = |worker: &str| event.replacement.as_deref().is_none_or(|name| name == worker);
            let first = self.starts[from..].iter().find(|(_, worker)| counts(worker));
            event.recovered_after = first.map(|(at, _)| at - event.until);
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

    fn execution(worker: &str, at: &str) -> Execution {
        Execution { task_id: "t".into(), worker: worker.into(), started_at: at.into() }
    }

    #[test]
    fn recovery_ends_with_the_first_task_of_the_replacement() {
        let mut timeline = Timeline::starting(UNIX_EPOCH);
        let seen = UNIX_EPOCH + Duration::from_secs(9);
        timeline.executed(&execution("b", "1970-01-01T00:00:03.250Z"), seen);
        timeline.executed(&execution("a", "1970-01-01T00:00:02.100Z"), seen);
        timeline.executed(&execution("a", "1970-01-01T00:00:02.900Z"), seen);
        timeline.executed(&execution("a", "soon"), seen);
        let event = |replacement: Option<&str>| TimelineEvent {
            at: 2.0,
            until: 2.0,
            fault: Some(Fault::Kill),
            target: "x".into(),
            replacement: replacement.map(str::to_owned),
            recovered_after: None,
        };
        timeline.events = vec![event(Some("b")), event(None), event(Some("c"))];
        timeline.conclude();
        let after: Vec<_> = timeline.events.iter().map(|event| event.recovered_after).collect();
        assert_eq!(after.len(), 3);
        assert!((after[0].unwrap() - 1.25).abs() < 1e-9 && (after[1].unwrap() - 0.1).abs() < 1e-9);
        assert_eq!(after[2], None);
        assert_eq!(timeline.executed, [0, 0, 2, 1, 0, 0, 0, 0, 0, 1]);
    }
}
