//! Where accepted tasks go: to the broker, or to a central gateway.

use std::sync::Arc;

use anyhow::Context;
use futures_util::FutureExt;
use garenne_amqp::{HeartbeatPublisher, Publisher, PublisherConfig};
use garenne_common::{
    exit::Failure,
    supervise::{self, TaskHandle},
    telemetry::{Metrics, Traces, metrics::Role},
};
use garenne_protocol::{heartbeat::Heartbeat, task::Kind};
use garenne_spool::Spool;
use prometheus::IntGauge;

use crate::{
    broker::BrokerSettings,
    connector::Connector,
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
    publisher: Publisher,
    connecting: TaskHandle<()>,
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
        let (endpoint, publisher) = broker.publisher(config, metrics)?;
        if spool.is_none() {
            broker.wait_connected(&endpoint, &publisher).await?;
        }
        let (names, lanes) = (broker.names(), &broker.lanes);
        let max_latency = settings.limits.max_confirm_latency;
        let direct = BrokerPublisher::with_max_confirm_latency(publisher.clone(), &names, lanes, max_latency);
        let reading = Kind::parse(READING).expect("a constant");
        let grouped = GroupCommit::in_front_of(direct, settings.group_commit, reading);
        let traced = TracedPublisher::wrap(Arc::clone(&grouped), traces, &names);
        // The drain is not traced: the tasks of a batch belong to several requests, and keep the spans of these.
        let (tasks, draining) = settings.spool.outlet(spool, traced, grouped, metrics).context("metrics")?;
        let has_topology = spool.is_none();
        let connected = connected(metrics);
        let connector = Connector { broker, endpoint, publisher: publisher.clone(), connected, has_topology };
        let connecting =
            supervise::restarting("connect", connector, |it| it.stay_connected().boxed()).spawn();
        let broker = Some(BrokerConnection { publisher, connecting, heartbeats: None });
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

    /// Publishes heartbeats if there is a broker.
    pub(crate) fn start_heartbeats(
        &mut self,
        broker: &BrokerSettings,
        heartbeat: impl Fn() -> Heartbeat + Send + Sync + 'static,
    ) {
        let Some(connection) = &mut self.broker else { return };
        let (exchange, interval) = (broker.names().events(), broker.common.events.heartbeat);
        let publisher = connection.publisher.clone();
        let heartbeats = HeartbeatPublisher::start(publisher, exchange, interval, Arc::default(), heartbeat);
        connection.heartbeats = Some(heartbeats);
    }

    /// Ends the drain and closes the connection.
    pub(crate) async fn close(self) {
        if let Some(draining) = self.draining {
            draining.abort();
        }
        let Some(BrokerConnection { publisher, connecting, heartbeats }) = self.broker else { return };
        connecting.abort();
        if let Some(heartbeats) = heartbeats {
            heartbeats.stop().await;
        }
        publisher.close().await;
    }
}

/// 1 while tasks can leave.
pub(crate) fn connected(metrics: &Metrics) -> IntGauge {
    metrics.connection().up(Role::Publish)
}
