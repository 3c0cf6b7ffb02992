//! The stage of a scenario: a virtual host of its own, a client, and workers on it.

use anyhow::{Context, Result, ensure};
use garenne_common::shutdown::Receipt;
use serde_json::Value;
use tempfile::TempDir;

use super::{
    broker::Broker,
    client::{Client, Taken},
    process::{Ended, Program, Screen},
    users::Users,
    vhost::VirtualHost,
    wait::{Seen, eventually},
    worker::WorkerPlan,
};

/// The retry ladder of test workers: a scenario should not wait for seconds.
const DELAYS: &str = "200ms,400ms";

/// A virtual host, a client that is connected to it, users for the programs, and a folder. All of it goes
/// with this value.
#[derive(Debug)]
pub struct Scene {
    // First, so that the connection is closed before its virtual host is deleted.
    client: Client,
    vhost: VirtualHost,
    users: Users,
    folder: TempDir,
}

impl Scene {
    /// A scene on the broker that all scenarios share.
    ///
    /// # Errors
    /// When there is no broker to be had.
    pub async fn new() -> Result<Self> {
        Self::on(&Broker::shared().await?).await
    }

    /// A scene on a broker of the scenario's own, to be hurt.
    ///
    /// # Errors
    /// When the broker does not answer.
    pub async fn on(broker: &Broker) -> Result<Self> {
        let vhost = broker.vhost().await?;
        let client = Client::connect(&vhost.amqp_url()).await?;
        let users = Users::of(&vhost).await?;
        Ok(Self { client, vhost, users, folder: tempfile::tempdir()? })
    }

    /// The foreign client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Connects the client again, after its connection was broken.
    ///
    /// # Errors
    /// When the broker does not answer.
    pub async fn reconnect(&mut self) -> Result<()> {
        self.client = Client::connect(&self.vhost.amqp_url()).await?;
        Ok(())
    }

    /// The virtual host.
    #[must_use]
    pub fn vhost(&self) -> &VirtualHost {
        &self.vhost
    }

    /// A folder for the scenario's files.
    #[must_use]
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// The users of the programs.
    pub(super) fn users(&self) -> &Users {
        &self.users
    }

    /// A worker on this virtual host, with no right that it does not need, the bench kinds and a short
    /// retry ladder, and no sink yet.
    ///
    /// # Errors
    /// When its files cannot be written.
    pub fn worker(&self, name: &str) -> Result<WorkerPlan> {
        self.worker_through(name, &self.users.worker)
    }

    /// The same with handlers for these kinds and for no other.
    ///
    /// # Errors
    /// As [`worker`](Self::worker).
    pub fn worker_of_kinds(&self, name: &str, kinds: &[&str]) -> Result<WorkerPlan> {
        let program = Program::new("kind-worker").option("--amqp-url", &self.users.worker);
        let program = program.env("TEST_KINDS", kinds.join(","));
        Ok(self.worker_as(name, program)?.on(&self.users.topology))
    }

    /// A worker that reaches the broker by another URL: through a proxy, or as another user. What it needs
    /// there it makes itself.
    ///
    /// # Errors
    /// As [`worker`](Self::worker).
    pub fn worker_at(&self, name: &str, amqp_url: &str) -> Result<WorkerPlan> {
        let program = Program::new("garenne-worker").option("--amqp-url", amqp_url);
        self.worker_as(name, program)
    }

    /// The same as [`worker`](Self::worker), by a URL that leads to the broker through something else.
    ///
    /// # Errors
    /// As [`worker`](Self::worker).
    pub fn worker_through(&self, name: &str, amqp_url: &str) -> Result<WorkerPlan> {
        Ok(self.worker_at(name, amqp_url)?.on(&self.users.topology))
    }

    /// Where workers connect as the user who has no right that they do not need.
    #[must_use]
    pub fn worker_url(&self) -> &str {
        &self.users.worker
    }

    /// Where operators connect as the user who has no right that they do not need.
    #[must_use]
    pub fn operator_url(&self) -> &str {
        &self.users.console
    }

    /// A worker that reads the broker's URL from a file.
    ///
    /// # Errors
    /// As [`worker`](Self::worker).
    pub fn worker_reading(&self, name: &str, file: &std::path::Path) -> Result<WorkerPlan> {
        let program = Program::new("garenne-worker").env("GARENNE_AMQP_URL_FILE", file.display().to_string());
        self.worker_as(name, program)
    }

    fn worker_as(&self, name: &str, program: Program) -> Result<WorkerPlan> {
        let program = program.env("GARENNE_RETRY__DELAYS", DELAYS).env("GARENNE_LOG", "info");
        WorkerPlan::new(program, name, self.folder.path())
    }

    /// Runs the operator's tool on this virtual host, as the user who may do that.
    ///
    /// # Errors
    /// When it does not build or does not end.
    pub async fn garenne(&self, arguments: &[&str]) -> Result<Ended> {
        self.operator(arguments).run().await
    }

    /// The same for an operator who watches it on a terminal.
    ///
    /// # Errors
    /// As [`garenne`](Self::garenne).
    pub async fn garenne_on_terminal(&self, arguments: &[&str]) -> Result<Screen> {
        self.operator(arguments).run_on_terminal().await
    }

    fn operator(&self, arguments: &[&str]) -> Program {
        // Who makes the topology is somebody else than who looks at the fleet and commands it.
        let user = match arguments.first() {
            Some(&"topology") => &self.users.topology.url,
            _ => &self.users.console,
        };
        let program = Program::new("garenne").option("--amqp-url", user);
        arguments.iter().fold(program, |program, argument| program.arg(argument))
    }

    /// Publishes tasks `prefix-0` to `prefix-<count - 1>` to the tasks exchange and answers their ids.
    ///
    /// # Errors
    /// When the broker does not store all of them.
    pub async fn publish(
        &self,
        kind: &str,
        payload: &Value,
        prefix: &str,
        count: usize,
    ) -> Result<Vec<String>> {
        let ids: Vec<_> = (0..count).map(|n| format!("{prefix}-{n}")).collect();
        self.client.publish_all("garenne.tasks", kind, payload, ids.iter().cloned()).await?;
        Ok(ids)
    }

    /// Waits until the broker counts exactly this many messages of a lane as ready and as unacked. Its
    /// counts are up to a second old: what is waited for must last, and must not have been so before.
    ///
    /// # Errors
    /// When it never does.
    pub async fn until_lane(&self, lane: &str, ready: usize, unacked: usize) -> Result<()> {
        self.until_queue(&format!("garenne.tasks.{lane}"), ready, unacked).await
    }

    /// The same for any queue.
    ///
    /// # Errors
    /// When it never does.
    pub async fn until_queue(&self, queue: &str, ready: usize, unacked: usize) -> Result<()> {
        eventually(format!("{queue} has {ready} ready and {unacked} unacked"), async || {
            let status = self.vhost.view().queue(queue).await?;
            let counts = (status.ready as usize, status.unacked as usize);
            Ok(Seen::when(counts == (ready, unacked), format_args!("{counts:?}")))
        })
        .await
    }

    /// Waits until this many messages of a lane are ready, by the broker's answers of the moment: without
    /// the delay of its statistics.
    ///
    /// # Errors
    /// When there never are.
    pub async fn until_ready(&self, lane: &str, count: usize) -> Result<()> {
        self.until_ready_in(&format!("garenne.tasks.{lane}"), count).await
    }

    /// The same for any queue.
    ///
    /// # Errors
    /// When there never are.
    pub async fn until_ready_in(&self, queue: &str, count: usize) -> Result<()> {
        eventually(format!("{count} ready in {queue}"), async || {
            let ready = self.client.ready(queue).await?;
            Ok(Seen::when(ready == count, ready))
        })
        .await
    }

    /// Waits until the broker counts this many acks of the fast lane's deliveries.
    ///
    /// # Errors
    /// When there never are as many.
    pub async fn until_settled(&self, count: usize) -> Result<()> {
        eventually(format!("{count} deliveries settled"), async || {
            let path = ["queues", self.vhost.name(), "garenne.tasks.fast"];
            let queue: Value = self.vhost.broker().management().get(&path).await?;
            let acked = queue["message_stats"]["ack"].as_u64().unwrap_or(0);
            Ok(Seen::when(acked >= count as u64, acked))
        })
        .await
    }

    /// Waits until nobody consumes a lane.
    ///
    /// # Errors
    /// When somebody goes on.
    pub async fn until_no_consumer(&self, lane: &str) -> Result<()> {
        let queue = format!("garenne.tasks.{lane}");
        eventually(format!("nobody consumes {queue}"), async || {
            let consumers = self.client.consumers(&queue).await?;
            Ok(Seen::when(consumers == 0, consumers))
        })
        .await
    }

    /// Waits until this many messages are in a queue, takes them all, and makes sure that there was no
    /// more.
    ///
    /// # Errors
    /// When there never are as many, or there are more.
    pub async fn take_all(&self, queue: &str, count: usize) -> Result<Vec<Taken>> {
        eventually(format!("{count} messages in {queue}"), async || {
            let ready = self.client.ready(queue).await?;
            Ok(Seen::when(ready >= count, ready))
        })
        .await?;
        let mut all = Vec::new();
        while let Some(taken) = self.client.take(queue).await? {
            all.push(taken);
        }
        ensure!(all.len() == count, "{} messages in {queue}, {count} expected", all.len());
        Ok(all)
    }

    /// Takes what is left of this many tasks in the fast lane, whose only worker has stopped, and makes sure
    /// that it is what the worker's receipt says: gone for good is what it settled, and what it handed back
    /// is marked as delivered before. So is what was on its way when the broker cancelled the consumer, which
    /// no worker sees; where all had been delivered nothing was. The broker's statistics would not do: of a
    /// channel that lived shorter than their interval they may tell nothing.
    ///
    /// # Errors
    /// When the receipt says something else.
    pub async fn agrees_with(&self, receipt: &Receipt, published: u64) -> Result<()> {
        let gone = receipt.acked + receipt.dead + receipt.retried;
        let left = published.checked_sub(gone).with_context(|| format!("{published}, {receipt:?}"))?;
        let left = self.take_all("garenne.tasks.fast", usize::try_from(left)?).await?;
        let back = left.iter().filter(|taken| taken.redelivered).count() as u64;
        ensure!(back >= receipt.requeued, "{back} of {} came back, {receipt:?}", left.len());
        Ok(())
    }

    /// Makes sure that a queue is empty at this moment.
    ///
    /// # Errors
    /// With the number of messages where it is not.
    pub async fn is_empty(&self, queue: &str) -> Result<()> {
        let ready = self.client.ready(queue).await?;
        ensure!(ready == 0, "{ready} messages in {queue}, none expected");
        Ok(())
    }
}
