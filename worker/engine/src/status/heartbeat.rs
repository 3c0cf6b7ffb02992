//! The content of the worker's heartbeats.

use std::collections::BTreeMap;

use garenne_common::{clock, lock::lock};
use garenne_pool::{Phase, TaskState};
use garenne_protocol::{
    heartbeat::{Heartbeat, LaneBeat, NotReadyBeat, Stance, TaskBeat},
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
            not_ready: self.not_ready(epoch_ms(clock::now())),
            sinks: self.settler.sink_buffer.beats(),
            ..self.heartbeats.heartbeat(stance)
        };
        self.lanes.iter().for_each(|lane| self.add_lane(&mut beat, lane));
        beat.bound();
        beat
    }

    /// The kinds whose handlers cannot run tasks.
    fn not_ready(&self, now: i64) -> BTreeMap<String, NotReadyBeat> {
        let mut known = lock(&self.not_ready);
        let not_ready = self.readiness().filter_map(|(kind, ready)| {
            let problem = ready.borrow().clone().err()?;
            let since = known.get(kind).map_or(now, |before| before.since);
            Some((kind.to_owned(), NotReadyBeat { since, problem }))
        });
        *known = not_ready.collect();
        known.clone()
    }

    /// Adds a lane's pool and its running tasks.
    fn add_lane(&self, beat: &mut Heartbeat, lane: &LaneStatus) {
        let (name, pool) = (lane.name.to_string(), lane.pool.snapshot());
        beat.running += pool.running;
        let mut grouped = lane.key_limits.groups();
        for task in &pool.tasks {
            let (id, kind) = (task.id.to_string(), task.label.unwrap_or_default().to_owned());
            beat.kinds.entry(kind.clone()).or_default().started += 1;
            let group = grouped.remove(&*id).map(|group| group.to_string());
            group.iter().for_each(|group| beat.groups.entry(group.clone()).or_default().running += 1);
            beat.tasks.push(TaskBeat {
                progress: self.progress.done(&id),
                lane: name.clone(),
                seconds: task.running_seconds.unwrap_or_default(),
                group: group.or_else(|| task.group.as_ref().map(ToString::to_string)),
                stopping: task.state != TaskState::Running,
                id,
                kind,
            });
        }
        grouped.values().for_each(|group| beat.groups.entry(group.to_string()).or_default().queued += 1);
        for group in pool.groups.iter().filter(|group| group.running + group.queued > 0) {
            let sum = beat.groups.entry(group.name.to_string()).or_default();
            sum.running += group.running;
            sum.queued += group.queued;
        }
        let counted = self.settler.metrics.lane(&name);
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
            delivered: counted.deliveries.get(),
            held: counted.held(),
            unhandled: beat.unhandled.iter().filter(|it| it.lane == name).map(|it| it.tasks).sum(),
            removed: counted.removed_total(),
            waited: counted.wait.get_sample_sum(),
            running_for: pool.tasks.iter().filter_map(|task| task.running_seconds).sum(),
        };
        beat.lanes.insert(name, lane_beat);
    }
}
