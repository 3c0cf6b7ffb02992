//! The content of the worker's heartbeats.

use garenne_common::clock;
use garenne_pool::{Phase, TaskState};
use garenne_protocol::{
    heartbeat::{Heartbeat, LaneBeat, Stance, TaskBeat},
    task::epoch_ms,
};

use super::{LaneStatus, Status};
use crate::consumer::Intake;

impl Status {
    /// Reads the current state. Takes each pool's lock once, for a short time.
    pub(crate) fn heartbeat(&self) -> Heartbeat {
        let stance = match *self.intake.borrow() {
            Intake::Open => Stance::Open,
            Intake::Quiet => Stance::Quiet,
            Intake::Closed => Stance::Stopping,
        };
        let mut beat = Heartbeat {
            paused: self.member.directives.paused_groups(),
            paused_kinds: self.member.directives.paused_kinds(),
            unhandled: self.settler.unhandled.beats(epoch_ms(clock::now())),
            sinks: self.settler.sink_buffer.beats(),
            ..self.heartbeats.heartbeat(stance)
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
            unhandled: beat.unhandled.iter().filter(|it| it.lane == name).map(|it| it.tasks).sum(),
            removed: counted.removed_total(),
            waited: counted.wait.get_sample_sum(),
            running_for: pool.tasks.iter().filter_map(|task| task.running_seconds).sum(),
        };
        beat.lanes.insert(name, lane_beat);
    }
}
