//! Where the tasks of a program go: to the broker, or into a spool that is drained to the broker or a central gateway.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use garenne_amqp::{DeadLetters, HeartbeatPublisher, Publisher, PublisherConfig};
use garenne_common::{
    exit::{Exit, Failure},
    supervise::TaskHandle,
    telemetry::{Metrics, Traces},
};
use garenne_protocol::{heartbeat::Heartbeat, task::Kind};
use garenne_spool::Spool;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::{
    broker::BrokerSettings,
    broker_sender::{BrokerSender, LetterOf, Letters},
    connector,
    drain::{Forward, SpoolDrain},
    group_commit::{GroupCommit, GroupCommitConfig},
    messages::BrokerMessages,
    routes::READING_KIND,
    spool::{SpoolSettings, export_metrics},
    spooling::SpoolingSender,
    task_sender::TaskSender,
};

/// How a program sends.
pub struct Sending {
    /// Limits of the publisher.
    pub publisher: PublisherConfig,
    /// Bounds of group commit.
    pub group_commit: GroupCommitConfig,
    /// New tasks are refused while a message has been unconfirmed for longer.
    pub max_confirm_latency: Duration,
    /// The message of a task that stands for a dead letter, if some do.
    pub letter_of: Option<LetterOf>,
    /// Whether the program runs until it is stopped. With a spool, it does not wait for the broker when it starts, and
    /// what drains the spool waits without a limit. A command waits for `spool_after`.
    pub is_service: bool,
}

impl Sending {
    /// Messages of a service that may wait for their confirms. It bounds the memory that a silent broker makes the process
    /// hold.
    const IN_FLIGHT: usize = 8192;

    /// The gateway or the bridge.
    pub fn service(group_commit: GroupCommitConfig) -> Self {
        Self { group_commit, is_service: true, ..Self::command(Self::IN_FLIGHT) }
    }

    /// A command with this many unconfirmed messages.
    pub fn command(in_flight: usize) -> Self {
        Self {
            publisher: PublisherConfig { in_flight, ..PublisherConfig::default() },
            group_commit: GroupCommitConfig::off(),
            max_confirm_latency: Duration::MAX,
            letter_of: None,
            is_service: false,
        }
    }
}

/// The connection that tasks leave by, and the drain of the spool.
pub struct Uplink {
    broker: Option<BrokerConnection>,
    spool: Option<DrainedSpool>,
}

struct BrokerConnection {
    sender: Arc<BrokerSender>,
    publisher: Publisher,
    letters: Arc<DeadLetters>,
    connecting: TaskHandle<()>,
    heartbeats: Option<HeartbeatPublisher>,
}

struct DrainedSpool {
    spool: Spool,
    rate: Option<f64>,
    draining: TaskHandle<()>,
    stop: CancellationToken,
}

/// Records that a run left in its spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SpoolCounts {
    /// Records that this run stored in the spool.
    pub spooled: u64,
    /// Records that wait in the spool at the end, also of earlier runs.
    pub waiting: u64,
}

impl Uplink {
    /// Opens the spool, if the settings have one, connects to the broker, and begins to drain the spool. Without a
    /// spool, the broker must be available.
    pub async fn open(
        broker: &BrokerSettings,
        sending: Sending,
        settings: &SpoolSettings,
        (metrics, traces): (&Metrics, &Traces),
    ) -> Result<(SpoolingSender, Self), Failure> {
        let Sending { publisher, group_commit, max_confirm_latency, letter_of, is_service } = sending;
        let spool = settings.open().await?;
        let start_within = if is_service { Duration::ZERO } else { settings.spool_after };
        let wait = spool.as_ref().map(|_| start_within);
        let (publisher, topology, connecting) = connector::connect(broker, publisher, metrics, wait).await?;
        let (names, reading) = (broker.names(), Kind::parse(READING_KIND).expect("a constant"));
        let dead = Arc::new(DeadLetters::new(publisher.clone(), names.clone()));
        let letters = letter_of.map(|message_of| Letters { queue: Arc::clone(&dead), message_of });
        let messages = BrokerMessages::new(publisher.clone(), &names, &broker.lanes, max_confirm_latency);
        let groups = GroupCommit::start(messages, group_commit, reading);
        let sender = BrokerSender::new(groups, traces, &names).behind(topology, letters);
        let drained = if is_service { sender.for_drain() } else { sender.clone() };
        let sender = Arc::new(sender);
        let connection = BrokerConnection {
            sender: Arc::clone(&sender),
            publisher,
            letters: dead,
            connecting,
            heartbeats: None,
        };
        let Some(spool) = spool else {
            return Ok((SpoolingSender::direct(sender), Self { broker: Some(connection), spool: None }));
        };
        let drain = SpoolDrain::new(spool.clone(), Arc::new(drained), settings.drain_rate());
        let tasks = SpoolingSender::with_spool(sender, spool.clone(), settings.spool_after);
        let spool = DrainedSpool::start(drain, spool, settings, metrics)?;
        Ok((tasks, Self { broker: Some(connection), spool: Some(spool) }))
    }

    /// Opens the spool, stores all tasks in it, and forwards them to a central gateway. Fails without a spool.
    pub async fn forwarding(
        forwarder: Box<dyn Forward>,
        settings: &SpoolSettings,
        metrics: &Metrics,
    ) -> Result<(SpoolingSender, Self), Failure> {
        let no_spool = || Failure::new(Exit::Config, "forwarding needs a spool");
        let spool = settings.open().await?.ok_or_else(no_spool)?;
        let drain = SpoolDrain::forwarding(spool.clone(), forwarder, settings.drain_rate());
        let tasks = SpoolingSender::spool_only(spool.clone());
        let spool = DrainedSpool::start(drain, spool, settings, metrics)?;
        Ok((tasks, Self { broker: None, spool: Some(spool) }))
    }

    /// The publisher, if there is a broker.
    pub fn publisher(&self) -> Option<&Publisher> {
        self.broker.as_ref().map(|it| &it.publisher)
    }

    /// Publishes dead letters, and knows why their queue takes none, if there is a broker.
    pub fn letters(&self) -> Option<&Arc<DeadLetters>> {
        self.broker.as_ref().map(|it| &it.letters)
    }

    /// Sends tasks to the broker, past the spool.
    pub fn sender(&self) -> Option<Arc<dyn TaskSender>> {
        self.broker.as_ref().map(|it| Arc::clone(&it.sender) as _)
    }

    /// The spool.
    pub fn spool(&self) -> Option<&Spool> {
        self.spool.as_ref().map(|it| &it.spool)
    }

    /// Publishes heartbeats if there is a broker.
    pub(crate) fn start_heartbeats(
        &mut self,
        broker: &BrokerSettings,
        heartbeat: impl Fn() -> Heartbeat + Send + Sync + 'static,
    ) {
        let Some(connection) = &mut self.broker else { return };
        let (exchange, interval) = (broker.names().events(), broker.common.events.heartbeat);
        let publisher = connection.publisher.clone();
        let restore = Box::new(|| Box::pin(async { Err("run `garenne topology apply`".to_owned()) }) as _);
        let heartbeats =
            HeartbeatPublisher::start(publisher, exchange, interval, Arc::default(), restore, heartbeat);
        connection.heartbeats = Some(heartbeats);
    }

    /// Ends the drain and closes the connection.
    pub async fn close(self) {
        if let Some(spool) = self.spool {
            spool.draining.abort();
        }
        if let Some(broker) = self.broker {
            broker.close().await;
        }
    }

    /// Drains the spool until it is empty or the broker does not confirm, and closes it and the connection.
    pub async fn finish(self) -> Option<SpoolCounts> {
        let Self { broker, spool } = self;
        let mut counts = None;
        if let Some(DrainedSpool { spool, rate, draining, stop }) = spool {
            stop.cancel();
            // A panic was logged where it happened; the spool keeps its records.
            let _ = draining.await;
            if let Some(broker) = &broker {
                let mut drain = SpoolDrain::new(spool.clone(), Arc::clone(&broker.sender) as _, rate);
                while let Ok(1..) = drain.next_batch().await {}
            }
            let status = spool.status().borrow().clone();
            counts = Some(SpoolCounts { spooled: status.accepted, waiting: status.records() });
            spool.close().await;
        }
        if let Some(broker) = broker {
            broker.close().await;
        }
        counts
    }
}

impl DrainedSpool {
    fn start(
        drain: SpoolDrain,
        spool: Spool,
        settings: &SpoolSettings,
        metrics: &Metrics,
    ) -> Result<Self, Failure> {
        export_metrics(metrics, &spool).context("metrics")?;
        let stop = CancellationToken::new();
        let draining = drain.start(stop.clone());
        Ok(Self { spool, rate: settings.drain_rate(), draining, stop })
    }
}

impl BrokerConnection {
    async fn close(self) {
        if let Some(heartbeats) = self.heartbeats {
            heartbeats.stop().await;
        }
        self.connecting.abort();
        self.publisher.close().await;
    }
}
