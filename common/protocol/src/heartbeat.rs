//! What a process says of itself at every heartbeat: enough for a console to show the fleet without
//! asking each process, and for rates and percentiles as differences between two beats.
//!
//! Counters count from the start of the process; a new `incarnation` begins at zero. Fields that a
//! reader does not know are passed over, those that a writer leaves out are empty.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Running tasks named in one beat, the longest running ones; `running` counts all of them.
pub const MOST_TASKS: usize = 32;

/// The routing key's first word.
const BEAT: &str = "beat";

/// What binds a queue to every process's heartbeats.
pub const BEATS: &str = "beat.#";

/// A process's job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Program {
    /// Runs tasks.
    Worker,
    /// Takes readings and publishes them.
    Gateway,
}

/// How a process stands to new work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stance {
    /// Takes it.
    Open,
    /// Takes none for now.
    Quiet,
    /// Takes none any more and finishes what it has.
    Stopping,
    /// Has settled everything: its last beat.
    Stopped,
}

/// One beat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The job.
    pub program: Program,
    /// The worker's id; for a gateway, host and port.
    pub id: String,
    /// This life of the process; another one counts from zero.
    pub incarnation: String,
    /// The host's name.
    #[serde(default)]
    pub host: String,
    /// The program's version.
    #[serde(default)]
    pub version: String,
    /// When the process started, milliseconds since 1970.
    pub started_at: i64,
    /// When it said this, milliseconds since 1970 by its own clock.
    pub at: i64,
    /// When to expect the next one, milliseconds.
    pub every_ms: u64,
    /// How it stands to new work.
    pub stance: Stance,
    /// Each lane's pool.
    #[serde(default)]
    pub lanes: BTreeMap<String, LaneBeat>,
    /// Groups of which nothing is started; the first so many by name, as of the tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paused: Vec<String>,
    /// Running tasks, named or not.
    #[serde(default)]
    pub running: usize,
    /// The longest running ones, at most [`MOST_TASKS`].
    #[serde(default)]
    pub tasks: Vec<TaskBeat>,
    /// What happened to tasks, by kind; kinds without any are left out.
    #[serde(default)]
    pub kinds: BTreeMap<String, KindBeat>,
    /// The broker connections by role.
    #[serde(default)]
    pub connections: BTreeMap<String, ConnectionBeat>,
    /// Whether the broker lets nobody publish.
    #[serde(default)]
    pub blocked: bool,
    /// What only a gateway has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewayBeat>,
}

/// A lane's pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LaneBeat {
    /// Tasks that run at once, at most.
    pub slots: usize,
    /// Slots with a task.
    pub busy: usize,
    /// Tasks that wait here.
    pub queued: usize,
    /// Tasks delivered and not settled, at most: the lane's prefetch.
    pub capacity: usize,
    /// Tasks that ignore being told to stop and hold their slot.
    pub stuck: u64,
    /// Slots that started anew after a panic.
    pub restarts: u64,
    /// Whether the pool takes tasks.
    pub open: bool,
    /// Why its queue is not consumed; nothing while it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Messages that the broker delivered.
    pub delivered: u64,
    /// Deliveries that are not settled: waiting, running, or on the way out.
    pub held: u64,
    /// Deliveries taken off the queue: done, or copied to where they go next.
    pub removed: u64,
    /// Time that tasks waited here before their start, summed, seconds.
    pub waited: f64,
}

/// A running task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskBeat {
    /// Its id.
    pub id: String,
    /// Its kind.
    #[serde(default)]
    pub kind: String,
    /// The lane that runs it.
    pub lane: String,
    /// For how long, seconds.
    #[serde(default)]
    pub seconds: f64,
    /// How much is done, 0 to 1, where it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<f64>,
    /// Its group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Whether it has been told to stop.
    #[serde(default)]
    pub stopping: bool,
}

/// What happened to tasks of a kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KindBeat {
    /// Attempts begun: those that ended and those that run.
    pub started: u64,
    /// Attempts by how they ended.
    pub outcomes: BTreeMap<String, u64>,
    /// Dead letters by reason.
    pub dead: BTreeMap<String, u64>,
    /// Time in attempts, summed, seconds.
    pub seconds: f64,
    /// Attempts by duration: one count for each bound of the histogram `garenne_task_duration_seconds` and one for what
    /// took longer, zeros at the end left out.
    pub buckets: Vec<u64>,
}

impl KindBeat {
    /// Attempts that ended.
    pub fn ended(&self) -> u64 {
        self.outcomes.values().sum()
    }

    /// Attempts that succeeded.
    pub fn done(&self) -> u64 {
        self.outcomes.get("success").copied().unwrap_or(0)
    }
}

/// A broker connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionBeat {
    /// Whether it is open.
    pub up: bool,
    /// How often it was rebuilt after a loss.
    pub epoch: u64,
}

/// A gateway's senders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GatewayBeat {
    /// Connections by what they do.
    pub connections: BTreeMap<String, i64>,
    /// Answers by status: an HTTP code, or a line's `ok` or error code.
    pub requests: BTreeMap<String, u64>,
}

impl Heartbeat {
    /// The routing key of this process's beats.
    pub fn routing_key(&self) -> String {
        format!("{BEAT}.{}", self.id)
    }

    /// Keeps the longest running tasks and the first paused groups; the beat's size stays bounded whatever runs.
    pub fn bound(&mut self) {
        self.tasks.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        self.tasks.truncate(MOST_TASKS);
        self.paused.truncate(MOST_TASKS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat() -> Heartbeat {
        serde_json::from_value(serde_json::json!({
            "program": "worker", "id": "a.b", "incarnation": "i", "started_at": 1, "at": 2,
            "every_ms": 2000, "stance": "open", "a_field_of_tomorrow": [1],
        }))
        .unwrap()
    }

    #[test]
    fn unknown_fields_are_passed_over_and_missing_ones_are_empty() {
        let beat = beat();
        assert!(beat.lanes.is_empty() && beat.tasks.is_empty() && beat.gateway.is_none());
        assert_eq!(beat.routing_key(), "beat.a.b");
        let json = serde_json::to_vec(&beat).unwrap();
        assert_eq!(serde_json::from_slice::<Heartbeat>(&json).unwrap(), beat);
    }

    #[test]
    fn the_longest_running_tasks_are_the_ones_named() {
        let mut beat = beat();
        beat.tasks = (0..100)
            .map(|n| TaskBeat {
                id: n.to_string(),
                kind: "k".into(),
                lane: "fast".into(),
                seconds: f64::from(n),
                progress: None,
                group: None,
                stopping: false,
            })
            .collect();
        beat.bound();
        assert_eq!((beat.tasks.len(), beat.tasks[0].id.as_str()), (MOST_TASKS, "99"));
        assert_eq!(beat.tasks[MOST_TASKS - 1].id, "68");
    }
}
