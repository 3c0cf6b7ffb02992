//! The environment of a scenario: its own virtual host, a client, users, and workers.

use anyhow::{Context, Result, ensure};
use garenne_common::shutdown::Receipt;
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::{Duration, Instant};

use super::{
    broker::Broker,
    client::{Client, Taken},
    process::{Ended, Program, Screen},
    users::Users,
    vhost::VirtualHost,
    wait::{Seen, eventually},
    worker::WorkerPlan,
};

/// The retry delays of test workers, short so that scenarios do not wait for seconds.
pub const DELAYS: &str = "200ms,400ms";

/// How old the broker's statistics may be on a busy machine: it collects them every five seconds.
const STATISTICS_AGE: Duration = Duration::from_secs(15);

/// A virtual host, a client that is connected to it, users for the programs, and a folder. All of it is removed when
/// the value is dropped.
#[derive(Debug)]
pub struct TestEnv {
    // First, so that the connection is closed before its virtual host is deleted.
    client: Client,
    vhost: VirtualHost,
    users: Users,
    folder: TempDir,
}

impl TestEnv {
    /// A test environment on the broker that all scenarios share.
    pub async fn new() -> Result<Self> {
        Self::on(&Broker::shared().await?).await
    }

    /// A test environment on the scenario's own broker, which it may stop or throttle.
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

    /// Connects the client again after its connection was lost.
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

    /// A worker on this virtual host. It has only the permissions that it needs, the bench kinds, short retry delays,
    /// and no sink yet.
    pub fn worker(&self, name: &str) -> Result<WorkerPlan> {
        self.worker_through(name, &self.users.worker)
    }

    /// A worker with handlers for these kinds only.
    pub fn worker_of_kinds(&self, name: &str, kinds: &[&str]) -> Result<WorkerPlan> {
        Ok(self.application("kind-worker", name)?.env("TEST_KINDS", kinds.join(",")))
    }

    /// A worker that is another program with the command line of every worker.
    pub fn application(&self, program: &str, name: &str) -> Result<WorkerPlan> {
        let program = Program::new(program).option("--amqp-url", &self.users.worker);
        Ok(self.worker_as(name, program)?.on(&self.users.topology))
    }

    /// A worker with another broker URL: through a proxy, or as another user. It declares its topology itself.
    pub fn worker_at(&self, name: &str, amqp_url: &str) -> Result<WorkerPlan> {
        let program = Program::new("garenne-worker").option("--amqp-url", amqp_url);
        self.worker_as(name, program)
    }

    /// As [`worker`](Self::worker), with a URL that leads to the broker through a proxy.
    pub fn worker_through(&self, name: &str, amqp_url: &str) -> Result<WorkerPlan> {
        Ok(self.worker_at(name, amqp_url)?.on(&self.users.topology))
    }

    /// The broker URL of workers, with only the permissions that they need.
    #[must_use]
    pub fn worker_url(&self) -> &str {
        &self.users.worker
    }

    /// The broker URL of operators, with only the permissions that they need.
    #[must_use]
    pub fn operator_url(&self) -> &str {
        &self.users.console
    }

    /// A worker with the tasks of a Celery application as its handlers, and with the lane `proj` for them. It may consume the
    /// application's queue.
    pub fn celery_worker(&self, name: &str) -> Result<WorkerPlan> {
        let program = Program::new("celery-worker").option("--amqp-url", self.vhost.amqp_url());
        let program = program.env("GARENNE_LANES__PROJ__CELERY", "true");
        self.worker_as(name, program.env("GARENNE_LANES__PROJ__BINDINGS", "proj.#"))
    }

    /// A worker that reads the broker's URL from a file.
    pub fn worker_reading(&self, name: &str, file: &std::path::Path) -> Result<WorkerPlan> {
        let program = Program::new("garenne-worker").env("GARENNE_AMQP_URL_FILE", file.display().to_string());
        self.worker_as(name, program)
    }

    fn worker_as(&self, name: &str, program: Program) -> Result<WorkerPlan> {
        let program = program.env("GARENNE_RETRY__DELAYS", DELAYS).env("GARENNE_LOG", "info");
        WorkerPlan::new(program, name, self.folder.path())
    }

    /// Runs the console on this virtual host, as the user with the permissions for that, without a log: its standard
    /// error has only what the command says. Fails if the command does.
    pub async fn garenne(&self, arguments: &[&str]) -> Result<Ended> {
        self.without_log(arguments).succeed().await
    }

    /// As [`TestEnv::garenne`], for commands that may fail.
    pub async fn try_garenne(&self, arguments: &[&str]) -> Result<Ended> {
        self.without_log(arguments).run().await
    }

    fn without_log(&self, arguments: &[&str]) -> Program {
        self.operator(arguments).env("GARENNE_LOG", "off")
    }

    /// As [`TestEnv::garenne`], with the log that operators see.
    pub async fn garenne_with_log(&self, arguments: &[&str]) -> Result<Ended> {
        self.operator(arguments).run().await
    }

    /// Runs the console with a terminal as its standard error.
    pub async fn garenne_on_terminal(&self, arguments: &[&str]) -> Result<Screen> {
        self.operator(arguments).run_on_terminal().await
    }

    fn operator(&self, arguments: &[&str]) -> Program {
        // The user who declares the topology and may take any message is not the one who observes and controls the fleet.
        let user = match arguments {
            ["topology" | "queue", ..] | ["task", "find" | "waiting" | "run-now", ..] => {
                &self.users.topology.url
            }
            _ => &self.users.console,
        };
        // `status` listens for as long as a gateway's heartbeat needs.
        Program::garenne(user, arguments).env("GARENNE_EVENTS__HEARTBEAT", "500ms")
    }

    /// Publishes tasks `prefix-0` to `prefix-<count - 1>` to the tasks exchange and returns their ids.
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

    /// Waits until the broker counts exactly this many messages of a lane as ready and as unacked. The counts are up to
    /// a second old, so the awaited state must differ from the previous one and must last.
    pub async fn until_lane(&self, lane: &str, ready: usize, unacked: usize) -> Result<()> {
        self.until_queue(&format!("garenne.tasks.{lane}"), ready, unacked).await
    }

    /// The same for any queue.
    pub async fn until_queue(&self, queue: &str, ready: usize, unacked: usize) -> Result<()> {
        eventually(format!("{queue} has {ready} ready and {unacked} unacked"), async || {
            let status = self.vhost.view().queue(queue).await?;
            let counts = (status.ready as usize, status.unacked as usize);
            Ok(Seen::when(counts == (ready, unacked), format_args!("{counts:?}")))
        })
        .await
    }

    /// Waits until this many messages of a lane are ready, by passive declares, which have no delay.
    pub async fn until_ready(&self, lane: &str, count: usize) -> Result<()> {
        self.until_ready_in(&format!("garenne.tasks.{lane}"), count).await
    }

    /// The same for any queue.
    pub async fn until_ready_in(&self, queue: &str, count: usize) -> Result<()> {
        eventually(format!("{count} ready in {queue}"), async || {
            let ready = self.client.ready(queue).await?;
            Ok(Seen::when(ready == count, ready))
        })
        .await
    }

    /// Waits until the broker counts this many acks of the fast lane's deliveries.
    pub async fn until_settled(&self, count: usize) -> Result<()> {
        let mut empty_since = None;
        eventually(format!("{count} deliveries settled"), async || {
            let path = ["queues", self.vhost.name(), "garenne.tasks.fast"];
            let queue: Value = self.vhost.broker().management().get(&path).await?;
            let acked = queue["message_stats"]["ack"].as_u64().unwrap_or(0);
            // The broker's count may lack the last acks of a connection that ended right after them.
            let since = match queue["messages"].as_u64() {
                Some(0) => *empty_since.get_or_insert_with(Instant::now),
                _ => {
                    empty_since = None;
                    Instant::now()
                }
            };
            let is_settled = acked >= count as u64 || acked > 0 && since.elapsed() > STATISTICS_AGE;
            Ok(Seen::when(is_settled, acked))
        })
        .await
    }

    /// Waits until a lane has no consumer.
    pub async fn until_no_consumer(&self, lane: &str) -> Result<()> {
        let queue = format!("garenne.tasks.{lane}");
        eventually(format!("{queue} has no consumer"), async || {
            let consumers = self.client.consumers(&queue).await?;
            Ok(Seen::when(consumers == 0, consumers))
        })
        .await
    }

    /// Waits until this many messages are in a queue, takes them all, and checks that there are no more.
    ///
    /// # Errors
    /// If there are never as many, or there are more.
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

    /// Checks a worker's receipt against the fast lane, to which `published` tasks were published and whose only worker
    /// has stopped. It takes the remaining tasks: settled tasks are not in the queue, and requeued ones are marked as
    /// redelivered. So are deliveries that were in transit when the consumer was cancelled, which the worker never saw.
    /// The broker's statistics are not used, because they may miss a channel that was open for less than their
    /// interval.
    pub async fn check_receipt(&self, receipt: &Receipt, published: u64) -> Result<()> {
        let gone = receipt.acked + receipt.dead + receipt.retried;
        let left = published.checked_sub(gone).with_context(|| format!("{published}, {receipt:?}"))?;
        let left = self.take_all("garenne.tasks.fast", usize::try_from(left)?).await?;
        let redelivered = left.iter().filter(|taken| taken.redelivered).count() as u64;
        ensure!(
            redelivered >= receipt.requeued,
            "{redelivered} of {} are marked as redelivered, {receipt:?}",
            left.len()
        );
        Ok(())
    }

    /// Checks that a queue is empty now.
    ///
    /// # Errors
    /// With the number of messages if it is not.
    pub async fn is_empty(&self, queue: &str) -> Result<()> {
        let ready = self.client.ready(queue).await?;
        ensure!(ready == 0, "{ready} messages in {queue}, none expected");
        Ok(())
    }
}
