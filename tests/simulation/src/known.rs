//! The directives that a worker has read from the stream.

use std::{collections::HashMap, time::Duration};

use garenne_protocol::task::Directive;

/// A directive that is the latest one of its name.
#[derive(Clone, Copy)]
struct Latest {
    /// When it was issued, in milliseconds since 1970.
    at: i64,
    /// When the worker read it. [`None`] for the end of a pause.
    in_force_since: Option<Duration>,
}

/// What a worker knows. It acts on a directive as soon as it has read it.
#[derive(Default)]
pub(crate) struct KnownDirectives {
    stopped_tasks: HashMap<String, Latest>,
    paused_groups: HashMap<String, Latest>,
    paused_lanes: HashMap<String, Latest>,
}

impl KnownDirectives {
    /// The worker reads a directive. An older one that arrives late changes nothing.
    pub(crate) fn read(&mut self, directive: Directive, now: Duration) {
        let (latest, name, at, in_force) = match directive {
            Directive::StopTask { task, at } => (&mut self.stopped_tasks, task, at, true),
            Directive::PauseGroup { pause, at } => (&mut self.paused_groups, pause, at, true),
            Directive::ResumeGroup { resume, at } => (&mut self.paused_groups, resume, at, false),
            Directive::PauseLane { pause_lane, at } => (&mut self.paused_lanes, pause_lane, at, true),
            Directive::ResumeLane { resume_lane, at } => (&mut self.paused_lanes, resume_lane, at, false),
            // Histories have no others that hold back a task before it starts.
            _ => return,
        };
        if latest.get(&name).is_none_or(|latest| latest.at < at) {
            latest.insert(name, Latest { at, in_force_since: in_force.then_some(now) });
        }
    }

    /// Since when the task has been stopped.
    pub(crate) fn stopped_since(&self, task: &str) -> Option<Duration> {
        self.stopped_tasks.get(task)?.in_force_since
    }

    /// Since when the group has been paused.
    pub(crate) fn group_paused_since(&self, group: &str) -> Option<Duration> {
        self.paused_groups.get(group)?.in_force_since
    }

    /// Since when the lane has been paused.
    pub(crate) fn lane_paused_since(&self, lane: &str) -> Option<Duration> {
        self.paused_lanes.get(lane)?.in_force_since
    }
}
