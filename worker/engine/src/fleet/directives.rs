//! The directives of operators: which tasks and groups are stopped, and which groups, lanes and kinds are
//! paused.

mod looks;

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock, RwLockReadGuard},
    time::{Duration, SystemTime},
};

use garenne_protocol::{
    task::{Directive, Envelope, epoch_ms, matches_binding},
    topology::DIRECTIVES_KEPT,
};
use tokio::sync::watch;

use looks::LaneLooks;

/// Longest deferral of a task of a paused group or kind.
const MAX_DEFERRAL: Duration = Duration::from_secs(300);
/// How long a resume directive is kept, so that an older pause directive that arrives late does not undo it. The clocks of
/// two operators may differ by this much.
const RESUME_KEPT: Duration = Duration::from_secs(3600);

/// All directives in force. Each task is checked twice: when it is delivered, and when it starts, because a directive may
/// arrive while it waits in the pool.
#[derive(Debug, Default)]
pub(crate) struct Directives {
    state: RwLock<DirectiveState>,
    /// Notified when the pause of a lane changes.
    lane_pauses_changed: watch::Sender<()>,
}

/// The latest directives. A resume directive is not in force.
#[derive(Debug, Default)]
struct DirectiveState {
    task_stops: LatestDirectives,
    group_stops: LatestDirectives,
    group_pauses: LatestDirectives,
    lane_pauses: LatestDirectives,
    kind_pauses: LatestDirectives,
    lane_looks: LaneLooks,
}

/// The latest directive for each task, group, lane or kind.
type LatestDirectives = HashMap<String, LatestDirective>;

#[derive(Debug)]
struct LatestDirective {
    /// In milliseconds since the Unix epoch.
    at: i64,
    in_force: bool,
}

impl LatestDirective {
    /// How long ago the directive was issued.
    fn age(&self, now: SystemTime) -> Duration {
        Duration::from_millis(u64::try_from(epoch_ms(now).saturating_sub(self.at)).unwrap_or(0))
    }
}

/// The names with a directive in force, sorted.
fn in_force(directives: &LatestDirectives) -> Vec<String> {
    let mut names: Vec<_> =
        directives.iter().filter(|(_, directive)| directive.in_force).map(|(name, _)| name.clone()).collect();
    names.sort_unstable();
    names
}

/// The directive for a name, if it is in force.
fn directive_for<'a>(directives: &'a LatestDirectives, name: &str) -> Option<&'a LatestDirective> {
    directives.get(name).filter(|directive| directive.in_force)
}

/// The directives in force for a kind, by its name or by a pattern of kinds.
fn directives_for_kind<'a>(
    directives: &'a LatestDirectives,
    kind: &str,
) -> impl Iterator<Item = &'a LatestDirective> {
    let is_for = move |(name, directive): &(&String, &LatestDirective)| {
        directive.in_force && matches_binding(name, kind)
    };
    directives.iter().filter(is_for).map(|(_, directive)| directive)
}

/// How a directive affects a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectiveEffect {
    /// It must not start.
    Stopped,
    /// Its lane is paused. It goes back to the lane's queue, which no worker consumes meanwhile.
    LanePaused,
    /// Its group or its kind is paused, and it must be deferred by this duration.
    ///
    /// The duration is that of the pause so far, up to [`MAX_DEFERRAL`]. So the tasks run again after at most twice
    /// the pause, and a long pause causes few copies.
    Deferred(Duration),
}

impl Directives {
    /// Applies a directive, and returns whether it changes anything. No task that it covers starts afterwards.
    pub(crate) fn apply(&self, directive: &Directive) -> bool {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let is_of_lane = matches!(directive, Directive::PauseLane { .. } | Directive::ResumeLane { .. });
        let (directives, name, at, in_force) = match directive {
            Directive::StopTask { task, at } => (&mut state.task_stops, task, *at, true),
            Directive::StopGroup { group, at } => (&mut state.group_stops, group, *at, true),
            Directive::PauseGroup { pause, at } => (&mut state.group_pauses, pause, *at, true),
            Directive::ResumeGroup { resume, at } => (&mut state.group_pauses, resume, *at, false),
            Directive::PauseLane { pause_lane, at } => (&mut state.lane_pauses, pause_lane, *at, true),
            Directive::ResumeLane { resume_lane, at } => (&mut state.lane_pauses, resume_lane, *at, false),
            Directive::PauseKind { pause_kind, at } => (&mut state.kind_pauses, pause_kind, *at, true),
            Directive::ResumeKind { resume_kind, at } => (&mut state.kind_pauses, resume_kind, *at, false),
            Directive::Look { look, at } => return state.lane_looks.add(look, *at),
        };
        if directives.get(name).is_some_and(|latest| latest.at >= at) {
            return false;
        }
        directives.insert(name.clone(), LatestDirective { at, in_force });
        drop(state);
        if is_of_lane {
            self.lane_pauses_changed.send_replace(());
        }
        true
    }

    /// How the directives affect a task of this lane. Without a lane, pauses of lanes do not matter.
    ///
    /// The stop of a group covers tasks published before it. A task without a publish time counts as published
    /// before, and one with a precision of a second as published at the start of that second. No stop covers a
    /// task that an operator replayed after it.
    pub(crate) fn effect_on(
        &self,
        task: &Envelope,
        lane: Option<&str>,
        now: SystemTime,
    ) -> Option<DirectiveEffect> {
        let state = self.read();
        let DirectiveState { task_stops, group_stops, group_pauses, lane_pauses, kind_pauses, .. } = &*state;
        if task_stops
            .get(task.id.as_str())
            .is_some_and(|stop| task.replayed_at.is_none_or(|at| at <= stop.at))
        {
            return Some(DirectiveEffect::Stopped);
        }
        let group = task.group.as_deref();
        let published_at = task.replayed_at.or_else(|| task.published_ms());
        let stopped = |stop: &LatestDirective| published_at.is_none_or(|at| at <= stop.at);
        if group.and_then(|group| group_stops.get(group)).is_some_and(stopped) {
            return Some(DirectiveEffect::Stopped);
        }
        if lane.is_some_and(|lane| directive_for(lane_pauses, lane).is_some()) {
            return Some(DirectiveEffect::LanePaused);
        }
        let of_group = group.and_then(|group| directive_for(group_pauses, group));
        let pauses = of_group.into_iter().chain(directives_for_kind(kind_pauses, task.kind.as_str()));
        let longest = pauses.map(|pause| pause.age(now)).max()?;
        Some(DirectiveEffect::Deferred(longest.min(MAX_DEFERRAL)))
    }

    /// The paused groups, sorted by name.
    pub(crate) fn paused_groups(&self) -> Vec<String> {
        in_force(&self.read().group_pauses)
    }

    /// The paused kinds, sorted by name.
    pub(crate) fn paused_kinds(&self) -> Vec<String> {
        in_force(&self.read().kind_pauses)
    }

    pub(crate) fn is_lane_paused(&self, lane: &str) -> bool {
        directive_for(&self.read().lane_pauses, lane).is_some()
    }

    /// Whether a kind is paused, by its name or by a pattern.
    pub(crate) fn is_kind_paused(&self, kind: &str) -> bool {
        directives_for_kind(&self.read().kind_pauses, kind).next().is_some()
    }

    /// The looks at a lane since a task was published: at most so many of its redeliveries are no worker's.
    pub(crate) fn looks_at(&self, lane: &str, task: &Envelope) -> u32 {
        self.read().lane_looks.since(lane, task.published_ms())
    }

    /// Tells of each change of a lane's pause.
    pub(crate) fn lane_pauses_changed(&self) -> watch::Receiver<()> {
        self.lane_pauses_changed.subscribe()
    }

    /// Removes directives that the stream does not keep either, and resume directives older than [`RESUME_KEPT`].
    pub(crate) fn remove_expired(&self, now: SystemTime) {
        let (oldest, oldest_resume) = (epoch_ms(now - DIRECTIVES_KEPT), epoch_ms(now - RESUME_KEPT));
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.lane_looks.remove_before(oldest);
        let DirectiveState { task_stops, group_stops, group_pauses, lane_pauses, kind_pauses, .. } =
            &mut *state;
        for directives in [task_stops, group_stops, group_pauses, lane_pauses, kind_pauses] {
            directives.retain(|_, directive| {
                directive.at >= if directive.in_force { oldest } else { oldest_resume }
            });
            directives.shrink_to_fit();
        }
        drop(state);
        self.lane_pauses_changed.send_replace(());
    }

    fn read(&self) -> RwLockReadGuard<'_, DirectiveState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
