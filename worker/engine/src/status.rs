//! The state of a running worker, for the admin port and for heartbeats.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use garenne_common::telemetry::{
    HeartbeatSource,
    admin::{GroupCommand, Process, Tasks},
};
use garenne_protocol::{heartbeat::NotReadyBeat, task::Directive};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::{
    batch::RunningBatches,
    consumer::Intake,
    fleet::Member,
    handler::ProgressBoard,
    pipeline::{KeyLimits, LanePool},
    registry::{Registry, unready},
    settlement::Settler,
};

mod heartbeat;

/// Reads the worker's state and passes on its operators' commands for tasks.
pub(crate) struct Status {
    pub(crate) heartbeats: HeartbeatSource,
    pub(crate) intake: watch::Receiver<Intake>,
    pub(crate) lanes: Vec<LaneStatus>,
    pub(crate) batches: Arc<RunningBatches>,
    pub(crate) member: Arc<Member>,
    pub(crate) progress: Arc<ProgressBoard>,
    pub(crate) settler: Arc<Settler>,
    pub(crate) registry: Arc<Registry>,
    /// The kinds whose handlers were not ready at the last heartbeat.
    pub(crate) not_ready: Mutex<BTreeMap<String, NotReadyBeat>>,
}

/// A lane's pool, and why the lane is not consuming.
#[derive(Clone)]
pub(crate) struct LaneStatus {
    pub(crate) name: Arc<str>,
    pub(crate) pool: LanePool,
    pub(crate) key_limits: Arc<KeyLimits>,
    pub(crate) queues: Vec<ConsumedQueue>,
}

/// A queue of a lane.
#[derive(Clone)]
pub(crate) struct ConsumedQueue {
    pub(crate) name: String,
    /// [`None`] while the queue is consumed.
    pub(crate) problem: watch::Receiver<Option<String>>,
}

impl LaneStatus {
    /// The problem of the first queue that has one. A lane with several queues names the queue.
    fn problem(&self) -> Option<String> {
        let problem_of = |ConsumedQueue { name, problem }: &ConsumedQueue| {
            let problem = problem.borrow().clone()?;
            Some(if self.queues.len() > 1 { format!("{name}: {problem}") } else { problem })
        };
        self.queues.iter().find_map(problem_of)
    }
}

impl Status {
    /// The kinds whose handlers depend on something else, and whether they are ready.
    fn readiness(&self) -> impl Iterator<Item = (&str, &watch::Receiver<Result<(), String>>)> {
        self.registry.entries().filter_map(|(kind, entry)| Some((kind, entry.options.ready.as_ref()?)))
    }
}

impl Process for Status {
    /// Ready if all queues are consumed and results can be settled.
    fn ready(&self) -> Result<(), Vec<String>> {
        if *self.intake.borrow() == Intake::Closed {
            return Err(vec!["stopping".to_owned()]);
        }
        let not_consuming = |lane: &LaneStatus| {
            let problem = lane.problem()?;
            Some(format!("lane {} is not consuming: {problem}", lane.name))
        };
        let mut problems: Vec<_> = self.lanes.iter().filter_map(not_consuming).collect();
        problems.extend(unready(self.readiness()));
        problems.extend(self.settler.sink_buffer.problems());
        problems.extend(self.settler.missing.problems());
        problems.extend(self.settler.letters.problem());
        problems.extend(self.member.stream_problems());
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// An alarm of the broker blocks copies, follow-ups and heartbeats. Other tasks are finished and acked, so the worker stays
    /// in service: all workers of the broker have the same alarm.
    fn warnings(&self) -> Vec<String> {
        self.settler.publisher.block_problem().into_iter().collect()
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

    fn tasks(&self) -> Option<&dyn Tasks> {
        Some(self)
    }
}

impl Tasks for Status {
    fn stop(&self, id: &str) -> bool {
        let task = id.into();
        let is_in_pool = self.lanes.iter().fold(false, |found, lane| lane.pool.stop(&task) | found);
        // The pool knows a batch by the batch's id only. A record is stopped before it starts, by a directive.
        let is_in_batch = self.batches.contains_record(id);
        if is_in_batch {
            self.member.apply_locally(|at| Directive::StopTask { task: id.to_owned(), at });
        }
        is_in_pool || is_in_batch
    }

    fn group(&self, group: &str, command: GroupCommand) -> bool {
        let name = group.to_owned();
        match command {
            GroupCommand::Pause => self.member.apply_locally(|at| Directive::PauseGroup { pause: name, at }),
            GroupCommand::Resume => {
                self.member.apply_locally(|at| Directive::ResumeGroup { resume: name, at });
            }
            GroupCommand::Stop => {
                for lane in &self.lanes {
                    lane.pool.group(group).stop();
                    let of_key = lane.key_limits.groups().into_iter().filter(|(_, of)| **of == *group);
                    for (id, _) in of_key {
                        // It may have ended meanwhile.
                        let _ = lane.pool.stop(&(&*id).into());
                    }
                }
            }
        }
        true
    }
}
