//! The gateway as a child process.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{ExitCode, Stdio},
    sync::Arc,
    time::Duration,
};

use axum::{Json, Router, http::StatusCode, routing::post};
use futures_util::future::BoxFuture;
use garenne_amqp::{Broker, PublishError, Publisher, PublisherConfig, declare::ensure};
use garenne_common::{
    config::Lanes,
    telemetry::{Metrics, Traces, metrics::Role},
};
use garenne_gateway::{
    Access, GatewayContext, GatewaySettings, Ingest, Instruments, Limits, Maps, MemoryBudget,
};
use garenne_protocol::{
    sensor::Limits as RecordLimits,
    task::{Kind, NewTask},
    topology::Names,
};
use garenne_publish::{
    BrokerMessages, BrokerSender, BrokerSettings, GroupCommit, GroupCommitConfig, GroupSender, Routes,
    SpoolingSender, TaskSender,
};
use lapin::{BasicProperties, Confirmation, options::ConfirmSelectOptions};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{servers, spooling};

/// The component that confirms the readings.
pub(crate) enum Backend {
    /// Confirms at once: measures the server and the parsing.
    Memory,
    /// As `Memory`, with a sender that may send some devices only.
    Scoped,
    /// A quorum queue of a broker.
    Broker { url: String, mode: PublishMode },
    /// A spool in front of a broker that blocks publishers.
    Spooled,
    /// Group commit in front of a simulated broker that stores [`CAPACITY`] readings per second.
    Throttled,
}

/// How readings are published.
#[derive(Clone, Copy)]
pub(crate) enum PublishMode {
    /// A minimal axum endpoint that publishes each body with lapin and waits for the confirm.
    Bare,
    /// One message per reading.
    Direct,
    /// Group commit.
    Gathered,
}

/// Readings per second that [`Backend::Throttled`] stores.
pub(crate) const CAPACITY: u32 = 2000;

/// Confirms one message after the other, after a time proportional to its readings.
#[derive(Default)]
struct Throttled(Arc<Mutex<()>>);

impl GroupSender for Throttled {
    fn send_group(self: Arc<Self>, tasks: Vec<NewTask>) -> BoxFuture<'static, Result<(), PublishError>> {
        let turn = Arc::clone(&self.0);
        Box::pin(async move {
            let _turn = turn.lock().await;
            tokio::time::sleep(Duration::from_secs(1) * u32::try_from(tasks.len()).unwrap_or(0) / CAPACITY)
                .await;
            Ok(())
        })
    }
}

/// Confirms at once and keeps nothing, so that a long run does not use the memory that it measures.
struct Nowhere;

impl TaskSender for Nowhere {
    fn send(&self, _tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        Box::pin(async { Ok(()) })
    }
}

/// Confirms nothing.
struct Blocked;

impl TaskSender for Blocked {
    fn send(&self, _tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        Box::pin(async { Err(PublishError::Blocked) })
    }
}

/// A running gateway; killed when dropped.
pub(crate) struct Child {
    process: std::process::Child,
    address: SocketAddr,
    /// For the spool. Removed after the process has ended.
    _folder: TempDir,
}

impl Child {
    pub(crate) fn start(server: &str, backend: &Backend) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let words = match backend {
            Backend::Memory => server.to_owned(),
            Backend::Scoped => format!("{server} scoped"),
            Backend::Throttled => format!("{server} throttled"),
            Backend::Spooled => format!("{server} spooled {}", folder.path().display()),
            Backend::Broker { url, mode: PublishMode::Bare } => format!("{server} bare {url}"),
            Backend::Broker { url, mode: PublishMode::Direct } => format!("{server} direct {url}"),
            Backend::Broker { url, mode: PublishMode::Gathered } => format!("{server} gathered {url}"),
        };
        let program = std::env::current_exe().expect("a path to this program");
        let mut process = std::process::Command::new(program)
            .args(["--serve", &words])
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line with the address");
        let address = line.trim().parse().expect("the address it listens on");
        Self { process, address, _folder: folder }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// `main` of the child process.
pub(crate) fn serve(words: &str) -> ExitCode {
    let mut words = words.split(' ').map(str::to_owned);
    let server = words.next().unwrap_or_default();
    let (mode, url) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    garenne_gateway::raise_file_limit();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async move {
        let publisher: Arc<dyn TaskSender> = match mode.as_str() {
            "" | "scoped" => Arc::new(Nowhere),
            "spooled" => Arc::new(Blocked),
            "throttled" => grouped(Arc::new(Throttled::default()), GroupCommitConfig::default()),
            "bare" => return bare(&url).await,
            mode => broker_sender(&url, mode == "gathered").await,
        };
        let limits = Limits {
            max_connections: 20_000,
            max_connections_per_source: 0,
            max_waiting: 20_000,
            ..Limits::default()
        };
        let budget = MemoryBudget::new(&limits);
        let instruments = Instruments::register(&Metrics::new("bench"), &budget).expect("metrics");
        let routes = Routes::new(["reading.#".to_owned()]);
        let mut spooling = SpoolingSender::direct(Arc::clone(&publisher));
        if mode == "spooled" {
            let settings = spooling::settings(Path::new(&url));
            let spool = settings.open().await.expect("a spool").expect("it is set");
            spooling = SpoolingSender::with_spool(publisher, spool, settings.spool_after);
        }
        let ingest = Ingest::new(spooling, routes, &limits, RecordLimits::default());
        let server = servers::start(&server, &limits, &instruments);
        let access = if mode == "scoped" { scoped() } else { Access::default() };
        let context = Arc::new(GatewayContext {
            ingest,
            access,
            network: GatewaySettings::default().network(),
            tls: None,
            limits,
            maps: Maps::default(),
            budget,
            instruments,
            traces: Traces::default(),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("{}", listener.local_addr().expect("an address"));
        garenne_gateway::serve(listener, context, server, CancellationToken::new()).await;
    });
    ExitCode::SUCCESS
}

/// Lets every sender send readings of ten groups of devices. The last pattern is that of the loads.
fn scoped() -> Access {
    let patterns: Vec<_> = (0..9).map(|n| format!("\"greenhouse-{n}0*\"")).collect();
    let senders = format!("[anonymous]\ndevices = [{}, \"greenhouse-*\"]\n", patterns.join(", "));
    let file = std::env::temp_dir().join(format!("garenne-bench-senders-{}.toml", std::process::id()));
    std::fs::write(&file, senders).expect("a temporary file");
    let access = Access::new(Some(&file), false, Limits::default().max_records).expect("valid senders");
    std::fs::remove_file(&file).expect("the file was written");
    access
}

fn grouped(sender: Arc<dyn GroupSender>, config: GroupCommitConfig) -> Arc<dyn TaskSender> {
    let kind = Kind::parse("reading.process").expect("a constant");
    let groups = GroupCommit::start(sender, config, kind);
    Arc::new(BrokerSender::new(groups, &Traces::default(), &Names::new("garenne-bench")))
}

/// Declares the topology and purges the lane: messages of earlier rounds would slow this one down.
async fn prepared(url: &str) -> (Broker, Names) {
    let mut settings = BrokerSettings::default();
    settings.common.prefix = "garenne-bench".to_owned();
    let broker = Broker::new(url, "gateway bench").expect("a broker's URL");
    let connection = broker.connect(Role::Operate).await.expect("a broker");
    let version = broker.version().await.expect("a version");
    ensure(&connection, &settings.topology(version)).await.expect("a topology");
    let channel = connection.create_channel().await.expect("a channel");
    let names = Names::new("garenne-bench");
    channel
        .queue_purge(names.lane("fast").as_str().into(), Default::default())
        .await
        .expect("an empty queue");
    (broker, names)
}

pub(crate) async fn broker_sender(url: &str, is_grouped: bool) -> Arc<dyn TaskSender> {
    let (broker, names) = prepared(url).await;
    let config = PublisherConfig { in_flight: 8192, ..PublisherConfig::default() };
    let publisher = Publisher::new(broker, config);
    let messages = BrokerMessages::new(publisher, &names, &Lanes::default(), Duration::MAX);
    grouped(messages, if is_grouped { GroupCommitConfig::default() } else { GroupCommitConfig::off() })
}

/// [`PublishMode::Bare`]: no limits, no validation, no handling of unroutable messages.
async fn bare(url: &str) {
    let (broker, names) = prepared(url).await;
    let connection = broker.connect(Role::Publish).await.expect("a broker");
    let channel = connection.create_channel().await.expect("a channel");
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
    let queue = names.lane("fast");
    let take = move |Json(reading): Json<Value>| {
        let (channel, queue) = (channel.clone(), queue.clone());
        async move {
            let body = serde_json::to_vec(&reading).expect("JSON");
            let properties = BasicProperties::default().with_delivery_mode(2);
            let sent = channel
                .basic_publish("".into(), queue.as_str().into(), Default::default(), &body, properties)
                .await;
            match sent.expect("a broker").await.expect("a confirm") {
                Confirmation::Ack(None) => (StatusCode::ACCEPTED, Json(serde_json::json!({ "accepted": 1 }))),
                _ => (StatusCode::SERVICE_UNAVAILABLE, Json(Value::Null)),
            }
        }
    };
    let router = Router::new().route("/v1/readings", post(take));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    println!("{}", listener.local_addr().expect("an address"));
    axum::serve(listener, router).await.expect("it serves");
}
