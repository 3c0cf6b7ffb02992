//! The names of everything on the broker, from one prefix.

use super::delay::Delay;

/// Builds names; the prefix (default `garenne`) lets several fleets share a virtual host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    prefix: String,
}

impl Names {
    /// What the quarantine is called among the lanes; no lane may have that name.
    pub const QUARANTINE: &str = "quarantine";
    /// How long a copy waits before it enters the quarantine.
    pub const QUARANTINE_DELAY: Delay = Delay::from_millis(1000);

    /// Names under `prefix`.
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// Where tasks are published.
    pub fn tasks(&self) -> String {
        format!("{}.tasks", self.prefix)
    }

    /// A lane's queue; the first where several share its tasks.
    pub fn lane(&self, lane: &str) -> String {
        self.shard(lane, 0)
    }

    /// One of the queues that share a lane's tasks, counted from 0. The first has the name of a lane's only
    /// one, so that a lane that grows keeps its backlog.
    pub fn shard(&self, lane: &str, shard: u16) -> String {
        match shard {
            0 => format!("{}.tasks.{lane}", self.prefix),
            _ => format!("{}.tasks.{lane}.{shard}", self.prefix),
        }
    }

    /// The exchange that divides a lane's tasks among its queues.
    pub fn shards(&self, lane: &str) -> String {
        format!("{}.shards.{lane}", self.prefix)
    }

    /// A rung of the retry ladder of a lane with one queue.
    pub fn retry(&self, lane: &str, delay: Delay) -> String {
        format!("{}.retry.{lane}.{delay}", self.prefix)
    }

    /// A rung of the retry ladder of a lane with several queues. Where a rung leads to cannot be changed, so
    /// it is another one, and those of the lane's former shape empty themselves.
    pub fn retry_shards(&self, lane: &str, delay: Delay) -> String {
        format!("{}.retry.{lane}.shards.{delay}", self.prefix)
    }

    /// Where messages from unclean deaths run alone.
    pub fn quarantine(&self) -> String {
        format!("{}.quarantine", self.prefix)
    }

    /// Where copies wait before they enter the quarantine: new ones, those that crashed a worker, and those that
    /// a worker without their handler hands on.
    pub fn quarantine_retry(&self) -> String {
        self.retry(Self::QUARANTINE, Self::QUARANTINE_DELAY)
    }

    /// Dead letters: the queue, and the exchange of the same name.
    pub fn dead(&self) -> String {
        format!("{}.dead", self.prefix)
    }

    /// What no lane takes: the queue, and the alternate exchange of the same name.
    pub fn unroutable(&self) -> String {
        format!("{}.unroutable", self.prefix)
    }

    /// The stream of stop orders.
    pub fn directives(&self) -> String {
        format!("{}.directives", self.prefix)
    }

    /// The stream of workers' starts and stops.
    pub fn lifecycle(&self) -> String {
        format!("{}.lifecycle", self.prefix)
    }

    /// One message per finished task, where that is on.
    pub fn results(&self) -> String {
        format!("{}.results", self.prefix)
    }

    /// Commands to workers.
    pub fn control(&self) -> String {
        format!("{}.control", self.prefix)
    }

    /// Heartbeats from workers.
    pub fn events(&self) -> String {
        format!("{}.events", self.prefix)
    }

    /// A console's own queue, for heartbeats: exclusive, gone with its connection.
    pub fn console(&self, id: &str) -> String {
        format!("{}.console.{id}", self.prefix)
    }

    /// A worker's own queue: exclusive, gone with its connection.
    pub fn worker(&self, id: &str) -> String {
        format!("{}.worker.{id}", self.prefix)
    }
}
