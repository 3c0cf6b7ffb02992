//! The worker as its admin port shows and steers it.

use std::sync::Arc;

use garenne_common::{
    shutdown::Command,
    telemetry::admin::{Control, GroupCommand, Readiness},
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    batch::RunningBatches,
    execution::LanePool,
    fleet::Member,
    handler::ProgressBoard,
    settlement::Settler,
    worker::lane::{ConsumerProblems, Lane},
};

mod beat;

pub(crate) use beat::HeartbeatSource;

struct LaneStatus {
    name: Arc<str>,
    pool: LanePool,
    trouble: ConsumerProblems,
}

/// What the admin port sees.
pub(crate) struct Status {
    lanes: Vec<LaneStatus>,
    batches: Arc<RunningBatches>,
    member: Arc<Member>,
    progress: Arc<ProgressBoard>,
    settler: Arc<Settler>,
    commands: mpsc::Sender<Command>,
}

impl Status {
    pub(crate) fn new(
        lanes: &[Lane],
        batches: Arc<RunningBatches>,
        member: Arc<Member>,
        progress: Arc<ProgressBoard>,
        settler: Arc<Settler>,
        commands: mpsc::Sender<Command>,
    ) -> Self {
        let lanes = lanes
            .iter()
            .map(|lane| LaneStatus {
                name: Arc::clone(&lane.name),
                pool: lane.pool.clone(),
                trouble: lane.problems.clone(),
            })
            .collect();
        Self { lanes, batches, member, progress, settler, commands }
    }
}

impl Readiness for Status {
    fn ready(&self) -> Result<(), Vec<String>> {
        let down = |lane: &LaneStatus| {
            let problem = lane.trouble.first()?;
            Some(format!("lane {} is not consuming: {problem}", lane.name))
        };
        let mut down: Vec<_> = self.lanes.iter().filter_map(down).collect();
        // What is done there cannot be settled.
        down.extend(self.settler.sink_buffer.problems());
        down.extend(self.settler.missing.problems());
        if down.is_empty() { Ok(()) } else { Err(down) }
    }
}

impl Control for Status {
    fn command(&self, command: Command) {
        // A full channel holds commands enough.
        let _ = self.commands.try_send(command);
    }

    fn pool(&self) -> Value {
        let lanes = self.lanes.iter().map(|lane| {
            let snapshot = lane.pool.snapshot();
            let mut shown = json!(snapshot);
            for (place, task) in snapshot.tasks.iter().enumerate() {
                if let Some(done) = self.progress.done(&task.id.to_string()) {
                    shown["tasks"][place]["progress"] = json!(done);
                }
            }
            (lane.name.to_string(), shown)
        });
        json!({ "lanes": lanes.collect::<serde_json::Map<_, _>>() })
    }

    fn stop_task(&self, id: &str) -> bool {
        let task = id.into();
        let found = self.lanes.iter().fold(false, |found, lane| lane.pool.stop(&task) | found);
        let packed = self.batches.hold(id);
        if packed {
            self.member.stop_locally(id);
        }
        found || packed
    }

    fn group(&self, group: &str, command: GroupCommand) -> bool {
        match command {
            GroupCommand::Pause => self.member.pause_locally(group, true),
            GroupCommand::Resume => self.member.pause_locally(group, false),
            GroupCommand::Stop => {
                for lane in &self.lanes {
                    lane.pool.group(group).stop();
                }
            }
        }
        true
    }
}
