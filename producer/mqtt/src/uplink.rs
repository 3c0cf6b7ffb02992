//! Where the tasks of mapped messages go: to the AMQP broker, through the spool if there is one.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use garenne_amqp::{DeadLetters, HeartbeatPublisher, PublisherConfig};
use garenne_common::{
    exit::Failure,
    supervise::TaskHandle,
    telemetry::{Metrics, Traces},
};
use garenne_gateway::{
    BrokerLink, BrokerSettings, FirstConnection, READING,
    task_publisher::{
        BrokerPublisher, SpoolingPublisher, TracedPublisher,
        group_commit::{GroupCommit, GroupCommitConfig},
    },
};
use garenne_protocol::{heartbeat::Heartbeat, task::Kind};
use garenne_spool::Spool;

use crate::{letter_publisher::LetterPublisher, settings::Shared};

/// Unconfirmed messages on the AMQP connection. The bridge has at most `mqtt.in_flight` messages of MQTT; group commit
/// makes fewer of them.
const IN_FLIGHT: usize = 8192;

/// The connection to the AMQP broker, and the drain of the spool.
pub(crate) struct Uplink {
    link: BrokerLink,
    draining: Option<TaskHandle<()>>,
    letters: Arc<DeadLetters>,
}

impl Uplink {
    /// Connects to the broker. With a spool, it does not wait for it. A message waits up to `linger` for others.
    ///
    /// # Errors
    /// The broker is not available and there is no spool, or it denies access.
    pub(crate) async fn open(
        broker: &BrokerSettings,
        shared: &Shared,
        linger: Duration,
        spool: Option<&Spool>,
        (metrics, traces): (&Metrics, &Traces),
    ) -> Result<(SpoolingPublisher, Self), Failure> {
        let config = PublisherConfig { in_flight: IN_FLIGHT, ..PublisherConfig::default() };
        let first = FirstConnection::of_service(spool.is_some());
        let link = BrokerLink::open(broker, config, metrics, first).await?;
        let (names, publisher) = (broker.names(), link.publisher().clone());
        let direct = BrokerPublisher::new(publisher.clone(), &names, &broker.lanes);
        let group_commit = GroupCommitConfig { linger, ..shared.group_commit };
        let reading = Kind::parse(READING).expect("a constant");
        let grouped = GroupCommit::in_front_of(direct, group_commit, reading);
        let traced = TracedPublisher::wrap(Arc::clone(&grouped), traces, &names);
        let letters = Arc::new(DeadLetters::new(publisher, names.clone()));
        let with_letters = |tasks| LetterPublisher::in_front_of(tasks, Arc::clone(&letters), names.clone());
        let direct = link.after_topology(with_letters(traced));
        let drained = link.drain_after_topology(with_letters(grouped));
        let (tasks, draining) = shared.spool.publisher(spool, direct, drained, metrics).context("metrics")?;
        Ok((tasks, Self { link, draining, letters }))
    }

    /// Publishes dead letters, and knows why their queue takes none.
    pub(crate) fn letters(&self) -> Arc<DeadLetters> {
        Arc::clone(&self.letters)
    }

    /// Publishes heartbeats.
    pub(crate) fn start_heartbeats(
        &self,
        broker: &BrokerSettings,
        heartbeat: impl Fn() -> Heartbeat + Send + Sync + 'static,
    ) -> HeartbeatPublisher {
        let (exchange, interval) = (broker.names().events(), broker.common.events.heartbeat);
        let publisher = self.link.publisher().clone();
        HeartbeatPublisher::start(publisher, exchange, interval, Arc::default(), heartbeat)
    }

    /// Ends the drain and closes the connection.
    pub(crate) async fn close(self) {
        if let Some(draining) = self.draining {
            draining.abort();
        }
        self.link.close().await;
    }
}
