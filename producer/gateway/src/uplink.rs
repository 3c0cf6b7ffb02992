//! Where accepted tasks go: to the broker, or to a central gateway.

use std::sync::Arc;

use anyhow::Context;
use garenne_amqp::{HeartbeatPublisher, Publisher, PublisherConfig};
use garenne_common::{
    exit::Failure,
    supervise::TaskHandle,
    telemetry::{Metrics, Traces, metrics::Role},
};
use garenne_protocol::{heartbeat::Heartbeat, task::Kind};
use garenne_spool::Spool;
use prometheus::IntGauge;

use crate::{
    broker::BrokerSettings,
    connector::{BrokerLink, FirstConnection},
    forward::Forwarder,
    routes::READING,
    settings::GatewaySettings,
    task_publisher::{
        BrokerPublisher, PUBLISH_SLOT_TIMEOUT, SpoolingPublisher, TracedPublisher, group_commit::GroupCommit,
    },
};

/// Messages that may wait for their publisher confirms. It bounds the memory that a silent broker makes this process
/// hold.
const IN_FLIGHT: usize = 8192;

/// The connection that accepted tasks leave by.
pub(crate) struct Uplink {
    broker: Option<BrokerConnection>,
    draining: Option<TaskHandle<()>>,
}

struct BrokerConnection {
    link: BrokerLink,
    heartbeats: Option<HeartbeatPublisher>,
}

impl Uplink {
    /// Connects to the broker. With a spool, it does not wait for it.
    ///
    /// # Errors
    /// The broker is not available and there is no spool, or it denies access.
    pub(crate) async fn to_broker(
        broker: BrokerSettings,
        settings: &GatewaySettings,
        spool: Option<&Spool>,
        (metrics, traces): (&Metrics, &Traces),
    ) -> Result<(SpoolingPublisher, Self), Failure> {
        let config = PublisherConfig {
            in_flight: IN_FLIGHT,
            acquire_timeout: PUBLISH_SLOT_TIMEOUT,
            ..PublisherConfig::default()
        };
        let first = FirstConnection::of_service(spool.is_some());
        let link = BrokerLink::open(&broker, config, metrics, first).await?;
        let (names, lanes) = (broker.names(), &broker.lanes);
        let max_latency = settings.limits.max_confirm_latency;
        let publisher = link.publisher().clone();
        let direct = BrokerPublisher::with_max_confirm_latency(publisher, &names, lanes, max_latency);
        let reading = Kind::parse(READING).expect("a constant");
        let grouped = GroupCommit::in_front_of(direct, settings.group_commit, reading);
        let traced = TracedPublisher::wrap(Arc::clone(&grouped), traces, &names);
        // The drain is not traced: the tasks of a batch belong to several requests, and keep the spans of these.
        let (direct, drained) = (link.after_topology(traced), link.drain_after_topology(grouped));
        let (tasks, draining) =
            settings.spool.publisher(spool, direct, drained, metrics).context("metrics")?;
        let broker = Some(BrokerConnection { link, heartbeats: None });
        Ok((tasks, Self { broker, draining }))
    }

    /// Forwards what is in `spool` to a central gateway.
    ///
    /// # Errors
    /// The metrics are registered already.
    pub(crate) fn to_gateway(
        forwarder: Forwarder,
        settings: &GatewaySettings,
        spool: &Spool,
        metrics: &Metrics,
    ) -> Result<(SpoolingPublisher, Self), Failure> {
        let (tasks, draining) = settings.spool.forward(spool, forwarder, metrics).context("metrics")?;
        Ok((tasks, Self { broker: None, draining: Some(draining) }))
    }

    /// The publisher, if there is a broker.
    pub(crate) fn publisher(&self) -> Option<Publisher> {
        self.broker.as_ref().map(|it| it.link.publisher().clone())
    }

    /// Publishes heartbeats if there is a broker.
    pub(crate) fn start_heartbeats(
        &mut self,
        broker: &BrokerSettings,
        heartbeat: impl Fn() -> Heartbeat + Send + Sync + 'static,
    ) {
        let Some(connection) = &mut self.broker else { return };
        let (exchange, interval) = (broker.names().events(), broker.common.events.heartbeat);
        let publisher = connection.link.publisher().clone();
        let heartbeats = HeartbeatPublisher::start(publisher, exchange, interval, Arc::default(), heartbeat);
        connection.heartbeats = Some(heartbeats);
    }

    /// Ends the drain and closes the connection.
    pub(crate) async fn close(self) {
        if let Some(draining) = self.draining {
            draining.abort();
        }
        let Some(BrokerConnection { link, heartbeats }) = self.broker else { return };
        if let Some(heartbeats) = heartbeats {
            heartbeats.stop().await;
        }
        link.close().await;
    }
}

/// 1 while tasks can leave.
pub(crate) fn connected(metrics: &Metrics) -> IntGauge {
    metrics.connection().up(Role::Publish)
}
