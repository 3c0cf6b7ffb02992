//! The worker as its admin port shows and steers it.

use std::sync::Arc;

use garenne_common::{
    pool::Pool,
    shutdown::Command,
    telemetry::admin::{Control, GroupCommand, Readiness},
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use crate::{bridge::Job, execute::Attempt, worker::lane::Lane};

struct LaneStatus {
    name: Arc<str>,
    pool: Pool<Attempt, Job>,
    up: watch::Receiver<bool>,
}

/// What the admin port sees.
pub(crate) struct Status {
    lanes: Vec<LaneStatus>,
    commands: mpsc::Sender<Command>,
}

impl Status {
    pub(crate) fn new(lanes: &[Lane], commands: mpsc::Sender<Command>) -> Self {
        let lanes = lanes
            .iter()
            .map(|lane| LaneStatus {
                name: Arc::clone(&lane.name),
                pool: lane.pool.clone(),
                up: lane.up.clone(),
            })
            .collect();
        Self { lanes, commands }
    }
}

impl Readiness for Status {
    fn ready(&self) -> Result<(), Vec<String>> {
        let down: Vec<_> = self
            .lanes
            .iter()
            .filter(|lane| !*lane.up.borrow())
            .map(|lane| format!("lane {} is not consuming", lane.name))
            .collect();
        if down.is_empty() { Ok(()) } else { Err(down) }
    }
}

impl Control for Status {
    fn command(&self, command: Command) {
        // A full channel holds commands enough.
        let _ = self.commands.try_send(command);
    }

    fn pool(&self) -> Value {
        let lanes = self.lanes.iter().map(|lane| (lane.name.to_string(), json!(lane.pool.snapshot())));
        json!({ "lanes": lanes.collect::<serde_json::Map<_, _>>() })
    }

    fn stop_task(&self, id: &str) -> bool {
        let id = id.into();
        self.lanes.iter().fold(false, |found, lane| lane.pool.stop(&id) | found)
    }

    fn group(&self, group: &str, command: GroupCommand) -> bool {
        for lane in &self.lanes {
            let group = lane.pool.group(group);
            match command {
                GroupCommand::Pause => group.pause(),
                GroupCommand::Resume => group.resume(),
                GroupCommand::Stop => drop(group.stop()),
            }
        }
        true
    }
}
