//! Heartbeats: each process periodically publishes its state and counters.
//!
//! A console shows the fleet from heartbeats alone, and computes rates and percentiles as differences between
//! two of them. Counters start at zero with each `incarnation`. Readers ignore unknown fields and treat missing
//! optional ones as empty, so programs of different versions understand each other.

mod received;

use std::{cmp::Reverse, collections::BTreeMap};

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// The maximum number of running tasks listed in a heartbeat; the longest running ones are listed.
pub const MOST_TASKS: usize = 32;

/// The most bytes of a filter in a heartbeat.
const MAX_FILTER: usize = 128;

/// The most bytes of an id. A routing key has at most 255 bytes.
const MAX_ID: usize = 200;

/// The binding key that matches the heartbeats of every process.
pub const BEATS: &str = "beat.#";

/// The program that a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Program {
    /// Runs tasks.
    Worker,
    /// Receives readings and publishes them as tasks.
    Gateway,
    /// Moves messages from an MQTT broker to the AMQP broker.
    Bridge,
}

/// Whether a process accepts new work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stance {
    /// Accepts new work.
    Open,
    /// Paused by an operator: accepts no new work for now.
    Quiet,
    /// Shutting down: accepts no new work and finishes what it has.
    Stopping,
    /// Shut down, everything is settled. The last heartbeat.
    Stopped,
}

/// A heartbeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The program.
    pub program: Program,
    /// The worker's id; for a gateway, host and port; for a bridge, its client id on the MQTT broker.
    pub id: String,
    /// Identifies this run of the process. Counters start at zero with each.
    pub incarnation: String,
    /// The host name.
    #[serde(default)]
    pub host: String,
    /// The program's version.
    #[serde(default)]
    pub version: String,
    /// When the process started, in milliseconds since 1970.
    pub started_at: i64,
    /// When the heartbeat was created, in milliseconds since 1970 by the process's clock.
    pub at: i64,
    /// The interval until the next heartbeat, in milliseconds.
    pub every_ms: u64,
    /// Whether the process accepts new work.
    pub stance: Stance,
    /// The pools, by lane.
    #[serde(default)]
    pub lanes: BTreeMap<String, LaneBeat>,
    /// Paused groups in alphabetical order, at most [`MOST_TASKS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paused: Vec<String>,
    /// Paused kinds in alphabetical order, at most [`MOST_TASKS`]. A lane tells itself whether it is paused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paused_kinds: Vec<String>,
    /// The groups that hold tasks, by name; the [`MOST_TASKS`] largest ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, GroupBeat>,
    /// The number of running tasks, including those not listed in `tasks`.
    #[serde(default)]
    pub running: usize,
    /// The longest running tasks, at most [`MOST_TASKS`].
    #[serde(default)]
    pub tasks: Vec<TaskBeat>,
    /// The kinds whose tasks wait because no running worker has a handler for them; the [`MOST_TASKS`] with the most
    /// tasks that this worker put off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unhandled: Vec<UnhandledBeat>,
    /// The kinds, or patterns of kinds, whose handlers cannot run tasks; at most [`MOST_TASKS`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub not_ready: BTreeMap<String, NotReadyBeat>,
    /// Counters of attempts and dead letters, by kind. Kinds with only zeros are left out.
    #[serde(default)]
    pub kinds: BTreeMap<String, KindBeat>,
    /// The broker connections, by role.
    #[serde(default)]
    pub connections: BTreeMap<String, ConnectionBeat>,
    /// Whether the broker blocks publishing (`connection.blocked`).
    #[serde(default)]
    pub blocked: bool,
    /// The broker's last refusal of a message, because the process's user lacks a right; absent after half a minute without
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied: Option<String>,
    /// The sinks, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sinks: BTreeMap<String, SinkBeat>,
    /// Counters of a gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewayBeat>,
    /// State and counters of a bridge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<BridgeBeat>,
    /// The spool of a gateway or a bridge, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spool: Option<SpoolBeat>,
}

/// The state and counters of a lane's pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LaneBeat {
    /// The maximum number of tasks that run at once.
    pub slots: usize,
    /// Slots that run a task.
    pub busy: usize,
    /// Tasks that wait for a slot.
    pub queued: usize,
    /// The maximum number of unsettled deliveries: the lane's prefetch.
    pub capacity: usize,
    /// Tasks that ignore their cancellation and still occupy a slot.
    pub stuck: u64,
    /// Slots restarted after a panic.
    pub restarts: u64,
    /// Whether the pool accepts tasks.
    pub open: bool,
    /// Whether an operator has paused the lane.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Why the lane's queue is not consumed; absent while it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Messages that the broker delivered.
    pub delivered: u64,
    /// Unsettled deliveries: tasks that wait or run, or whose settlement is not sent yet.
    pub held: u64,
    /// Tasks in the lane's retry queues that this worker put off because no running worker has a handler for their kind, and
    /// that are not due yet.
    pub unhandled: u64,
    /// Deliveries removed from the queue: acked after the task succeeded or a copy of it was confirmed.
    pub removed: u64,
    /// Total time that tasks waited for a slot, in seconds.
    pub waited: f64,
    /// Sum of the ages of the running tasks, including those that the heartbeat does not list, in seconds.
    pub running_for: f64,
}

/// A kind whose tasks wait for a worker with a handler for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnhandledBeat {
    /// The lane in which they wait.
    pub lane: String,
    /// The kind.
    pub kind: String,
    /// The tasks that the worker put off and that are not due yet. Then another worker may put them off.
    pub tasks: u64,
    /// Since when the first of them has been waiting, in milliseconds since 1970.
    pub since: i64,
    /// When tasks come back (milliseconds since 1970), how many the worker put off until then, and how many it received that
    /// any worker had put off until then. They are reported for [`KEPT_MS`](Self::KEPT_MS) longer, so that a task counts
    /// until it is seen again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<(i64, u64, u64)>,
}

impl UnhandledBeat {
    /// How long tasks are reported after they were due, in milliseconds: longer than a running worker's heartbeats are apart.
    pub const KEPT_MS: i64 = 10_000;
}

/// A handler that cannot run tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NotReadyBeat {
    /// Since when, in milliseconds since 1970.
    pub since: i64,
    /// Why; empty while it only starts.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

/// The tasks of a group that a worker holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupBeat {
    /// Running tasks.
    pub running: usize,
    /// Tasks that wait for a slot.
    pub queued: usize,
}

/// A running task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskBeat {
    /// The task's id.
    pub id: String,
    /// The task's kind.
    #[serde(default)]
    pub kind: String,
    /// The lane that runs the task.
    pub lane: String,
    /// Time since the start of the attempt, in seconds.
    #[serde(default)]
    pub seconds: f64,
    /// Progress from 0 to 1, if the handler reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<f64>,
    /// The task's group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Whether the task has been cancelled but still runs.
    #[serde(default)]
    pub stopping: bool,
}

/// Counters of a kind's attempts and dead letters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KindBeat {
    /// Attempts started, including running ones.
    pub started: u64,
    /// Ended attempts, by outcome.
    pub outcomes: BTreeMap<String, u64>,
    /// Dead letters, by reason.
    pub dead: BTreeMap<String, u64>,
    /// Total duration of ended attempts, in seconds.
    pub seconds: f64,
    /// Ended attempts by duration, not cumulative: one count for each bound of the histogram
    /// `garenne_task_duration_seconds` and one above the last. Trailing zeros are left out.
    pub buckets: Vec<u64>,
    /// What was counted within the last minutes.
    #[serde(skip_serializing_if = "RecentBeat::is_zero")]
    pub recent: RecentBeat,
}

/// Counters of a kind's attempts and dead letters within about the last five minutes. Readers that have just started know
/// by them what happens now, as those do that have been reading for longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecentBeat {
    /// Ended attempts.
    pub ended: u64,
    /// Their total duration, in seconds.
    pub seconds: f64,
    /// Those that ended within about the last half minute.
    pub latest_ended: u64,
    /// Their total duration, in seconds.
    pub latest_seconds: f64,
    /// Dead letters.
    pub dead: u64,
}

impl RecentBeat {
    /// The time over which is counted, in milliseconds.
    pub const WINDOW_MS: i64 = 5 * 60 * 1000;
    /// The time over which the latest attempts are counted, in milliseconds.
    pub const LATEST_MS: i64 = 30 * 1000;

    fn is_zero(&self) -> bool {
        *self == Self::default()
    }
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

    /// Dead letters of any reason.
    pub fn dead_letters(&self) -> u64 {
        self.dead.values().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// A broker connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionBeat {
    /// Whether it is open.
    pub up: bool,
    /// How often the connection was reopened after a loss.
    pub epoch: u64,
}

/// The state of a sink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SinkBeat {
    /// Whether it takes results and its background work succeeds.
    pub up: bool,
    /// Since when it does not, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub away_since: Option<i64>,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// Counters of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GatewayBeat {
    /// Open connections, by state.
    pub connections: BTreeMap<String, i64>,
    /// Responses, by status: an HTTP status, or `ok` or the error code of the line protocol.
    pub requests: BTreeMap<String, u64>,
}

/// State and counters of a bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BridgeBeat {
    /// Host and port of the MQTT broker.
    pub broker: String,
    /// Whether it is subscribed.
    pub connected: bool,
    /// The filters of its topics, at most [`MOST_TASKS`].
    pub subscriptions: Vec<String>,
    /// Messages that were received and are not stored yet.
    pub in_flight: u64,
    /// Messages received, by what became of them.
    pub messages: BTreeMap<String, u64>,
}

/// The content of a spool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpoolBeat {
    /// Tasks that wait for the broker.
    pub records: u64,
    /// Size of its segments, in bytes.
    pub bytes: u64,
    /// When the oldest task was accepted, in milliseconds since 1970; absent if none waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_at: Option<i64>,
    /// Segments that were set aside for inspection.
    pub set_aside: usize,
    /// Size of these segments, in bytes.
    pub set_aside_bytes: u64,
}

impl Heartbeat {
    /// The routing key of this process's heartbeats. It contains the program, so that the broker can allow a user the
    /// heartbeats of one program only. Readers drop a heartbeat with another routing key than this.
    pub fn routing_key(&self) -> String {
        let program: &str = self.program.into();
        format!("beat.{program}.{}", self.id)
    }

    /// A process's id in its heartbeats. One that is too long for a routing key is cut.
    #[must_use]
    pub fn fitting_id(mut id: String) -> String {
        cut(&mut id, MAX_ID);
        id
    }

    /// Bounds the size of the heartbeat: keeps the [`MOST_TASKS`] longest running tasks, the largest groups, and the
    /// first paused groups, kinds and filters, of which each is cut.
    pub fn bound(&mut self) {
        if self.groups.len() > MOST_TASKS {
            let mut groups: Vec<_> = std::mem::take(&mut self.groups).into_iter().collect();
            groups.sort_by_key(|(_, group)| Reverse(group.running + group.queued));
            groups.truncate(MOST_TASKS);
            self.groups = groups.into_iter().collect();
        }
        self.tasks.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        self.tasks.truncate(MOST_TASKS);
        self.paused.truncate(MOST_TASKS);
        self.paused_kinds.truncate(MOST_TASKS);
        self.unhandled.truncate(MOST_TASKS);
        while self.not_ready.len() > MOST_TASKS {
            self.not_ready.pop_last();
        }
        if let Some(bridge) = &mut self.bridge {
            bridge.subscriptions.truncate(MOST_TASKS);
            bridge.subscriptions.iter_mut().for_each(|filter| cut(filter, MAX_FILTER));
        }
    }
}

/// Cuts a text to at most `most` bytes.
fn cut(text: &mut String, most: usize) {
    text.truncate(text.floor_char_boundary(most));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat() -> Heartbeat {
        serde_json::from_value(serde_json::json!({
            "program": "worker", "id": "a.b", "incarnation": "i", "started_at": 1, "at": 2,
            "every_ms": 2000, "stance": "open", "unknown_field": [1],
        }))
        .unwrap()
    }

    #[test]
    fn unknown_fields_are_ignored_and_missing_ones_are_empty() {
        let beat = beat();
        assert!(beat.lanes.is_empty() && beat.tasks.is_empty() && beat.gateway.is_none());
        assert_eq!(beat.routing_key(), "beat.worker.a.b");
        let json = serde_json::to_vec(&beat).unwrap();
        assert_eq!(serde_json::from_slice::<Heartbeat>(&json).unwrap(), beat);
    }

    #[test]
    fn bound_keeps_the_longest_running_tasks_and_the_largest_groups() {
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
        beat.groups = (0..100).map(|n| (n.to_string(), GroupBeat { running: 0, queued: n })).collect();
        beat.bound();
        assert_eq!((beat.groups.len(), beat.groups.contains_key("99")), (MOST_TASKS, true));
        assert_eq!((beat.tasks.len(), beat.tasks[0].id.as_str()), (MOST_TASKS, "99"));
        assert_eq!(beat.tasks[MOST_TASKS - 1].id, "68");
    }

    #[test]
    fn a_bridge_with_the_largest_settings_has_a_small_heartbeat() {
        let mut beat = beat();
        let long = "ä".repeat(32_000);
        beat.program = Program::Bridge;
        beat.id = Heartbeat::fitting_id(long.clone());
        beat.bridge = Some(BridgeBeat { subscriptions: vec![long; 1_000], ..BridgeBeat::default() });
        beat.bound();
        assert!(serde_json::to_vec(&beat).unwrap().len() < 6_000);
        assert!(beat.routing_key().len() <= 255 && beat.routing_key().starts_with("beat.bridge.ää"));
        assert_eq!(Heartbeat::fitting_id("short".into()), "short");
    }
}
