//! The content of the worker's heartbeats.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_common::{config::host_name, telemetry::Metrics};
use garenne_pool::{Phase, Snapshot, TaskState};
use garenne_protocol::{
    heartbeat::{Heartbeat, LaneBeat, Program, Stance, TaskBeat},
    task::epoch_ms,
};
use tokio::sync::watch;

use super::Status;
use crate::consumer::Intake;

/// The part of a heartbeat that does not come from the lanes.
pub(crate) struct HeartbeatSource {
    pub(crate) worker: Arc<str>,
    pub(crate) incarnation: String,
    pub(crate) started: SystemTime,
    /// The interval between heartbeats.
    pub(crate) every: Duration,
    pub(crate) intake: watch::Receiver<Intake>,
    pub(crate) metrics: Metrics,
}

impl Status {
    /// Reads the current state. Takes each pool's lock once, for a short time.
    pub(crate) fn heartbeat(&self, source: &HeartbeatSource) -> Heartbeat {
        let metrics = &source.metrics;
        let mut beat = Heartbeat {
            program: Program::Worker,
            id: source.worker.to_string(),
            incarnation: source.incarnation.clone(),
            host: host_name(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: epoch_ms(source.started),
            at: epoch_ms(SystemTime::now()),
            every_ms: source.every.as_millis().try_into().unwrap_or(u64::MAX),
            stance: match *source.intake.borrow() {
                Intake::Open => Stance::Open,
                Intake::Quiet => Stance::Quiet,
                Intake::Closed => Stance::Stopping,
            },
            lanes: Default::default(),
            paused: self.member.directives().paused(),
            running: 0,
            tasks: Vec::new(),
            kinds: metrics.kind_counts(),
            connections: metrics.connection_counts(),
            blocked: metrics.connection().blocked.get() != 0,
            gateway: None,
        };
        for lane in &self.lanes {
            add_lane(&mut beat, &lane.name, &lane.pool.snapshot(), |id| self.progress.done(id));
            let counted = metrics.lane(&lane.name);
            if let Some(lane_beat) = beat.lanes.get_mut(&*lane.name) {
                lane_beat.trouble = lane.problems.first();
                lane_beat.delivered = counted.deliveries.get();
                lane_beat.held = lane_beat.delivered.saturating_sub(counted.settled_total());
                lane_beat.removed = counted.removed_total();
                lane_beat.waited = counted.wait.get_sample_sum();
            }
        }
        beat.bound();
        beat
    }
}

/// Adds a lane's pool and its running tasks.
fn add_lane(beat: &mut Heartbeat, name: &str, pool: &Snapshot, progress: impl Fn(&str) -> Option<f64>) {
    beat.running += pool.running;
    for task in &pool.tasks {
        let (id, kind) = (task.id.to_string(), task.label.unwrap_or_default().to_owned());
        beat.kinds.entry(kind.clone()).or_default().started += 1;
        beat.tasks.push(TaskBeat {
            progress: progress(&id),
            lane: name.to_owned(),
            seconds: task.running_seconds.unwrap_or_default(),
            group: task.group.as_ref().map(ToString::to_string),
            stopping: task.state != TaskState::Running,
            id,
            kind,
        });
    }
    let lane = LaneBeat {
        slots: pool.workers.max,
        busy: pool.workers.busy,
        queued: pool.queued,
        capacity: pool.queue,
        stuck: pool.stuck,
        restarts: pool.workers.restarts,
        open: pool.phase == Phase::Open,
        ..LaneBeat::default()
    };
    beat.lanes.insert(name.to_owned(), lane);
}
