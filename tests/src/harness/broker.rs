//! A RabbitMQ to test against.

use std::{
    fmt::{self, Display},
    sync::{Arc, LazyLock},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use garenne_management::ManagementClient;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{OnceCell, OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep, timeout},
};
use uuid::Uuid;

use super::{
    engine::{self, Mode},
    node::{Node, NodeFile, NodeSpec, Seat},
    port::free_port,
    runtime::{block_on_harness, on_harness},
    suite,
    vhost::VirtualHost,
};

mod tls;

pub use tls::Tls;
use tls::secure;

/// User and password of every test broker.
pub(super) const USER: &str = "guest";

/// The plugins that a fleet may use.
const PLUGINS: &str = include_str!("../../../deploy/rabbitmq/enabled_plugins");

/// Brokers and clusters of their own that scenarios run at a time. A starting broker takes a core for seconds.
static OWN_BROKERS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(2)));

/// How long a broker may take to answer after a start.
const READY: Duration = Duration::from_secs(90);

/// A request to the management API takes longer only if the broker is down or frozen.
const MANAGEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Differences from a stock broker.
#[derive(Clone, Debug, Default)]
pub struct BrokerOptions {
    /// Lines for `rabbitmq.conf`.
    pub conf: Vec<String>,
    /// Parameters of the application `rabbit` that its configuration file does not know, as Erlang terms
    /// such as `{channel_tick_interval, 500}`.
    pub parameters: Vec<String>,
    /// A second listener, for `amqps`. Only in containers.
    pub tls: Option<Tls>,
    /// A plugin that is not enabled. Only in containers.
    pub without_plugin: Option<&'static str>,
}

/// A running RabbitMQ. Clones are the same broker; the last one to go takes it down.
#[derive(Clone, Debug)]
pub struct Broker {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Always there until `drop` takes it.
    node: Option<Arc<Node>>,
    amqp_port: u16,
    amqps_port: Option<u16>,
    management_url: String,
    management: ManagementClient,
    version: BrokerVersion,
    mode: Mode,
    /// Held by a broker of one scenario until it is gone.
    permit: Option<OwnedSemaphorePermit>,
}

/// A broker's version, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BrokerVersion(pub u16, pub u16, pub u16);

impl BrokerVersion {
    fn parse(text: &str) -> Option<Self> {
        // Release candidates and distributions add a suffix: 4.3.0-rc.1, 4.0.5+dfsg.
        let core = text.split(['-', '+']).next()?;
        let mut parts = core.split('.').map(str::parse);
        Some(Self(parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?))
    }
}

impl Display for BrokerVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.0, self.1, self.2)
    }
}

impl Broker {
    /// Starts a broker of its own for one scenario: for those that stop, kill or throttle it.
    ///
    /// # Errors
    /// When it cannot be had or does not answer, with the end of its log.
    pub async fn start(options: BrokerOptions) -> Result<Self> {
        suite::time_this_test();
        let permit = Self::permit().await?;
        let mut broker = Self::start_shared(options).await?;
        if let Some(inner) = Arc::get_mut(&mut broker.inner) {
            inner.permit = Some(permit);
        }
        Ok(broker)
    }

    /// Waits until another scenario may run a broker or a cluster of its own. A scenario takes one permit at most:
    /// two that wait for each other's second one would never start.
    pub(super) async fn permit() -> Result<OwnedSemaphorePermit> {
        Ok(Arc::clone(&OWN_BROKERS).acquire_owned().await?)
    }

    async fn start_shared(options: BrokerOptions) -> Result<Self> {
        let mode = engine::mode().await;
        on_harness(Self::launch_at(mode, options, None)).await
    }

    /// The broker that all scenarios of this process share; each takes a virtual host of its own.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn shared() -> Result<Self> {
        suite::time_this_test();
        static SHARED: OnceCell<Broker> = OnceCell::const_new();
        SHARED.get_or_try_init(|| Self::start_shared(BrokerOptions::default())).await.cloned()
    }

    /// Starts a broker that others find at its seat.
    pub(super) async fn launch_at(mode: Mode, options: BrokerOptions, seat: Option<Seat>) -> Result<Self> {
        let (amqp_port, management_port) = (free_port()?, free_port()?);
        let management_url = format!("http://{USER}:{USER}@127.0.0.1:{management_port}");
        let management = ManagementClient::new(&management_url.parse()?)?.with_timeout(MANAGEMENT_TIMEOUT);
        let mut spec = spec(&options, amqp_port, management_port).await;
        let mut amqps_port = None;
        if let Some(tls) = &options.tls {
            let port = free_port()?;
            secure(&mut spec, tls, port);
            amqps_port = Some(port);
        }
        if seat.is_some() {
            // Nodes that share a cookie trust each other.
            spec.environment.push(("RABBITMQ_ERLANG_COOKIE", USER.to_owned()));
        }
        spec.seat = seat;
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
                management_url,
                management,
                version,
                mode,
                permit: None,
            }),
        })
    }

    /// Where AMQP clients connect, on the default virtual host.
    #[must_use]
    pub fn amqp_url(&self) -> String {
        format!("{}/%2f", self.amqp_authority(USER))
    }

    /// The port for `amqps`, of a broker with [`BrokerOptions::tls`].
    #[must_use]
    pub fn amqps_port(&self) -> Option<u16> {
        self.inner.amqps_port
    }

    /// Up to the virtual host of a URL, for a user whose password is the name.
    pub(super) fn amqp_authority(&self, user: &str) -> String {
        format!("amqp://{user}:{user}@127.0.0.1:{}", self.inner.amqp_port)
    }

    /// Where the management API is, with user and password.
    #[must_use]
    pub fn management_url(&self) -> String {
        self.inner.management_url.clone()
    }

    /// A client of the management API.
    #[must_use]
    pub fn management(&self) -> &ManagementClient {
        &self.inner.management
    }

    /// What the broker says it is.
    #[must_use]
    pub fn version(&self) -> BrokerVersion {
        self.inner.version
    }

    /// Whether this broker is a container or a process.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.inner.mode
    }

    /// Makes a fresh virtual host. It and all that is in it go when the value is dropped.
    ///
    /// # Errors
    /// When the management API refuses or does not answer.
    pub async fn vhost(&self) -> Result<VirtualHost> {
        let name = format!("test-{}", Uuid::new_v4().simple());
        self.inner.management.create_vhost(&name, USER).await?;
        Ok(VirtualHost::new(name, self.clone()))
    }

    /// SIGKILL. A queue declared within about half a second before can be lost with its confirmed
    /// messages, since the broker had not written it yet: let fresh queues settle first.
    ///
    /// # Errors
    /// When it is down already.
    pub async fn kill(&self) -> Result<()> {
        let node = self.node();
        on_harness(async move { node.kill().await }).await
    }

    /// An orderly stop.
    ///
    /// # Errors
    /// When it is down already, or does not stop within a minute.
    pub async fn stop(&self) -> Result<()> {
        let node = self.node();
        on_harness(async move { node.stop().await }).await
    }

    /// Starts a broker that was stopped or killed and answers the moment at which it took connections.
    ///
    /// # Errors
    /// When it does not in time, with the end of its log.
    pub async fn restart_until_it_greets(&self) -> Result<Instant> {
        let (node, amqp_port) = (self.node(), self.inner.amqp_port);
        on_harness(async move {
            node.start().await?;
            let deadline = Instant::now() + READY;
            loop {
                let look = Instant::now();
                if greets(amqp_port).await {
                    return Ok(look);
                }
                if look > deadline {
                    bail!("the broker did not answer within {READY:?}: {}", node.log().await);
                }
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await
    }

    /// Starts a broker that was stopped or killed, on the same ports and data, and waits for it.
    ///
    /// # Errors
    /// When it does not answer in time, with the end of its log.
    pub async fn restart(&self) -> Result<()> {
        let (node, amqp_port) = (self.node(), self.inner.amqp_port);
        let management = self.inner.management.clone();
        on_harness(async move {
            node.start().await?;
            wait_until_ready(&node, amqp_port, &management).await
        })
        .await
    }

    /// Freezes the broker: connections stay open and nothing answers, as when a host hangs.
    ///
    /// # Errors
    /// When it is down.
    pub async fn pause(&self) -> Result<()> {
        let node = self.node();
        on_harness(async move { node.pause().await }).await
    }

    /// Ends a [`pause`](Self::pause).
    ///
    /// # Errors
    /// When it is down.
    pub async fn unpause(&self) -> Result<()> {
        let node = self.node();
        on_harness(async move { node.unpause().await }).await
    }

    /// Runs `rabbitmqctl` with these arguments and returns what it printed.
    ///
    /// # Errors
    /// When it exits with anything but 0.
    pub async fn exec_ctl(&self, arguments: &[&str]) -> Result<String> {
        let node = self.node();
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        on_harness(async move {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            node.control("rabbitmqctl", &arguments).await
        })
        .await
    }

    /// Raises or clears the disk alarm, which blocks every connection that publishes. It holds for the
    /// whole broker, so not for the shared one.
    ///
    /// # Errors
    /// When `rabbitmqctl` fails.
    pub async fn set_disk_alarm(&self, raised: bool) -> Result<()> {
        // More than any disk has free.
        let limit = if raised { "100000GB" } else { "1MB" };
        self.exec_ctl(&["set_disk_free_limit", limit]).await.map(drop)
    }

    /// Raises or clears the memory alarm, which blocks every connection that publishes. It holds for the
    /// whole broker, so not for the shared one.
    ///
    /// # Errors
    /// When `rabbitmqctl` fails.
    pub async fn set_memory_alarm(&self, raised: bool) -> Result<()> {
        // A watermark of zero is below any use of memory.
        let watermark = if raised { "0" } else { "0.6" };
        self.exec_ctl(&["set_vm_memory_high_watermark", watermark]).await.map(drop)
    }

    fn node(&self) -> Arc<Node> {
        Arc::clone(self.inner.node.as_ref().expect("only drop takes the node"))
    }
}

async fn spec(options: &BrokerOptions, amqp_port: u16, management_port: u16) -> NodeSpec {
    let mut conf = vec![
        // Numbers in the management API that are half a second old at most, instead of five.
        "collect_statistics_interval = 500".to_owned(),
    ];
    conf.extend(options.conf.iter().cloned());
    // Quorum queues publish their numbers at their own tick.
    let mut parameters = vec!["{quorum_tick_interval, 500}".to_owned()];
    parameters.extend(options.parameters.iter().cloned());
    NodeSpec {
        service: "rabbitmq",
        image: engine::rabbitmq_image().await,
        ready: "Server startup complete",
        environment: vec![
            ("RABBITMQ_DEFAULT_USER", USER.to_owned()),
            ("RABBITMQ_DEFAULT_PASS", USER.to_owned()),
        ],
        files: vec![
            NodeFile {
                in_container: "/etc/rabbitmq/conf.d/90-test.conf",
                in_folder: Some("extra.conf"),
                content: conf.join("\n") + "\n",
            },
            NodeFile {
                in_container: "/etc/rabbitmq/advanced.config",
                in_folder: Some("advanced.config"),
                content: format!("[{{rabbit, [{}]}}].\n", parameters.join(", ")),
            },
            NodeFile {
                in_container: "/etc/rabbitmq/enabled_plugins",
                in_folder: None,
                content: match options.without_plugin {
                    Some(plugin) => PLUGINS.replace(&format!("{plugin},"), ""),
                    None => PLUGINS.to_owned(),
                },
            },
        ],
        ports: vec![(amqp_port, 5672), (management_port, 15672)],
        seat: None,
    }
}

/// Waits until the broker greets AMQP clients and the management API answers. Either port accepts
/// connections before that: docker-proxy listens from the container's start.
async fn wait_until_ready(node: &Node, amqp_port: u16, management: &ManagementClient) -> Result<()> {
    let deadline = Instant::now() + READY;
    loop {
        node.check_alive()?;
        if greets(amqp_port).await && management.version().await.is_ok() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("the broker did not answer within {READY:?}: {}", node.log().await);
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Whether an AMQP 0-9-1 header is answered by a method frame (type 1): `connection.start`.
async fn greets(port: u16) -> bool {
    let greeting = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(b"AMQP\x00\x00\x09\x01").await?;
        stream.read_u8().await
    };
    matches!(timeout(Duration::from_secs(1), greeting).await, Ok(Ok(1)))
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A container's removal needs the runtime that its client lives on.
        if let Some(node) = self.node.take() {
            block_on_harness(async move { drop(node) });
        }
        // The next broker starts only now.
        drop(self.permit.take());
    }
}
