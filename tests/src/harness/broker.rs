//! RabbitMQ brokers for tests.

use std::sync::{Arc, LazyLock};

use anyhow::{Context, Result};
use tokio::{
    sync::{OnceCell, OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use uuid::Uuid;

use super::{
    engine::{self, Mode},
    management::Management,
    node::{ClusterMember, Node},
    port::free_port,
    runtime::{block_on_harness, on_harness},
    suite,
    vhost::VirtualHost,
};

mod ready;
mod spec;
mod tls;
mod version;

pub use tls::Tls;
pub use version::BrokerVersion;

use ready::{wait_until_it_accepts_clients, wait_until_ready};
use spec::spec;
use tls::secure;

/// User and password of every test broker.
pub(super) const USER: &str = "guest";

/// Limits the brokers and clusters of single scenarios at a time. A starting broker uses a core for seconds.
static OWN_BROKERS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(3)));

/// Differences from a stock broker.
#[derive(Clone, Debug, Default)]
pub struct BrokerOptions {
    /// Lines of `rabbitmq.conf`.
    pub conf: Vec<String>,
    /// Parameters of the application `rabbit` that `rabbitmq.conf` does not support, as Erlang terms such as
    /// `{channel_tick_interval, 500}`.
    pub parameters: Vec<String>,
    /// An additional listener for `amqps`. Only in containers.
    pub tls: Option<Tls>,
    /// A plugin to disable. Only in containers.
    pub without_plugin: Option<&'static str>,
    /// Enables the plugin for MQTT. Only in containers.
    pub mqtt: bool,
}

/// A running RabbitMQ. Clones share one broker, which stops when the last of them is dropped.
#[derive(Clone, Debug)]
pub struct Broker {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `Some` until `drop` takes it.
    node: Option<Arc<Node>>,
    amqp_port: u16,
    amqps_port: Option<u16>,
    mqtt_port: Option<u16>,
    management_url: String,
    management: Management,
    version: BrokerVersion,
    mode: Mode,
    /// Held by the broker of a single scenario until it has stopped.
    permit: Option<OwnedSemaphorePermit>,
}

impl Broker {
    /// Starts a broker for a single scenario, which may stop, kill or throttle it.
    ///
    /// # Errors
    /// If it cannot be started or does not answer, with the end of its log.
    pub async fn start(options: BrokerOptions) -> Result<Self> {
        suite::time_this_test();
        let permit = Self::permit().await?;
        let mut broker = Self::start_shared(options).await?;
        if let Some(inner) = Arc::get_mut(&mut broker.inner) {
            inner.permit = Some(permit);
        }
        Ok(broker)
    }

    /// Waits for a permit for a broker or cluster of a single scenario. A scenario takes at most one permit, because
    /// two scenarios that wait for a second one would deadlock.
    pub(super) async fn permit() -> Result<OwnedSemaphorePermit> {
        Ok(Arc::clone(&OWN_BROKERS).acquire_owned().await?)
    }

    async fn start_shared(options: BrokerOptions) -> Result<Self> {
        let mode = engine::mode().await;
        on_harness(Self::launch_at(mode, options, None)).await
    }

    /// The broker that all scenarios of this process share. Each scenario has its own virtual host.
    pub async fn shared() -> Result<Self> {
        suite::time_this_test();
        static SHARED: OnceCell<Broker> = OnceCell::const_new();
        SHARED.get_or_try_init(|| Self::start_shared(BrokerOptions::default())).await.cloned()
    }

    /// Starts a broker, as a member of a cluster if `member` is set.
    pub(super) async fn launch_at(
        mode: Mode,
        options: BrokerOptions,
        member: Option<ClusterMember>,
    ) -> Result<Self> {
        let (amqp_port, management_port) = (free_port()?, free_port()?);
        let management_url = format!("http://{USER}:{USER}@127.0.0.1:{management_port}");
        let management = Management::new(&management_url)?;
        let mut spec = spec(&options, amqp_port, management_port).await;
        let mut amqps_port = None;
        if let Some(tls) = &options.tls {
            let port = free_port()?;
            secure(&mut spec, tls, port);
            amqps_port = Some(port);
        }
        let mqtt_port = options.mqtt.then(free_port).transpose()?;
        spec.ports.extend(mqtt_port.map(|port| (port, 1883)));
        if member.is_some() {
            // Nodes with the same cookie form a cluster.
            spec.environment.push(("RABBITMQ_ERLANG_COOKIE", USER.to_owned()));
        }
        spec.member = member;
        let node = Node::launch(mode, spec).await?;
        wait_until_ready(&node, amqp_port, &management).await?;
        let text = management.version().await?;
        let version = BrokerVersion::parse(&text).with_context(|| format!("broker version `{text}`"))?;
        let node = Some(Arc::new(node));
        Ok(Self {
            inner: Arc::new(Inner {
                node,
                amqp_port,
                amqps_port,
                mqtt_port,
                management_url,
                management,
                version,
                mode,
                permit: None,
            }),
        })
    }

    /// The AMQP URL of the default virtual host.
    #[must_use]
    pub fn amqp_url(&self) -> String {
        format!("{}/%2f", self.amqp_authority(USER))
    }

    /// The port for `amqps`, if the broker has [`BrokerOptions::tls`].
    #[must_use]
    pub fn amqps_port(&self) -> Option<u16> {
        self.inner.amqps_port
    }

    /// The URL for MQTT clients, if the broker has [`BrokerOptions::mqtt`].
    #[must_use]
    pub fn mqtt_url(&self) -> Option<String> {
        self.inner.mqtt_port.map(|port| format!("mqtt://{USER}:{USER}@127.0.0.1:{port}"))
    }

    /// The AMQP URL without its virtual host, for a user whose password is the user name.
    pub(super) fn amqp_authority(&self, user: &str) -> String {
        format!("amqp://{user}:{user}@127.0.0.1:{}", self.inner.amqp_port)
    }

    /// The URL of the management API, with user and password.
    #[must_use]
    pub fn management_url(&self) -> String {
        self.inner.management_url.clone()
    }

    /// A client of the management API.
    #[must_use]
    pub fn management(&self) -> &Management {
        &self.inner.management
    }

    /// The version that the broker reports.
    #[must_use]
    pub fn version(&self) -> BrokerVersion {
        self.inner.version
    }

    /// Whether this broker is a container or a process.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.inner.mode
    }

    /// Creates a virtual host. It is deleted when the value is dropped.
    pub async fn vhost(&self) -> Result<VirtualHost> {
        let name = format!("test-{}", Uuid::new_v4().simple());
        self.inner.management.create_vhost(&name, USER).await?;
        Ok(VirtualHost::new(name, self.clone()))
    }

    /// Makes the broker write the queues and streams that were declared until now to disk. It buffers their registration
    /// for three seconds.
    pub async fn sync_declarations(&self) -> Result<()> {
        self.exec_ctl(&["eval", "[dets:sync(Table) || Table <- dets:all()]."]).await.map(drop)
    }

    /// SIGKILL. A queue or stream that was declared less than three seconds before can be lost with its confirmed
    /// messages: see [`sync_declarations`](Self::sync_declarations).
    pub async fn kill(&self) -> Result<()> {
        let node = self.node();
        on_harness(async move { node.kill().await }).await
    }

    /// Stops the broker cleanly.
    pub async fn stop(&self) -> Result<()> {
        let node = self.node();
        on_harness(async move { node.stop().await }).await
    }

    /// Starts a broker that was stopped or killed and returns when it accepted connections.
    ///
    /// # Errors
    /// If it does not accept connections in time, with the end of its log.
    pub async fn restart_until_it_accepts_clients(&self) -> Result<Instant> {
        let (node, amqp_port) = (self.node(), self.inner.amqp_port);
        on_harness(async move {
            node.start().await?;
            wait_until_it_accepts_clients(&node, amqp_port).await
        })
        .await
    }

    /// Starts a broker that was stopped or killed, on the same ports and data, and waits for it.
    ///
    /// # Errors
    /// If it does not answer in time, with the end of its log.
    pub async fn restart(&self) -> Result<()> {
        let (node, amqp_port) = (self.node(), self.inner.amqp_port);
        let management = self.inner.management.clone();
        on_harness(async move {
            node.start().await?;
            wait_until_ready(&node, amqp_port, &management).await
        })
        .await
    }

    /// Pauses the broker: connections stay open and nothing answers, as when a host hangs.
    pub async fn pause(&self) -> Result<()> {
        let node = self.node();
        on_harness(async move { node.pause().await }).await
    }

    /// Ends a [`pause`](Self::pause).
    pub async fn unpause(&self) -> Result<()> {
        let node = self.node();
        on_harness(async move { node.unpause().await }).await
    }

    /// Runs `rabbitmqctl` with these arguments and returns what it printed.
    pub async fn exec_ctl(&self, arguments: &[&str]) -> Result<String> {
        let node = self.node();
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        on_harness(async move {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            node.control("rabbitmqctl", &arguments).await
        })
        .await
    }

    /// Raises or clears the disk alarm, which blocks every publishing connection of the broker. Not for the shared
    /// broker.
    pub async fn set_disk_alarm(&self, raised: bool) -> Result<()> {
        // More than the free space of any disk.
        let limit = if raised { "100000GB" } else { "1MB" };
        self.exec_ctl(&["set_disk_free_limit", limit]).await.map(drop)
    }

    /// Raises or clears the memory alarm, which blocks every publishing connection of the broker. Not for the shared
    /// broker.
    pub async fn set_memory_alarm(&self, raised: bool) -> Result<()> {
        // Every broker uses more memory than a watermark of 0 allows.
        let watermark = if raised { "0" } else { "0.6" };
        self.exec_ctl(&["set_vm_memory_high_watermark", watermark]).await.map(drop)
    }

    fn node(&self) -> Arc<Node> {
        Arc::clone(self.inner.node.as_ref().expect("only drop takes the node"))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The removal of a container needs the runtime of its client.
        if let Some(node) = self.node.take() {
            block_on_harness(async move { drop(node) });
        }
        // The next broker starts when this one has stopped.
        drop(self.permit.take());
    }
}
