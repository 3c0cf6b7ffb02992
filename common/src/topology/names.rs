//! The names of everything on the broker, from one prefix.

use super::delay::Delay;

/// Builds names; the prefix (default `garenne`) lets several fleets share a virtual host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    prefix: String,
}

impl Names {
    /// Names under `prefix`.
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// Where tasks are published.
    pub fn tasks(&self) -> String {
        format!("{}.tasks", self.prefix)
    }

    /// A lane's queue.
    pub fn lane(&self, lane: &str) -> String {
        format!("{}.tasks.{lane}", self.prefix)
    }

    /// A rung of a lane's retry ladder.
    pub fn retry(&self, lane: &str, delay: Delay) -> String {
        format!("{}.retry.{lane}.{delay}", self.prefix)
    }

    /// Where messages from unclean deaths run alone.
    pub fn suspect(&self) -> String {
        format!("{}.suspect", self.prefix)
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
    pub fn stops(&self) -> String {
        format!("{}.stops", self.prefix)
    }

    /// The stream of workers' starts and stops.
    pub fn lives(&self) -> String {
        format!("{}.lives", self.prefix)
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
