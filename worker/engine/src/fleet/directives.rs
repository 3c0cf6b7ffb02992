//! What an operator ordered of tasks and groups, wherever they are.

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
    time::{Duration, SystemTime},
};

use garenne_protocol::{
    task::{Envelope, StandingOrder, epoch_ms},
    topology::DIRECTIVES_KEPT,
};

/// The longest a task of a paused group is put off at a time.
const LONGEST_REST: Duration = Duration::from_secs(300);
/// How long a resumption is remembered, so that an older pause that arrives late does not undo it: the
/// clocks of two operators may differ.
const RESUMPTION_KEPT: Duration = Duration::from_secs(3600);

/// Every order that is still kept. Asked twice of each task, by any thread: when it is delivered,
/// and when it starts, because an order may come while it waits.
#[derive(Debug, Default)]
pub(crate) struct Directives(RwLock<DirectiveState>);

/// Times are milliseconds since 1970.
#[derive(Debug, Default)]
struct DirectiveState {
    /// Task to the time of its latest stop.
    tasks: HashMap<String, i64>,
    /// Group to the time of its latest stop.
    groups: HashMap<String, i64>,
    /// Group to its latest pause or resumption.
    pauses: HashMap<String, Pause>,
}

#[derive(Debug)]
struct Pause {
    at: i64,
    paused: bool,
}

/// What the directives say of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectiveEffect {
    /// It must not start.
    Stopped,
    /// Its group is paused. It is put off for so long, as long as the pause has lasted: so a resumed
    /// group works again after at most twice its pause, and a long pause costs few copies.
    Deferred(Duration),
}

impl Directives {
    /// Takes an order; answers whether it says anything new. From then on no task that it covers
    /// starts here.
    pub(crate) fn apply(&self, order: &StandingOrder) -> bool {
        let mut books = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let later = |latest: &mut i64, at: i64| {
            let newer = at > *latest;
            *latest = (*latest).max(at);
            newer
        };
        match order {
            StandingOrder::Task { task, at } => {
                later(books.tasks.entry(task.clone()).or_insert(i64::MIN), *at)
            }
            StandingOrder::Group { group, at } => {
                later(books.groups.entry(group.clone()).or_insert(i64::MIN), *at)
            }
            StandingOrder::Pause { pause: group, at } | StandingOrder::Resume { resume: group, at } => {
                let unknown = Pause { at: i64::MIN, paused: false };
                let known = books.pauses.entry(group.clone()).or_insert(unknown);
                let newer = later(&mut known.at, *at);
                if newer {
                    known.paused = matches!(order, StandingOrder::Pause { .. });
                }
                newer
            }
        }
    }

    /// What the directives say of a task. A group's stop covers what was published before it; a task
    /// that does not say when it was published counts as before, and one that says the second only
    /// counts from the beginning of that second. No stop covers what an operator put back to work after
    /// it.
    pub(crate) fn effect_on(&self, task: &Envelope, now: SystemTime) -> Option<DirectiveEffect> {
        let DirectiveState { tasks, groups, pauses } =
            &*self.0.read().unwrap_or_else(PoisonError::into_inner);
        if tasks.is_empty() && groups.is_empty() && pauses.is_empty() {
            return None;
        }
        if tasks.get(task.id.as_str()).is_some_and(|at| is_before(task.replayed_at, *at)) {
            return Some(DirectiveEffect::Stopped);
        }
        let group = task.group.as_ref()?;
        if groups.get(group).is_some_and(|at| is_before(published(task), *at)) {
            return Some(DirectiveEffect::Stopped);
        }
        let since = pauses.get(group).filter(|it| it.paused)?.at;
        let lasted = Duration::from_millis(u64::try_from(epoch_ms(now).saturating_sub(since)).unwrap_or(0));
        Some(DirectiveEffect::Deferred(lasted.min(LONGEST_REST)))
    }

    /// The paused groups, in order.
    pub(crate) fn paused(&self) -> Vec<String> {
        let books = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let paused = books.pauses.iter().filter(|(_, it)| it.paused);
        let mut groups: Vec<_> = paused.map(|(group, _)| group.clone()).collect();
        groups.sort_unstable();
        groups
    }

    /// Lets go of what the stream does not keep either, and of resumptions that are long past.
    pub(crate) fn forget(&self, now: SystemTime) {
        let before = |span: Duration| {
            epoch_ms(now).saturating_sub(i64::try_from(span.as_millis()).unwrap_or(i64::MAX))
        };
        let (oldest, resumed) = (before(DIRECTIVES_KEPT), before(RESUMPTION_KEPT));
        let mut books = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let DirectiveState { tasks, groups, pauses } = &mut *books;
        tasks.retain(|_, at| *at >= oldest);
        groups.retain(|_, at| *at >= oldest);
        pauses.retain(|_, it| it.at >= if it.paused { oldest } else { resumed });
        tasks.shrink_to_fit();
        groups.shrink_to_fit();
        pauses.shrink_to_fit();
    }

    /// Entries held, for the tests of their bounds.
    #[cfg(test)]
    fn len(&self) -> usize {
        let books = self.0.read().unwrap();
        books.tasks.len() + books.groups.len() + books.pauses.len()
    }
}

/// When a task was put to work last, milliseconds since 1970; nothing where it does not say.
fn published(task: &Envelope) -> Option<i64> {
    task.replayed_at.or_else(|| task.published_ms())
}

/// Whether something that happened at `since`, or at an unknown time, was before an order.
fn is_before(since: Option<i64>, order: i64) -> bool {
    since.is_none_or(|since| since <= order)
}

#[cfg(test)]
mod tests;
