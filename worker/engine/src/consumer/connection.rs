//! The connection that all lanes of a worker consume on.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use garenne_amqp::{
    Broker, BrokerError,
    declare::{TopologyError, ensure},
};
use garenne_common::telemetry::{Metrics, metrics::Role};
use garenne_protocol::topology::Topology;
use lapin::{
    Channel, Connection,
    options::{BasicQosOptions, QueueDeclareOptions},
    types::FieldTable,
};
use prometheus::IntCounter;
use tokio::sync::Mutex;

use super::reply;

/// Shared by the lanes; whoever finds the connection dead makes the next one.
#[derive(Clone)]
pub(crate) struct ConsumerConnection {
    broker: Broker,
    current: Arc<Mutex<Option<Arc<Connection>>>>,
    metrics: Metrics,
    /// What must exist on the broker, once that is known.
    topology: Arc<OnceLock<Topology>>,
}

/// Why the topology was not restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RestoreError {
    /// The broker could not be asked.
    Unasked,
    /// It did not let us.
    Refused(String),
}

impl ConsumerConnection {
    pub(crate) fn new(broker: Broker, metrics: Metrics) -> Self {
        Self { broker, current: Arc::default(), metrics, topology: Arc::default() }
    }

    /// A channel with this prefetch, on the living connection or a new one. The connection comes
    /// along: it lives as long as somebody holds it.
    pub(crate) async fn channel(&self, prefetch: u16) -> Result<(Arc<Connection>, Channel), BrokerError> {
        let connection = self.connection().await?;
        let open = async {
            let channel = connection.create_channel().await?;
            channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
            Ok::<_, lapin::Error>(channel)
        };
        match open.await {
            Ok(channel) => Ok((connection, channel)),
            Err(error) => Err(self.broker.explain(&error)),
        }
    }

    /// Counts deliveries of a queue whose properties were not as they were published.
    pub(super) fn unreadable(&self, queue: &str) -> IntCounter {
        self.metrics.unreadable(queue)
    }

    /// An error of this connection's channels, in words that say what to do.
    pub(crate) fn explain(&self, error: &lapin::Error) -> BrokerError {
        self.broker.explain(error)
    }

    /// Connects for the first time, for as long as `budget` allows.
    pub(crate) async fn connect_within(&self, budget: Duration) -> Result<(), BrokerError> {
        let connection = self.broker.connect_within(Role::Consume, budget).await?;
        self.metrics.connection().up(Role::Consume).set(1);
        *self.current.lock().await = Some(Arc::new(connection));
        Ok(())
    }

    /// The living connection, or a new one.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, BrokerError> {
        let mut current = self.current.lock().await;
        if let Some(connection) = current.as_ref().filter(|connection| connection.status().connected()) {
            return Ok(Arc::clone(connection));
        }
        let up = self.metrics.connection().up(Role::Consume);
        up.set(0);
        if current.take().is_some() {
            self.metrics.connection().reconnects(Role::Consume).inc();
        }
        let connection = Arc::new(self.broker.connect(Role::Consume).await?);
        up.set(1);
        *current = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// Makes sure that the topology is there, now and whenever a queue is found missing.
    pub(crate) async fn ensure(
        &self,
        connection: &Connection,
        topology: Topology,
    ) -> Result<(), TopologyError> {
        ensure(connection, &topology).await?;
        // Only the first call of a process gets here; a later one would bring the same.
        let _ = self.topology.set(topology);
        Ok(())
    }

    /// How many messages are ready in a queue, by a look on a channel of its own; nothing where it is not
    /// there or cannot be looked at.
    pub(crate) async fn ready_messages(&self, queue: &str) -> Option<u32> {
        let (_connection, channel) = self.channel(1).await.ok()?;
        let options = QueueDeclareOptions { passive: true, ..Default::default() };
        let found = channel.queue_declare(queue.into(), options, FieldTable::default()).await.ok()?;
        let _ = channel.close(200, "looked".into()).await;
        Some(found.message_count())
    }

    /// Puts back what somebody deleted, where this user may.
    pub(crate) async fn mend(&self) {
        if self.restore().await.is_ok() {
            tracing::warn!("a queue was missing and is there again");
        }
    }

    /// The same; answers what keeps the topology from being there.
    pub(crate) async fn restore(&self) -> Result<(), RestoreError> {
        let Some(topology) = self.topology.get() else { return Err(RestoreError::Unasked) };
        let Ok(connection) = self.connection().await else { return Err(RestoreError::Unasked) };
        ensure(&connection, topology).await.map_err(|error| {
            tracing::warn!(%error, "a queue or exchange is missing");
            match error {
                TopologyError::Broker(_) => RestoreError::Unasked,
                error => RestoreError::Refused(error.to_string()),
            }
        })
    }

    /// Whether a queue is there. Nothing, when the broker cannot be asked.
    pub(crate) async fn exists(&self, queue: &str) -> Option<bool> {
        let (_connection, channel) = self.channel(1).await.ok()?;
        let look = QueueDeclareOptions { passive: true, ..Default::default() };
        match channel.queue_declare(queue.into(), look, FieldTable::default()).await {
            Ok(_) => {
                let _ = channel.close(200, "looked".into()).await;
                Some(true)
            }
            Err(error) => (reply::code(&error) == Some(reply::NOT_FOUND)).then_some(false),
        }
    }

    /// Closes the connection, once every channel is closed.
    pub(crate) async fn close(&self) {
        if let Some(connection) = self.current.lock().await.take() {
            // A connection that is gone already is as good as closed.
            let _ = connection.close(200, "worker stopped".into()).await;
        }
    }
}
