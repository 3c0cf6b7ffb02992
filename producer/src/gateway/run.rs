//! `serve`: the gateway as a process, from settings to its last receipt.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use garenne_amqp::{HeartbeatPublisher, Publisher, PublisherConfig};
use garenne_common::{
    config::{ConfigError, host_name},
    exit::{Exit, Failure},
    shutdown::{Command, Mode, signal},
    telemetry::{
        Metrics,
        admin::{self, AdminPort, Control, GroupCommand, Readiness},
        metrics::Role,
        traces::LAST_EXPORT,
    },
};
use garenne_protocol::{
    heartbeat::{Heartbeat, Program, Stance},
    task::{Kind, TaskId, epoch_ms},
};
use prometheus::IntGauge;
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use super::{
    Access, Gateway, Ingest, Instruments, MemoryBudget, READING, Tls, TlsFiles, accept::Parts,
    connection_runtime::ConnectionRuntime, raise_file_limit,
};
use crate::{
    connect,
    outlet::{
        BrokerOutlet, Outlet, PATIENCE, TracedOutlet,
        gather::{GatherConfig, GatherOutlet},
    },
    settings::ProducerSettings,
};

/// Messages that may wait for their confirms: enough for thousands of senders, and a bound on what
/// a silent broker makes this process keep.
const IN_FLIGHT: usize = 8192;

/// Connections that the system has made and that wait to be accepted, where it allows so many. A connection beyond it is
/// tried again by its sender after a second: 128, which is usual, are fewer than a fleet that comes back at once.
const BACKLOG: u32 = 4096;

/// Answers that the system buffers for one connection. Left to itself it takes megabytes, and a sender that asks and does
/// not read is served until they are full.
const SEND_BUFFER: u32 = 64 * 1024;

/// How often a lost connection is tried again when nobody sends.
const RECONNECT_EVERY: Duration = Duration::from_secs(1);

/// How often the files of tokens and certificates are looked at.
const FILES_EVERY: Duration = Duration::from_secs(1);

/// Runs the gateway until it is told to stop.
///
/// # Errors
/// What keeps it from starting: the port, the broker, a right, a file.
pub async fn run(settings: ProducerSettings) -> Result<Exit, Failure> {
    let (orders, mut commands) = signal::commands(Mode::SoftTimeout)
        .map_err(|error| Failure::new(Exit::Failed, format!("no signal handlers: {error}")))?;
    raise_file_limit();
    let limits = settings.gateway.clone();
    let certificates = settings.tls_client_ca.is_some();
    let access = Arc::new(Access::new(settings.tokens.as_deref(), certificates, limits.max_records)?);
    let tls = match (&settings.tls_cert, &settings.tls_key) {
        (Some(certificate), Some(key)) => {
            let (certificate, key) = (certificate.clone(), key.clone());
            let client_ca = settings.tls_client_ca.clone();
            Some(Arc::new(Tls::new(TlsFiles { certificate, key, client_ca })?))
        }
        _ => None,
    };
    let listener = bind(&settings)?;
    let admin = admin::bind(&settings.common).await?;
    let metrics = Metrics::new("gateway");
    let awaited = "not begun: the broker is being reached";
    let admin = AdminPort::open(admin, metrics.clone(), Mode::SoftTimeout, orders.clone(), awaited);
    let config =
        PublisherConfig { in_flight: IN_FLIGHT, acquire_timeout: PATIENCE, ..PublisherConfig::default() };
    let publisher = tokio::select! {
        publisher = connect::publisher(&settings, config, &metrics) => publisher?,
        () = stop_order(&mut commands) => return Ok(Exit::Done),
    };

    // What heartbeats and traces call it.
    let id = format!("{}-{}", host_name(), listener.local_addr().unwrap_or(settings.listen).port());
    let traces = connect::traces(&settings, "garenne-gateway", id.clone(), &metrics)?;
    let instruments = Instruments::register(&metrics)
        .map_err(|error| Failure::new(Exit::Failed, format!("metrics: {error}")))?;
    let broker = BrokerOutlet::within(
        publisher.clone(),
        &settings.names(),
        &settings.lanes,
        limits.max_confirm_latency,
    );
    let outlet: Arc<dyn Outlet> = match settings.group_commit {
        GatherConfig { records: 1, .. } => broker,
        config => GatherOutlet::start(broker, config, Kind::parse(READING).expect("a constant")),
    };
    let outlet = TracedOutlet::before(outlet, &traces, &settings.names());
    let ingest = Ingest::new(outlet, settings.routes(), &limits, settings.max_clock_skew);
    let budget = MemoryBudget::new(&limits);
    instruments
        .watch_memory(&budget)
        .map_err(|error| Failure::new(Exit::Failed, format!("metrics: {error}")))?;
    let connections = ConnectionRuntime::start()
        .map_err(|error| Failure::new(Exit::Failed, format!("no threads for connections: {error}")))?;
    let server = {
        let _there = connections.handle().enter();
        settings.server.start(&limits, &instruments)
    };
    let server = server.map_err(|error| Failure::new(Exit::Config, format!("gateway: {error}")))?;
    let parts = Arc::new(Parts {
        ingest,
        access: Arc::clone(&access),
        tls: tls.clone(),
        limits,
        budget,
        instruments,
        traces: traces.clone(),
    });

    let connected = metrics.connection().up(Role::Publish);
    let state = Arc::new(State {
        accepting: AtomicBool::new(true),
        connected: connected.clone(),
        orders,
        server: settings.server.as_str(),
    });
    let heartbeats = HeartbeatPublisher::start(
        publisher.clone(),
        settings.names().events(),
        settings.common.events.heartbeat,
        Arc::default(),
        state.vitals(id, &settings, metrics.clone()),
    );
    admin.begin(Arc::clone(&state));

    let watching = tokio::spawn(async move {
        let certificates = async {
            match &tls {
                Some(tls) => tls.watch(FILES_EVERY).await,
                None => std::future::pending().await,
            }
        };
        tokio::join!(access.watch(FILES_EVERY), certificates)
    });
    let connecting = tokio::spawn(stay_connected(publisher.clone(), connected));
    let stop = CancellationToken::new();
    let address = settings.listen_address(&listener);
    tracing::info!(address, server = settings.server.as_str(), "gateway is open for sensors");
    let gateway = connections.handle().spawn(Gateway::new(listener, parts, server).run(stop.clone()));

    stop_order(&mut commands).await;
    state.accepting.store(false, Ordering::Relaxed);
    stop.cancel();
    tracing::info!("no more connections; requests under way are answered");
    let (all_answered, interrupted) = tokio::select! {
        drained = gateway => (drained.unwrap_or(false), false),
        () = stop_order(&mut commands) => (false, true),
    };
    watching.abort();
    connecting.abort();
    heartbeats.stop().await;
    publisher.close().await;
    traces.close(if interrupted { Duration::ZERO } else { LAST_EXPORT }).await;
    admin.close().await;
    if interrupted {
        return Ok(Exit::Interrupted);
    }
    if !all_answered {
        tracing::warn!("some requests were not answered in time; what has no receipt may be repeated");
        return Ok(Exit::Failed);
    }
    Ok(Exit::Done)
}

/// Connects again after a loss, also when nobody sends: who is not ready is sent nothing, and what is
/// sent nothing would never find out that the broker is back.
async fn stay_connected(publisher: Publisher, connected: IntGauge) {
    let mut tick = tokio::time::interval(RECONNECT_EVERY);
    loop {
        tick.tick().await;
        if connected.get() == 0
            && let Err(error) = publisher.connect().await
        {
            tracing::info!(%error, "no connection to the broker yet");
        }
    }
}

/// The next order to stop; pausing means nothing to a gateway, whose senders would only time out.
async fn stop_order(commands: &mut mpsc::Receiver<Command>) {
    while let Some(command) = commands.recv().await {
        if matches!(command, Command::Shutdown(_) | Command::Escalate) {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// Listens with room for many connections that are made at once.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A gateway that is started again takes the port of the one before.
    socket.set_reuseaddr(true)?;
    // Accepted sockets inherit it.
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn bind(settings: &ProducerSettings) -> Result<TcpListener, ConfigError> {
    listen(settings.listen).map_err(|error| {
        let problem = match error.kind() {
            ErrorKind::AddrInUse => {
                "the address is already in use: stop what listens there, or choose another port, such as --listen 127.0.0.1:8081".to_owned()
            }
            ErrorKind::PermissionDenied => {
                "the address needs a right this user lacks: choose a port from 1024 on".to_owned()
            }
            ErrorKind::AddrNotAvailable => "the address is none of this machine's".to_owned(),
            _ => error.to_string(),
        };
        ConfigError::Invalid {
            setting: "listen".to_owned(),
            value: settings.listen.to_string(),
            origin: "--listen or GARENNE_LISTEN".to_owned(),
            problem,
        }
    })
}

impl ProducerSettings {
    /// The address with the port the system chose, where 0 was asked for.
    fn listen_address(&self, listener: &TcpListener) -> String {
        listener.local_addr().unwrap_or(self.listen).to_string()
    }
}

/// The gateway as its admin port sees it.
struct State {
    accepting: AtomicBool,
    /// 1 while there is a connection to publish on.
    connected: IntGauge,
    orders: mpsc::Sender<Command>,
    server: &'static str,
}

impl State {
    /// What the gateway says of itself at each heartbeat.
    fn vitals(
        self: &Arc<Self>,
        id: String,
        settings: &ProducerSettings,
        metrics: Metrics,
    ) -> impl Fn() -> Heartbeat + Send + Sync + 'static {
        let host = host_name();
        let incarnation = TaskId::random().as_str().to_owned();
        let (started, every) = (SystemTime::now(), settings.common.events.heartbeat);
        let state = Arc::clone(self);
        move || Heartbeat {
            program: Program::Gateway,
            id: id.clone(),
            incarnation: incarnation.clone(),
            host: host.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: epoch_ms(started),
            at: epoch_ms(SystemTime::now()),
            every_ms: every.as_millis().try_into().unwrap_or(u64::MAX),
            stance: if state.accepting.load(Ordering::Relaxed) { Stance::Open } else { Stance::Stopping },
            lanes: BTreeMap::new(),
            paused: Vec::new(),
            running: 0,
            tasks: Vec::new(),
            kinds: BTreeMap::new(),
            connections: metrics.connection_counts(),
            blocked: metrics.connection().blocked.get() != 0,
            gateway: Some(metrics.gateway_counts()),
        }
    }
}

impl Readiness for State {
    fn ready(&self) -> Result<(), Vec<String>> {
        if !self.accepting.load(Ordering::Relaxed) {
            return Err(vec!["the gateway stops".to_owned()]);
        }
        if self.connected.get() == 0 {
            return Err(vec!["no connection to the broker".to_owned()]);
        }
        Ok(())
    }
}

impl Control for State {
    fn command(&self, command: Command) {
        if self.orders.try_send(command).is_err() {
            tracing::warn!(?command, "command dropped: too many wait");
        }
    }

    fn pool(&self) -> Value {
        json!({ "server": self.server })
    }

    fn stop_task(&self, _id: &str) -> bool {
        false
    }

    fn group(&self, _group: &str, _command: GroupCommand) -> bool {
        false
    }
}
