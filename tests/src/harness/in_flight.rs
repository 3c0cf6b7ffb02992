//! Stops workers while they hold deliveries; a test that stops an idle worker shows nothing.

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    process::Signal,
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::{Worker, WorkerPlan},
};

impl TestEnv {
    /// Starts a worker, gives it this number of tasks that run for `ms` each, and then this number of tasks, which wait behind
    /// them in the worker. Its prefetch is their sum. The ids are `running-0` and so on, and `waiting-0` and so on.
    pub async fn start_holding(
        &self,
        plan: WorkerPlan,
        (running, ms): (usize, u64),
        waiting: usize,
    ) -> Result<Worker> {
        let lane = format!("fast:prefetch={},concurrency={running}..{running}", running + waiting);
        let worker = plan.stdout().lane(&lane).start().await?;
        self.publish("bench.sleep", &json!({"ms": ms}), "running", running).await?;
        worker.until_holds("fast", running, 0).await?;
        self.publish("bench.noop", &json!({}), "waiting", waiting).await?;
        worker.until_holds("fast", running, waiting).await?;
        Ok(worker)
    }

    /// The number of unacked deliveries on the connections that a worker consumes on, by the broker's statistics. Up to half a
    /// second old.
    async fn unacked_of(&self, worker: &Worker) -> Result<u64> {
        // Foreign messages have a connection of their own.
        let named = format!("garenne-worker {} consume", worker.name());
        let is_own = |name: Option<&str>| name.is_some_and(|name| name.starts_with(&named));
        let connections = self.vhost().view().connections().await?;
        let own = connections.into_iter().filter(|it| is_own(it.user_provided_name.as_deref()));
        let own: Vec<_> = own.map(|connection| connection.name).collect();
        let path = ["vhosts", self.vhost().name(), "channels"];
        let channels: Vec<Value> = self.vhost().broker().management().get(&path).await?;
        let of_own = channels.iter().filter(|channel| {
            channel["connection_details"]["name"].as_str().is_some_and(|name| own.iter().any(|it| it == name))
        });
        Ok(of_own.filter_map(|channel| channel["messages_unacknowledged"].as_u64()).sum())
    }

    /// Waits until a worker holds at least this number of deliveries that are not settled.
    pub async fn until_unacked_of(&self, worker: &Worker, at_least: u64) -> Result<()> {
        eventually(format!("{} holds {at_least} deliveries", worker.name()), async || {
            let unacked = self.unacked_of(worker).await?;
            Ok(Seen::when(unacked >= at_least, unacked))
        })
        .await
    }

    /// Pauses a worker (SIGSTOP) and waits until it holds at least this number of deliveries, which it cannot settle.
    /// Deliveries that the broker sends after the pause count too.
    pub async fn freeze_holding(&self, worker: &Worker, at_least: u64) -> Result<()> {
        worker.signal(Signal::STOP)?;
        self.until_unacked_of(worker, at_least).await
    }

    /// Stops a paused worker: it gets SIGTERM before it continues.
    pub fn stop_frozen(&self, worker: &Worker) -> Result<()> {
        worker.signal(Signal::TERM)?;
        worker.signal(Signal::CONT)
    }
}
