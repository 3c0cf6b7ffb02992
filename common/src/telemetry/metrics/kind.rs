//! Metrics per kind of task.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    sync::{PoisonError, RwLock},
    time::Duration,
};

use garenne_protocol::heartbeat::KindBeat;
use garenne_protocol::task::{DeadReason, matches_binding};
use prometheus::core::Metric;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec};
use strum::{EnumCount, IntoStaticStr, VariantArray};

use super::register::{DURATIONS, NewMetrics, series};

/// The label of all kinds that are not registered.
pub const UNKNOWN_KIND: &str = "unknown";

/// How one execution of a task ended. How its delivery ended is its [`Settlement`](garenne_protocol::settlement::Settlement).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EnumCount, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum TaskOutcome {
    /// The handler succeeded and the sinks accepted the result.
    Success,
    /// The handler failed with a retryable error.
    Error,
    /// The handler panicked.
    Panic,
    /// The task exceeded its deadline.
    Timeout,
    /// The handler rejected the task; it is not retried.
    Rejected,
    /// The handler deferred the task; this is not an attempt.
    Snoozed,
    /// An operator stopped it.
    Stopped,
    /// Shutdown interrupted it; this is not an attempt.
    Interrupted,
}

impl TaskOutcome {
    /// Every outcome.
    pub const ALL: [Self; Self::COUNT] = *Self::VARIANTS.as_array().expect("COUNT is the number of VARIANTS");

    /// The outcome as a metric label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The metric families labelled by kind.
struct Families {
    tasks: IntCounterVec,
    dead: IntCounterVec,
    duration: HistogramVec,
}

/// The metrics of the registered kinds and patterns of kinds, and of all others together.
pub(super) struct Kinds {
    families: Families,
    known: RwLock<HashMap<String, KindMetrics>>,
    unknown: KindMetrics,
}

impl Kinds {
    pub(super) fn register(new: &NewMetrics<'_>) -> Self {
        let (dead, duration) = ("garenne_dead_total", "garenne_task_duration_seconds");
        let families = Families {
            tasks: new.counters("garenne_tasks_total", "Attempts, by outcome.", &["kind", "outcome"]),
            dead: new.counters(dead, "Tasks moved to the dead-letter queue, by reason.", &["kind", "reason"]),
            duration: new.histograms(duration, "Duration of an attempt.", &["kind"], DURATIONS),
        };
        let unknown = KindMetrics::resolve(&families, UNKNOWN_KIND);
        Self { families, known: RwLock::default(), unknown }
    }

    pub(super) fn know<'a>(&self, kinds: impl IntoIterator<Item = &'a str>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.extend(kinds.into_iter().map(|it| (it.to_owned(), KindMetrics::resolve(&self.families, it))));
    }

    pub(super) fn get(&self, kind: &str) -> KindMetrics {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        // The kinds of a pattern count together under it. No two patterns match the same kind.
        let of_pattern =
            || known.iter().find(|(pattern, _)| matches_binding(pattern, kind)).map(|(_, it)| it);
        known.get(kind).or_else(of_pattern).unwrap_or(&self.unknown).clone()
    }

    /// The counts so far, without the kinds that had no task.
    pub(super) fn counts(&self) -> BTreeMap<String, KindBeat> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut counts: BTreeMap<String, KindBeat> =
            known.values().chain([&self.unknown]).map(|kind| (kind.label.clone(), kind.beat())).collect();
        for (labels, count) in series(&self.families.dead) {
            // Label values are sorted by label name: kind, reason.
            let dead = &mut counts.entry(labels[0].clone()).or_default().dead;
            dead.insert(labels[1].clone(), count as u64);
        }
        counts.retain(|_, kind| kind.started > 0 || !kind.dead.is_empty());
        counts
    }
}

/// The metrics of one kind. Clones share the counters.
#[derive(Debug, Clone)]
pub struct KindMetrics {
    label: String,
    outcomes: [IntCounter; TaskOutcome::ALL.len()],
    /// `garenne_task_duration_seconds`
    pub duration: Histogram,
    dead: IntCounterVec,
}

impl KindMetrics {
    fn resolve(Families { tasks, dead, duration }: &Families, kind: &str) -> Self {
        Self {
            label: kind.to_owned(),
            outcomes: TaskOutcome::ALL.map(|outcome| tasks.with_label_values(&[kind, outcome.as_str()])),
            duration: duration.with_label_values(&[kind]),
            dead: dead.clone(),
        }
    }

    /// Counts an attempt in `garenne_tasks_total` and observes `took` in `garenne_task_duration_seconds`.
    pub fn ended(&self, outcome: TaskOutcome, took: Duration) {
        self.outcomes[outcome as usize].inc();
        self.duration.observe(took.as_secs_f64());
    }

    /// Counts an attempt without a known duration.
    pub fn counted(&self, outcome: TaskOutcome) {
        self.outcomes[outcome as usize].inc();
    }

    fn beat(&self) -> KindBeat {
        let histogram = self.duration.metric();
        let histogram = histogram.get_histogram();
        let bounded = histogram.get_bucket().iter().take(DURATIONS.len()).map(|it| it.cumulative_count());
        let mut below = 0;
        let mut buckets: Vec<u64> = bounded
            .chain([histogram.get_sample_count()])
            .map(|count| count.saturating_sub(mem::replace(&mut below, count)))
            .collect();
        while buckets.pop_if(|count| *count == 0).is_some() {}
        let ended = TaskOutcome::ALL.iter().zip(&self.outcomes);
        let outcomes: BTreeMap<String, u64> = ended
            .map(|(outcome, count)| (outcome.as_str().to_owned(), count.get()))
            .filter(|(_, count)| *count > 0)
            .collect();
        let seconds = histogram.get_sample_sum();
        KindBeat { started: outcomes.values().sum(), outcomes, seconds, buckets, ..KindBeat::default() }
    }

    /// Counts in `garenne_dead_total`. A reason is exported from its first dead letter on.
    pub fn dead(&self, reason: DeadReason) {
        self.dead.with_label_values(&[self.label.as_str(), reason.as_str()]).inc();
    }
}
