//! The gateway as a child process, and what the system says of it.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{ExitCode, Stdio},
    sync::Arc,
    time::Duration,
};

use futures_util::future::BoxFuture;
use garenne_common::{
    broker::{Broker, PublishError, Publisher, PublisherConfig, Role},
    task::NewTask,
    telemetry::Metrics,
    topology::{Names, ensure},
};
use garenne_producer::{
    gateway::{Access, Gateway, Ingest, Instruments, Limits, Parts, Routes, ServerKind},
    outlet::{
        BrokerOutlet,
        gather::{GatherConfig, GatherOutlet},
    },
    settings::ProducerSettings,
};
use tokio_util::sync::CancellationToken;

/// Where receipts come from.
pub(crate) enum Outlet {
    /// Nowhere: what a server and its parsing cost.
    Memory,
    /// A quorum queue.
    Broker { url: String, gather: bool },
}

/// Confirms and keeps nothing, so that a long run does not fill the memory it measures.
struct Nowhere;

impl garenne_producer::outlet::Outlet for Nowhere {
    fn deliver(&self, _tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        Box::pin(async { Ok(()) })
    }
}

/// A running gateway; killed when dropped.
pub(crate) struct Child {
    process: std::process::Child,
    address: SocketAddr,
}

impl Child {
    pub(crate) fn start(server: &str, outlet: &Outlet) -> Self {
        let words = match outlet {
            Outlet::Memory => server.to_owned(),
            Outlet::Broker { url, gather } => format!("{server} {url} {gather}"),
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
        Self { process, address }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Processor time of all its threads so far.
    pub(crate) fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap_or_default();
        // The second field is the name and may hold spaces.
        let rest = stat.rsplit(')').next().unwrap_or_default();
        let ticks: u64 =
            rest.split_whitespace().skip(11).take(2).filter_map(|it| it.parse::<u64>().ok()).sum();
        Duration::from_millis(ticks * 10)
    }

    /// Resident memory at its highest.
    pub(crate) fn rss_mb(&self) -> f64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The child's own `main`.
pub(crate) fn serve(words: &str) -> ExitCode {
    let mut words = words.split(' ').map(str::to_owned);
    let server: ServerKind = words.next().unwrap_or_default().parse().expect("a server");
    let broker = words.next();
    let gather = words.next().is_some_and(|word| word == "true");
    garenne_producer::gateway::raise_file_limit();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async move {
        let outlet: Arc<dyn garenne_producer::outlet::Outlet> = match broker {
            None => Arc::new(Nowhere),
            Some(url) => through_broker(&url, gather).await,
        };
        let limits = Limits { max_connections: 20_000, max_waiting: 20_000, ..Limits::default() };
        let instruments = Instruments::register(&Metrics::new("bench")).expect("metrics");
        let routes = Routes::new(["reading.#".to_owned()]);
        let ingest = Ingest::new(outlet, routes, limits.max_records, limits.retry_after);
        let server = server.start(&limits, &instruments).expect("a server");
        let access = Arc::new(Access::open());
        let parts = Arc::new(Parts { ingest, access, tls: None, limits, instruments });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("{}", listener.local_addr().expect("an address"));
        Gateway::new(listener, parts, server).run(CancellationToken::new()).await;
    });
    ExitCode::SUCCESS
}

async fn through_broker(url: &str, gather: bool) -> Arc<dyn garenne_producer::outlet::Outlet> {
    let mut settings = ProducerSettings::default();
    settings.common.prefix = "garenne-bench".to_owned();
    let broker = Broker::new(url, "gateway bench").expect("a broker's URL");
    let connection = broker.connect(Role::Operate).await.expect("a broker");
    let version = broker.version().await.expect("a version");
    ensure(&connection, &settings.topology(version)).await.expect("a topology");
    // What earlier rounds left would slow this one down.
    let channel = connection.create_channel().await.expect("a channel");
    let names = Names::new("garenne-bench");
    channel
        .queue_purge(names.lane("fast").as_str().into(), Default::default())
        .await
        .expect("an empty queue");
    let config = PublisherConfig { in_flight: 8192, ..PublisherConfig::default() };
    let direct = BrokerOutlet::new(Publisher::new(broker, config), &names);
    if gather {
        GatherOutlet::start(direct, GatherConfig { records: 500, ..GatherConfig::default() })
    } else {
        direct
    }
}
