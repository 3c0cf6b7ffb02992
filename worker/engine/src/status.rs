//! The state of a running worker, for the admin port and for heartbeats.

use std::sync::Arc;

use garenne_common::{
    shutdown::Command,
    telemetry::admin::{Control, GroupCommand, Readiness},
};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use crate::{
    batch::RunningBatches, fleet::Member, handler::ProgressBoard, pipeline::LanePool, settlement::Settler,
};

mod consumer_problems;
mod heartbeat;

pub(crate) use consumer_problems::ConsumerProblems;
pub(crate) use heartbeat::HeartbeatSource;

/// A lane as the status reads it.
pub(crate) struct LaneStatus {
    pub(crate) name: Arc<str>,
    pub(crate) pool: LanePool,
    pub(crate) problems: ConsumerProblems,
}

/// Reads the worker's state and passes on commands of its operators.
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
        lanes: Vec<LaneStatus>,
        batches: Arc<RunningBatches>,
        member: Arc<Member>,
        progress: Arc<ProgressBoard>,
        settler: Arc<Settler>,
        commands: mpsc::Sender<Command>,
    ) -> Self {
        Self { lanes, batches, member, progress, settler, commands }
    }
}

impl Readiness for Status {
    /// Ready if all queues are consumed and results can be settled.
    fn ready(&self) -> Result<(), Vec<String>> {
        let consumer_problem = |lane: &LaneStatus| {
            let problem = lane.problems.first()?;
            Some(format!("lane {} is not consuming: {problem}", lane.name))
        };
        let mut problems: Vec<_> = self.lanes.iter().filter_map(consumer_problem).collect();
        problems.extend(self.settler.sink_buffer.problems());
        problems.extend(self.settler.missing.problems());
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
}

impl Control for Status {
    fn command(&self, command: Command) {
        // If the channel is full, the worker is about to obey earlier commands, and this one is dropped.
        let _ = self.commands.try_send(command);
    }

    fn pool(&self) -> Value {
        let lanes = self.lanes.iter().map(|lane| {
            let snapshot = lane.pool.snapshot();
            let mut pool = json!(snapshot);
            for (index, task) in snapshot.tasks.iter().enumerate() {
                if let Some(done) = self.progress.done(&task.id.to_string()) {
                    pool["tasks"][index]["progress"] = json!(done);
                }
            }
            (lane.name.to_string(), pool)
        });
        json!({ "lanes": lanes.collect::<Map<_, _>>() })
    }

    fn stop_task(&self, id: &str) -> bool {
        let task = id.into();
        let is_in_pool = self.lanes.iter().fold(false, |found, lane| lane.pool.stop(&task) | found);
        // The pool knows a batch by the batch's id only. A record is stopped before it starts, by a directive.
        let is_in_batch = self.batches.contains_record(id);
        if is_in_batch {
            self.member.stop_locally(id);
        }
        is_in_pool || is_in_batch
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
