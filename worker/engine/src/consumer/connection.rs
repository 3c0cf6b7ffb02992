//! The AMQP connections on which the lanes of a worker consume.

use std::sync::{Arc, OnceLock};

use garenne_amqp::{
    Broker, BrokerError,
    declare::{TopologyError, ensure},
    reply,
};
use garenne_common::telemetry::{Metrics, metrics::Role};
use garenne_protocol::topology::Topology;
use lapin::{
    Channel, Connection,
    options::{BasicQosOptions, QueueDeclareOptions},
    types::FieldTable,
};
use tokio::sync::Mutex;

/// The current connection, shared by the lanes. A lane that finds it closed replaces it.
#[derive(Clone)]
pub(crate) struct ConsumerConnection {
    pub(super) broker: Broker,
    role: Role,
    current: Arc<Mutex<Option<Arc<Connection>>>>,
    pub(super) metrics: Metrics,
    /// Declared on the broker by [`ensure`](Self::ensure), and again when a part of it is missing.
    topology: Arc<OnceLock<Topology>>,
}

/// Why the topology could not be declared again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RestoreError {
    /// The broker cannot be reached, or the topology is not known yet.
    Unavailable,
    /// The broker refused a declaration.
    Refused(String),
}

/// Creates and looks up queues. A trait, so that tests need no broker.
pub(crate) trait QueueAdmin: Send + Sync + 'static {
    /// Declares the parts of the topology that are missing, as far as the user's permissions allow.
    ///
    /// # Errors
    /// [`RestoreError`] if a part is still missing.
    fn restore_topology(&self) -> impl Future<Output = Result<(), RestoreError>> + Send;

    /// Whether a queue exists. `None` if the broker does not answer.
    fn queue_exists(&self, queue: &str) -> impl Future<Output = Option<bool>> + Send;
}

impl ConsumerConnection {
    pub(crate) fn new(broker: Broker, metrics: Metrics) -> Self {
        Self { broker, role: Role::Consume, current: Arc::default(), metrics, topology: Arc::default() }
    }

    /// Another connection to the same broker, for foreign messages.
    ///
    /// RabbitMQ closes the connection when it cannot write a delivery, such as one with a routing key of more than 255
    /// bytes, which MQTT clients can send. Then the lanes of tasks go on.
    pub(crate) fn for_foreign_messages(&self) -> Self {
        Self { role: Role::ConsumeForeign, current: Arc::default(), ..self.clone() }
    }

    /// Whether it is for foreign messages.
    pub(super) fn is_foreign(&self) -> bool {
        self.role == Role::ConsumeForeign
    }

    /// Opens a channel with this prefetch, on the current connection or a new one.
    ///
    /// The caller must hold the returned connection for as long as it uses the channel.
    pub(crate) async fn channel(&self, prefetch: u16) -> Result<(Arc<Connection>, Channel), BrokerError> {
        let connection = self.connection().await?;
        let open = async {
            let channel = connection.create_channel().await?;
            channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
            Ok::<_, lapin::Error>(channel)
        };
        let channel = open.await.map_err(|error| self.broker.explain(&error))?;
        Ok((connection, channel))
    }

    /// Returns the current connection, or opens a new one if it is closed.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, BrokerError> {
        let mut current = self.current.lock().await;
        if let Some(connection) = current.as_ref().filter(|connection| connection.status().connected()) {
            return Ok(Arc::clone(connection));
        }
        let up = self.metrics.connection().up(self.role);
        up.set(0);
        if current.take().is_some() {
            self.metrics.connection().reconnects(self.role).inc();
        }
        let connection = Arc::new(self.broker.connect(self.role).await?);
        up.set(1);
        *current = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// Declares the topology, and remembers it for [`QueueAdmin::restore_topology`].
    pub(crate) async fn ensure(
        &self,
        connection: &Connection,
        topology: Topology,
    ) -> Result<(), TopologyError> {
        ensure(connection, &topology).await?;
        // Later calls pass the same topology.
        let _ = self.topology.set(topology);
        Ok(())
    }

    /// Looks up a queue: the number of its ready messages, or the broker's reply code. `None` if the broker does not
    /// answer.
    ///
    /// It uses a channel of its own, because a failed passive declaration closes the channel.
    pub(super) async fn look_up(&self, queue: &str) -> Option<Result<u32, u16>> {
        let (_connection, channel) = self.channel(1).await.ok()?;
        let options = QueueDeclareOptions { passive: true, ..Default::default() };
        match channel.queue_declare(queue.into(), options, FieldTable::default()).await {
            Ok(queue) => {
                let _ = channel.close(200, "checked".into()).await;
                Some(Ok(queue.message_count()))
            }
            Err(error) => reply::of(&error).map(|(code, _)| Err(code)),
        }
    }

    /// The number of ready messages in a queue. `None` if the queue does not exist or the broker does not answer.
    pub(crate) async fn ready_messages(&self, queue: &str) -> Option<u32> {
        self.look_up(queue).await?.ok()
    }

    /// Declares the topology again after a queue was found missing.
    pub(crate) async fn redeclare_topology(&self) {
        if self.restore_topology().await.is_ok() {
            tracing::warn!("a queue was missing and is declared again");
        }
    }

    /// Closes the connection. All channels should be closed before.
    pub(crate) async fn close(&self) {
        if let Some(connection) = self.current.lock().await.take() {
            // An error means that the connection is closed already.
            let _ = connection.close(200, "worker stopped".into()).await;
        }
    }
}

impl QueueAdmin for ConsumerConnection {
    async fn restore_topology(&self) -> Result<(), RestoreError> {
        let topology = self.topology.get().ok_or(RestoreError::Unavailable)?;
        let connection = self.connection().await.map_err(|_| RestoreError::Unavailable)?;
        ensure(&connection, topology).await.map_err(|error| {
            tracing::warn!(%error, "cannot declare a missing queue or exchange");
            match error {
                TopologyError::Broker(_) => RestoreError::Unavailable,
                error => RestoreError::Refused(error.to_string()),
            }
        })
    }

    async fn queue_exists(&self, queue: &str) -> Option<bool> {
        match self.look_up(queue).await? {
            Ok(_) | Err(reply::RESOURCE_LOCKED) => Some(true),
            Err(reply::NOT_FOUND) => Some(false),
            Err(_) => None,
        }
    }
}
