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

#[derive(Debug, Default)]
struct DirectiveState {
    task_stops: LatestOrders,
    group_stops: LatestOrders,
    /// Pause and resume orders of groups. A resume order is not in force.
    group_pauses: LatestOrders,
}

/// The latest order for each task or group.
type LatestOrders = HashMap<String, LatestOrder>;

#[derive(Debug)]
struct LatestOrder {
    /// In milliseconds since the Unix epoch.
    at: i64,
    in_force: bool,
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
        let (orders, name, at, in_force) = match order {
            StandingOrder::Task { task, at } => (&mut state.task_stops, task, *at, true),
            StandingOrder::Group { group, at } => (&mut state.group_stops, group, *at, true),
            StandingOrder::Pause { pause: group, at } => (&mut state.group_pauses, group, *at, true),
            StandingOrder::Resume { resume: group, at } => (&mut state.group_pauses, group, *at, false),
        };
        if orders.get(name).is_some_and(|latest| latest.at >= at) {
            return false;
        }
        orders.insert(name.clone(), LatestOrder { at, in_force });
        true
    }

    /// How the orders affect a task.
    ///
    /// The stop of a group covers tasks published before it. A task without a publish time counts as published
    /// before, and one with a precision of a second as published at the start of that second. No stop covers a
    /// task that an operator replayed after it.
    pub(crate) fn effect_on(&self, task: &Envelope, now: SystemTime) -> Option<DirectiveEffect> {
        let DirectiveState { task_stops, group_stops, group_pauses } =
            &*self.0.read().unwrap_or_else(PoisonError::into_inner);
        if task_stops
            .get(task.id.as_str())
            .is_some_and(|stop| task.replayed_at.is_none_or(|at| at <= stop.at))
        {
            return Some(DirectiveEffect::Stopped);
        }
        let group = task.group.as_ref()?;
        let published_at = task.replayed_at.or_else(|| task.published_ms());
        if group_stops.get(group).is_some_and(|stop| published_at.is_none_or(|at| at <= stop.at)) {
            return Some(DirectiveEffect::Stopped);
        }
        let since = group_pauses.get(group).filter(|pause| pause.in_force)?.at;
        let lasted = Duration::from_millis(u64::try_from(epoch_ms(now).saturating_sub(since)).unwrap_or(0));
        Some(DirectiveEffect::Deferred(lasted.min(MAX_DEFERRAL)))
    }

    /// The paused groups, sorted by name.
    pub(crate) fn paused(&self) -> Vec<String> {
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let paused = state.group_pauses.iter().filter(|(_, pause)| pause.in_force);
        let mut groups: Vec<_> = paused.map(|(group, _)| group.clone()).collect();
        groups.sort_unstable();
        groups
    }

    /// Removes orders that the stream does not keep either, and resume orders older than [`RESUME_KEPT`].
    pub(crate) fn remove_expired(&self, now: SystemTime) {
        let (oldest, oldest_resume) = (epoch_ms(now - DIRECTIVES_KEPT), epoch_ms(now - RESUME_KEPT));
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let DirectiveState { task_stops, group_stops, group_pauses } = &mut *state;
        for orders in [task_stops, group_stops, group_pauses] {
            orders.retain(|_, order| order.at >= if order.in_force { oldest } else { oldest_resume });
            orders.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests;
