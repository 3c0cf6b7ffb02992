//! The content of the worker's heartbeats.

use std::time::SystemTime;

use garenne_common::config::host_name;
use garenne_pool::{Phase, TaskState};
use garenne_protocol::{
    heartbeat::{Heartbeat, LaneBeat, Program, Stance, TaskBeat},
    task::epoch_ms,
};

use super::{LaneStatus, Status};
use crate::consumer::Intake;

impl Status {
    /// Reads the current state. Takes each pool's lock once, for a short time.
    pub(crate) fn heartbeat(&self) -> Heartbeat {
        let metrics = &self.settler.metrics;
        let mut beat = Heartbeat {
            program: Program::Worker,
            id: self.settler.worker.to_string(),
            incarnation: self.member.incarnation.clone(),
            host: host_name(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: epoch_ms(self.started),
            at: epoch_ms(SystemTime::now()),
            every_ms: self.heartbeat_interval.as_millis().try_into().unwrap_or(u64::MAX),
            stance: match *self.intake.borrow() {
                Intake::Open => Stance::Open,
                Intake::Quiet => Stance::Quiet,
                Intake::Closed => Stance::Stopping,
            },
            lanes: Default::default(),
            paused: self.member.directives.paused_groups(),
            paused_kinds: self.member.directives.paused_kinds(),
            groups: Default::default(),
            running: 0,
            tasks: Vec::new(),
            kinds: metrics.kind_counts(),
            connections: metrics.connection_counts(),
            blocked: metrics.connection().blocked.get() != 0,
            sinks: self.settler.sink_buffer.beats(),
            gateway: None,
        };
        self.lanes.iter().for_each(|lane| self.add_lane(&mut beat, lane));
        beat.bound();
        beat
    }

    /// Adds a lane's pool and its running tasks.
    fn add_lane(&self, beat: &mut Heartbeat, lane: &LaneStatus) {
        let (name, pool) = (lane.name.to_string(), lane.pool.snapshot());
        beat.running += pool.running;
        for task in &pool.tasks {
            let (id, kind) = (task.id.to_string(), task.label.unwrap_or_default().to_owned());
            beat.kinds.entry(kind.clone()).or_default().started += 1;
            beat.tasks.push(TaskBeat {
                progress: self.progress.done(&id),
                lane: name.clone(),
                seconds: task.running_seconds.unwrap_or_default(),
                group: task.group.as_ref().map(ToString::to_string),
                stopping: task.state != TaskState::Running,
                id,
                kind,
            });
        }
        for group in pool.groups.iter().filter(|group| group.running + group.queued > 0) {
            let sum = beat.groups.entry(group.name.to_string()).or_default();
            sum.running += group.running;
            sum.queued += group.queued;
        }
        let counted = self.settler.metrics.lane(&name);
        let delivered = counted.deliveries.get();
        let lane_beat = LaneBeat {
            slots: pool.workers.max,
            busy: pool.workers.busy,
            queued: pool.queued,
            capacity: pool.queue,
            stuck: pool.stuck,
            restarts: pool.workers.restarts,
            open: pool.phase == Phase::Open,
            paused: self.member.directives.is_lane_paused(&name),
            trouble: lane.problem(),
            delivered,
            held: delivered.saturating_sub(counted.settled_total()),
            removed: counted.removed_total(),
            waited: counted.wait.get_sample_sum(),
            running_for: pool.tasks.iter().filter_map(|task| task.running_seconds).sum(),
        };
        beat.lanes.insert(name, lane_beat);
    }
}
