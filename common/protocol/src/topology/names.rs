//! Names of exchanges, queues and streams on the broker.

use super::ladder::Delay;

/// Builds names from a prefix (default `garenne`), so that several fleets can share a virtual host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    prefix: String,
}

impl Names {
    /// The quarantine's name where lanes are listed. Reserved: no lane may have it.
    pub const QUARANTINE: &str = "quarantine";

    /// The delay before the broker tries again to move a dead letter to its queue.
    pub const DEAD_DELAY: Delay = Delay::from_millis(10_000);

    /// Names that start with `prefix`.
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// A lane's queue; the first one if it has several.
    pub fn lane(&self, lane: &str) -> String {
        self.shard(lane, 0)
    }

    /// A queue of a lane with several, counted from 0. The first has the same name as the queue of a lane with
    /// one, so that a lane keeps its backlog when shards are added.
    pub fn shard(&self, lane: &str, shard: u16) -> String {
        match shard {
            0 => format!("{}.tasks.{lane}", self.prefix),
            _ => format!("{}.tasks.{lane}.{shard}", self.prefix),
        }
    }

    /// The consistent-hash exchange that distributes a lane's tasks among its queues.
    pub fn shards(&self, lane: &str) -> String {
        format!("{}.shards.{lane}", self.prefix)
    }

    /// The retry queue with this delay of a lane with one queue.
    pub fn retry(&self, lane: &str, delay: Delay) -> String {
        format!("{}.retry.{lane}.{delay}", self.prefix)
    }

    /// The retry queue with this delay of a lane with several queues. The dead-letter target of a queue cannot
    /// be changed, so a lane that changes between one and several queues uses other retry queues. The old ones
    /// drain by their TTL.
    pub fn retry_shards(&self, lane: &str, delay: Delay) -> String {
        format!("{}.retry.{lane}.shards.{delay}", self.prefix)
    }

    /// The delay queue in front of the quarantine with this delay of [`Ladder::of_quarantine`](super::Ladder). The shortest
    /// one holds new copies, copies of tasks that crashed a worker again, and copies that a worker without their
    /// handler passes on; the others hold tasks whose kind no running worker has.
    pub fn quarantine_retry(&self, delay: Delay) -> String {
        self.retry(Self::QUARANTINE, delay)
    }

    /// A console's queue for heartbeats. Exclusive: the broker deletes it with the connection.
    pub fn console(&self, id: &str) -> String {
        format!("{}.console.{id}", self.prefix)
    }

    /// A worker's queue for commands. Exclusive: the broker deletes it with the connection.
    pub fn worker(&self, id: &str) -> String {
        format!("{}.worker.{id}", self.prefix)
    }
}

/// Defines a method for each name that has no parameter.
macro_rules! names {
    ($($(#[$doc:meta])* $method:ident = $name:literal;)*) => {
        impl Names {
            $($(#[$doc])* pub fn $method(&self) -> String {
                format!(concat!("{}.", $name), self.prefix)
            })*
        }
    };
}

names! {
    /// The exchange that clients publish tasks to.
    tasks = "tasks";
    /// The exchange that RabbitMQ's MQTT plugin can publish to. It exists if a lane receives from it.
    mqtt = "mqtt";
    /// The queue of tasks whose worker crashed. Each of them runs alone.
    quarantine = "quarantine";
    /// The queue of dead letters, and the exchange of the same name.
    dead = "dead";
    /// The queue of dead letters that their queue did not take, and the exchange of the same name. The broker moves them
    /// to the exchange of dead letters after [`Names::DEAD_DELAY`], and again until it takes them.
    dead_waiting = "dead.waiting";
    /// The queue of tasks that no lane's binding matches, and the alternate exchange of the same name.
    unroutable = "unroutable";
    /// The stream of directives.
    directives = "directives";
    /// The stream of lifecycle events: workers' starts and stops.
    lifecycle = "lifecycle";
    /// The exchange of task results, if workers are configured to publish them.
    results = "results";
    /// The exchange of commands to workers.
    control = "control";
    /// The stream of the records of operators' commands.
    audit = "audit";
    /// The exchange of heartbeats, lifecycle events and records of commands.
    events = "events";
}
