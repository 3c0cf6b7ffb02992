//! A problem of a fleet.

use garenne_operator::table::duration;
use serde::Serialize;
use strum::{Display, IntoStaticStr, VariantNames};

/// How bad a problem is, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Display, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Severity {
    /// Tasks are not done, or whether they are cannot be told.
    Critical,
    /// Tasks are done, and something needs attention before it gets worse.
    Warning,
    /// An operator should know it. Nothing is wrong.
    Notice,
}

/// What is wrong. The names are in docs/guides/troubleshooting.md, in metrics and in answers of the dashboard.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Display, IntoStaticStr, VariantNames,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Code {
    /// The broker cannot be reached, or refuses this console.
    BrokerUnavailable,
    /// The broker blocks publishers, because it lacks memory or disk space.
    BrokerAlarm,
    /// No heartbeats arrive, so what workers do is not known.
    NoHeartbeats,
    /// A user of the broker lacks a right.
    MissingRight,
    /// A queue or a stream is missing.
    MissingQueue,
    /// An exchange is missing.
    MissingExchange,
    /// A binding is missing.
    MissingBinding,
    /// Exchanges, queues or bindings have other arguments than the settings want, or too many of them exist.
    TopologyDiffers,
    /// Whether the broker has an alarm cannot be seen.
    AlarmsUnseen,
    // Before the lanes, which may stand still because of them.
    /// A sink takes no results.
    SinkDown,
    /// The workers' database cannot be reached.
    DatabaseUnavailable,
    /// The handler of a kind cannot run tasks.
    HandlerNotReady,
    /// Tasks wait in a lane that no worker consumes.
    LaneWithoutWorker,
    /// Every slot of a lane is busy and nothing ends, or nothing leaves its queue.
    LaneStalled,
    /// A worker cannot consume a lane.
    LaneNotConsumed,
    /// A bridge is not subscribed.
    BridgeDisconnected,
    /// Tasks of a kind wait, and no running worker has a handler for it.
    KindWithoutWorker,
    /// A task that arrives now waits for longer than the objective, or the oldest one has waited so long.
    LaneLate,
    /// Tasks run for much longer than their kind usually does.
    HungTasks,
    /// Tasks became dead letters.
    DeadLettersGrowing,
    /// There are dead letters.
    DeadLetters,
    /// Messages match no binding.
    Unroutable,
    /// A worker sends no heartbeats.
    SilentWorker,
    /// A worker starts again and again.
    RestartLoop,
    /// Tasks wait in a spool.
    SpoolWaiting,
    /// A spool has set segments aside.
    SpoolSegmentsAside,
    /// Tasks wait for a retry that is far ahead.
    RetriesFarAhead,
    /// The clock of a host is wrong.
    ClockSkew,
    /// An operator has paused a lane, a kind or a group.
    Paused,
}

impl Code {
    /// The names of all problems.
    pub const NAMES: &[&str] = <Self as VariantNames>::VARIANTS;
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Problem {
    /// What is wrong.
    pub problem: Code,
    /// How bad it is.
    pub severity: Severity,
    /// Which part of the fleet has it, such as `lane fast`; empty for the fleet itself.
    pub subject: String,
    /// Since when, in milliseconds since 1970, as far as it is known.
    pub since: Option<i64>,
    /// A sentence for a person.
    pub detail: String,
    /// The next step.
    pub next: String,
}

impl Problem {
    pub(super) fn new(problem: Code, severity: Severity, subject: impl Into<String>) -> Self {
        let (subject, detail, next) = (subject.into(), String::new(), String::new());
        Self { problem, severity, subject, since: None, detail, next }
    }

    #[must_use]
    pub(super) fn since(mut self, since: impl Into<Option<i64>>) -> Self {
        self.since = since.into();
        self
    }

    #[must_use]
    pub(super) fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    #[must_use]
    pub(super) fn next(mut self, next: impl Into<String>) -> Self {
        self.next = next.into();
        self
    }

    /// What identifies the problem while it lasts.
    pub fn key(&self) -> (Code, &str) {
        (self.problem, &self.subject)
    }

    /// The problem in one line, with the time for which it has lasted.
    pub fn line(&self, now: i64) -> String {
        let Self { subject, detail, .. } = self;
        let subject = if subject.is_empty() { String::new() } else { format!("{subject}: ") };
        let lasted = self.since.map(|since| duration(now.saturating_sub(since).max(0).unsigned_abs()));
        let lasted = lasted.map(|time| format!(" (for {time})")).unwrap_or_default();
        format!("{subject}{detail}{lasted}")
    }
}

/// The first of many names in one line, and how many more there are.
pub(super) fn listed<S: AsRef<str>>(names: &[S]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<_> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    let more = names.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &more
}

/// The verdict on a fleet in a few words: how many problems of each severity it has.
pub fn verdict(problems: &[Problem]) -> String {
    let count = |severity| problems.iter().filter(|problem| problem.severity == severity).count();
    let (critical, warnings) = (count(Severity::Critical), count(Severity::Warning));
    let plural = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    match (critical, warnings) {
        (0, 0) => "no problems".to_owned(),
        (0, warnings) => plural(warnings, "warning"),
        (critical, 0) => plural(critical, "critical problem"),
        (critical, warnings) => {
            format!("{}, {}", plural(critical, "critical problem"), plural(warnings, "warning"))
        }
    }
}

/// The verdict and the problems as lines of text.
pub fn text(problems: &[Problem], now: i64) -> String {
    let mut text = verdict(problems) + "\n";
    for problem in problems {
        let Problem { severity, next, .. } = problem;
        text += &format!("{severity:<8}  {}\n          {next}\n", problem.line(now));
    }
    text
}

/// Whether a fleet needs attention: it has more than notices.
pub fn needs_attention(problems: &[Problem]) -> bool {
    problems.iter().any(|problem| problem.severity < Severity::Notice)
}
