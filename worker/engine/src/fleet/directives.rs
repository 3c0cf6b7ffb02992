//! The standing orders of operators: which tasks and groups are stopped, and which groups are paused.

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
    time::{Duration, SystemTime},
};

use garenne_protocol::{
    task::{Envelope, StandingOrder, epoch_ms},
    topology::DIRECTIVES_KEPT,
};

/// Longest deferral of a task of a paused group.
const MAX_DEFERRAL: Duration = Duration::from_secs(300);
/// How long a resume order is kept, so that an older pause order that arrives late does not undo it. The clocks of
/// two operators may differ by this much.
const RESUME_KEPT: Duration = Duration::from_secs(3600);

/// All orders in force. Each task is checked twice: when it is delivered, and when it starts, because an order may
/// arrive while it waits in the pool.
#[derive(Debug, Default)]
pub(crate) struct Directives(RwLock<DirectiveState>);

/// Times are in milliseconds since the Unix epoch.
#[derive(Debug, Default)]
struct DirectiveState {
    /// The time of the latest stop of each task.
    tasks: HashMap<String, i64>,
    /// The time of the latest stop of each group.
    groups: HashMap<String, i64>,
    /// The latest pause or resume order of each group.
    pauses: HashMap<String, Pause>,
}

#[derive(Debug)]
struct Pause {
    at: i64,
    paused: bool,
}

/// How an order affects a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectiveEffect {
    /// It must not start.
    Stopped,
    /// Its group is paused, and it must be deferred by this duration.
    ///
    /// The duration is that of the pause so far, up to [`MAX_DEFERRAL`]. So a resumed group runs again after at
    /// most twice its pause, and a long pause causes few copies.
    Deferred(Duration),
}

impl Directives {
    /// Applies an order, and returns whether it changes anything. No task that it covers starts afterwards.
    pub(crate) fn apply(&self, order: &StandingOrder) -> bool {
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let update = |latest: &mut i64, at: i64| {
            let newer = at > *latest;
            *latest = (*latest).max(at);
            newer
        };
        match order {
            StandingOrder::Task { task, at } => {
                update(state.tasks.entry(task.clone()).or_insert(i64::MIN), *at)
            }
            StandingOrder::Group { group, at } => {
                update(state.groups.entry(group.clone()).or_insert(i64::MIN), *at)
            }
            StandingOrder::Pause { pause: group, at } | StandingOrder::Resume { resume: group, at } => {
                let unknown = Pause { at: i64::MIN, paused: false };
                let known = state.pauses.entry(group.clone()).or_insert(unknown);
                let newer = update(&mut known.at, *at);
                if newer {
                    known.paused = matches!(order, StandingOrder::Pause { .. });
                }
                newer
            }
        }
    }

    /// How the orders affect a task.
    ///
    /// The stop of a group covers tasks published before it. A task without a publish time counts as published
    /// before, and one with a precision of a second as published at the start of that second. No stop covers a
    /// task that an operator replayed after it.
    pub(crate) fn effect_on(&self, task: &Envelope, now: SystemTime) -> Option<DirectiveEffect> {
        let DirectiveState { tasks, groups, pauses } =
            &*self.0.read().unwrap_or_else(PoisonError::into_inner);
        if tasks.is_empty() && groups.is_empty() && pauses.is_empty() {
            return None;
        }
        if tasks.get(task.id.as_str()).is_some_and(|at| precedes(task.replayed_at, *at)) {
            return Some(DirectiveEffect::Stopped);
        }
        let group = task.group.as_ref()?;
        if groups.get(group).is_some_and(|at| precedes(published_at(task), *at)) {
            return Some(DirectiveEffect::Stopped);
        }
        let since = pauses.get(group).filter(|it| it.paused)?.at;
        let lasted = Duration::from_millis(u64::try_from(epoch_ms(now).saturating_sub(since)).unwrap_or(0));
        Some(DirectiveEffect::Deferred(lasted.min(MAX_DEFERRAL)))
    }

    /// The paused groups, sorted by name.
    pub(crate) fn paused(&self) -> Vec<String> {
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let paused = state.pauses.iter().filter(|(_, it)| it.paused);
        let mut groups: Vec<_> = paused.map(|(group, _)| group.clone()).collect();
        groups.sort_unstable();
        groups
    }

    /// Removes orders that the stream does not keep either, and resume orders older than [`RESUME_KEPT`].
    pub(crate) fn remove_expired(&self, now: SystemTime) {
        let before = |span: Duration| {
            epoch_ms(now).saturating_sub(i64::try_from(span.as_millis()).unwrap_or(i64::MAX))
        };
        let (oldest, oldest_resume) = (before(DIRECTIVES_KEPT), before(RESUME_KEPT));
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let DirectiveState { tasks, groups, pauses } = &mut *state;
        tasks.retain(|_, at| *at >= oldest);
        groups.retain(|_, at| *at >= oldest);
        pauses.retain(|_, it| it.at >= if it.paused { oldest } else { oldest_resume });
        tasks.shrink_to_fit();
        groups.shrink_to_fit();
        pauses.shrink_to_fit();
    }

    /// The number of entries, for tests of their bound.
    #[cfg(test)]
    fn len(&self) -> usize {
        let state = self.0.read().unwrap();
        state.tasks.len() + state.groups.len() + state.pauses.len()
    }
}

/// When a task was published or replayed last, in milliseconds since the Unix epoch.
fn published_at(task: &Envelope) -> Option<i64> {
    task.replayed_at.or_else(|| task.published_ms())
}

/// Whether `published` is not later than an order. An unknown time counts as earlier.
fn precedes(published: Option<i64>, order: i64) -> bool {
    published.is_none_or(|published| published <= order)
}

#[cfg(test)]
mod tests;
