//! The start of a worker: connect → compose → join → consume.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::FutureExt;
use garenne_amqp::{
    Broker, DeadLetters, HeartbeatPublisher, Publisher, PublisherConfig, RestoreExchange,
    retry_while_unavailable,
};
use garenne_common::{
    clock,
    config::{Concurrency, Lane as LaneConfig},
    log_limit::LogLimit,
    memory,
    shutdown::Command,
    telemetry::{
        HeartbeatSource, Traces,
        admin::{self, AdminPort},
        metrics::NewMetrics,
        traces::Service,
    },
};
use garenne_protocol::{
    heartbeat::Program,
    task::{Origin, epoch_ms},
    topology::{BrokerVersion, Names, Topology},
};
use tokio::{
    sync::{Notify, Semaphore, mpsc, watch},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Worker, WorkerError,
    companion::Companions,
    consumers::Consumers,
    drain::Running,
    handler_runtime::HandlerRuntime,
    lane::{Lane, start_pool, update_gauges},
    lane_starter::LaneStarter,
    lane_states::LaneStates,
    unroutable,
};
use crate::{
    consumer::{ConsumeBroker, ConsumerConnection, Intake, MissingQueues},
    fleet::{Command as FleetCommand, FleetConnection, Handlers, Member, Membership},
    handler::{Routes, WorkerContext},
    payload_memory,
    redelivery::RedeliveryTracker,
    reply_queues::REPLY_TO,
    settings::SinkName,
    settlement::{Replies, Settler, record_places},
    sink::{Sink, SinkBuffer, SinkMetrics, WorkerState, results::ResultsSink, stdout::StdoutSink},
    status::Status,
};

/// How long a start that is stopped may take to join and leave the fleet. If the others have read its start record,
/// they must read its stop record.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(500);

/// What a worker starts with besides its settings and handlers.
pub(crate) struct Resources<B> {
    /// [`None`] for a worker inside of a program that does not set it, and for a simulated one.
    pub(crate) admin: Option<AdminPort>,
    pub(crate) traces: Traces,
    pub(crate) broker: B,
    pub(crate) publisher: Publisher,
    /// That of replies.
    pub(crate) replies: Publisher,
    pub(crate) handlers: HandlerRuntime,
}

/// How a worker publishes: a copy that is published again although the first one is stored would run twice.
pub(crate) fn publisher_config() -> PublisherConfig {
    PublisherConfig { while_connected: true, ..PublisherConfig::default() }
}

/// Opens the admin port and the export of spans, and prepares the connections to RabbitMQ.
pub(super) async fn open(
    worker: &Worker,
    commands: &mpsc::Sender<Command>,
) -> Result<Resources<ConsumerConnection>, WorkerError> {
    let Worker { name, config, metrics, .. } = worker;
    let admin_port = match worker.has_admin_port() {
        true => Some(admin::bind(&config.common).await?),
        false => None,
    };
    let (instance, version) = (name.to_string(), env!("CARGO_PKG_VERSION"));
    let service = Service { name: "garenne-worker", instance, version };
    let traces = Traces::start(&config.common.otlp, &service, metrics)?;
    let awaited = "starting: connecting to the broker and the sinks";
    let open = |port| AdminPort::open(port, metrics.clone(), config.shutdown_mode, commands.clone(), awaited);
    let admin = admin_port.map(open);
    let broker = Broker::configured(&config.common, &format!("garenne-worker {name}"))?;
    let publisher = Publisher::observed(broker.clone(), publisher_config(), metrics.connection().clone());
    // Its connection may end at any time, and says nothing about the worker.
    let replies = Publisher::new(broker.clone(), PublisherConfig::default());
    let broker = ConsumerConnection::new(broker, metrics.clone());
    Ok(Resources { admin, traces, broker, publisher, replies, handlers: HandlerRuntime::start()? })
}

/// Starts the worker with what `open` returns. Returns [`None`] if `stopping` is cancelled before it consumes.
pub(super) async fn start<B: ConsumeBroker>(
    worker: &Worker,
    open: impl Future<Output = Result<Resources<B>, WorkerError>>,
    commands: mpsc::Sender<Command>,
    intake: watch::Sender<Intake>,
    stopping: &CancellationToken,
) -> Result<Option<Running<B>>, WorkerError> {
    let connecting = stopping.run_until_cancelled(connect(worker, open));
    let Some(connected) = connecting.await.transpose()? else { return Ok(None) };
    let composed = compose(worker, connected)?;
    let Some(joined) = join(worker, composed, &commands, stopping).await? else { return Ok(None) };
    Ok(Some(consume(worker, joined, intake)))
}

/// A worker whose broker and sinks can be reached.
struct Connected<B> {
    admin: Option<AdminPort>,
    broker: B,
    handlers: HandlerRuntime,
    settler: Arc<Settler>,
}

/// Step 1: validates the settings, connects to the broker, and opens the sinks that results are settled with.
async fn connect<B: ConsumeBroker>(
    worker: &Worker,
    open: impl Future<Output = Result<Resources<B>, WorkerError>>,
) -> Result<Connected<B>, WorkerError> {
    let Worker { name, config, metrics, .. } = worker;
    let ladder = config.retry.ladder()?;
    payload_memory::check(config, memory::limit())?;
    let Resources { admin, traces, broker, publisher, replies, handlers } = open.await?;
    let missing = MissingQueues::new(broker.clone(), metrics.registry());
    let names = Names::new(&config.common.prefix);
    let topology = |version| Topology::new(&names, &config.lanes.specs(), &ladder, version);
    let version = ensure_topology(&broker, &publisher, topology, config.connect_timeout).await?;
    tracing::info!(%version, "connected to RabbitMQ");
    let kinds = worker.registry.deadlines().map(|(kind, _)| kind);
    let kinds: Vec<_> = kinds.filter(|kind| config.lanes.giving(kind).next().is_none()).collect();
    if !kinds.is_empty() {
        let kinds = kinds.join(", ");
        tracing::warn!(kinds, "no lane takes these kinds: tasks of them are unroutable, and reach no worker");
    }
    let sinks = open_sinks(worker, &publisher, &missing, &names).await?;
    let force_close = CancellationToken::new();
    let settler = Settler {
        worker: Arc::clone(name),
        names,
        ladder,
        max_attempts: config.max_attempts,
        unknown_kind_wait: config.unknown_kind_wait,
        unhandled: Arc::default(),
        when_dead: worker.registry.when_dead(),
        routes: Arc::new(Routes { lanes: config.lanes.clone(), max_payload: config.max_payload.bytes() }),
        replies: config.replies.then(|| Replies::new(config.reply_queues.clone(), replies)),
        record_places: record_places(),
        letters: DeadLetters::new(publisher.clone(), Names::new(&config.common.prefix)),
        held_letter: Semaphore::const_new(1),
        publisher,
        missing,
        sink_buffer: SinkBuffer::open(
            sinks,
            &force_close,
            &SinkMetrics::register(metrics.registry()),
            &handlers.handle(),
        ),
        redeliveries: RedeliveryTracker::default(),
        checkpoints: Arc::default(),
        metrics: metrics.clone(),
        dead_letter_log: LogLimit::default(),
        traces,
        runtime: tokio::runtime::Handle::current(),
        tracker: TaskTracker::new(),
        force_close,
    };
    let settler = Arc::new(settler);
    unroutable::watch(&settler, config.common.events.heartbeat);
    Ok(Connected { admin, broker, handlers, settler })
}

/// Connects and ensures the topology. While the broker is unavailable, or refuses a login whose URL is read again from a
/// file, retries until `budget` is spent.
async fn ensure_topology(
    broker: &impl ConsumeBroker,
    publisher: &Publisher,
    topology: impl Fn(BrokerVersion) -> Topology,
    budget: Duration,
) -> Result<BrokerVersion, WorkerError> {
    retry_while_unavailable(budget, WorkerError::exit_of_attempt, || async {
        let version = broker.version().await?;
        let (ensured, connected) = tokio::join!(broker.ensure(topology(version)), publisher.connect());
        ensured?;
        connected?;
        Ok(version)
    })
    .await
}

async fn open_sinks(
    worker: &Worker,
    publisher: &Publisher,
    missing: &Arc<MissingQueues>,
    names: &Names,
) -> Result<Vec<Arc<dyn Sink>>, WorkerError> {
    let mut sinks = worker.sinks.clone();
    for SinkName(name) in &worker.config.sinks {
        sinks.push(match name.as_str() {
            SinkName::STDOUT => StdoutSink::new(),
            SinkName::RESULTS => ResultsSink::restoring(publisher.clone(), names.results(), missing),
            name => {
                let (_, open) =
                    worker.named_sinks.iter().find(|(known, _)| *known == name).expect("checked by build");
                open().await.map_err(WorkerError::Sink)?
            }
        });
    }
    Ok(sinks)
}

/// A worker with all its parts, of which none receives anything yet.
struct Composed<B> {
    connected: Connected<B>,
    lanes: Vec<Lane>,
}

/// Step 2: starts the lanes' pools.
fn compose<B>(worker: &Worker, connected: Connected<B>) -> Result<Composed<B>, WorkerError> {
    let Worker { config, metrics, .. } = worker;
    // Every label is exported from the start.
    Origin::labels().chain([REPLY_TO]).for_each(|header| drop(metrics.headers_ignored(header)));

    let own = config.lanes.iter().map(|(name, lane)| (name, lane.clone(), false));
    // Quarantined tasks run alone.
    let alone =
        LaneConfig { prefetch: 1, concurrency: Concurrency { min: 1, max: 1 }, ..LaneConfig::default() };
    let lanes = own.chain([(Names::QUARANTINE, alone, true)]).map(|(name, lane, is_quarantine)| {
        let metrics = metrics.lane(name);
        let pool = start_pool(name, &lane, config.hard_grace, &metrics, connected.handlers.handle())?;
        Ok(Lane { name: name.into(), config: lane, is_quarantine, metrics, pool })
    });
    let lanes = lanes.collect::<Result<Vec<_>, WorkerError>>()?;
    let shown: Vec<_> = lanes.iter().map(|lane| (lane.pool.clone(), lane.metrics.clone())).collect();
    // Weak, because the settler holds the metrics.
    let (stuck, settler) = (metrics.tasks_stuck().clone(), Arc::downgrade(&connected.settler));
    metrics.before_encode(move || {
        update_gauges(&shown, &stuck);
        let _ = settler.upgrade().inspect(|settler| settler.report_dead_letters());
    });
    let help = "Tasks that this worker put off because no running worker has a handler for their kind.";
    let gauges = NewMetrics(metrics.registry()).gauges("garenne_unhandled_tasks", help, &["lane", "kind"]);
    let unhandled = Arc::clone(&connected.settler.unhandled);
    metrics.before_encode(move || unhandled.export(&gauges, epoch_ms(clock::now())));
    Ok(Composed { connected, lanes })
}

/// A worker that is a member of the fleet.
struct Joined<B> {
    composed: Composed<B>,
    membership: Membership,
    /// Notified when an operator asks for a heartbeat.
    heartbeat_requested: Arc<Notify>,
}

/// Step 3: reads what the fleet has recorded, and makes this worker known. Returns [`None`] if `stopping` is
/// cancelled.
async fn join<B: ConsumeBroker>(
    worker: &Worker,
    composed: Composed<B>,
    commands: &mpsc::Sender<Command>,
    stopping: &CancellationToken,
) -> Result<Option<Joined<B>>, WorkerError> {
    let heartbeat_requested = Arc::new(Notify::new());
    let (commands, requested) = (commands.clone(), Arc::clone(&heartbeat_requested));
    let on_command = move |command| {
        let command = match command {
            FleetCommand::Shutdown { mode } => Command::Shutdown(mode.unwrap_or_default()),
            FleetCommand::Quiet => Command::Quiet,
            FleetCommand::Resume => Command::Resume,
            FleetCommand::Beat => return requested.notify_one(),
        };
        // If the channel is full, the worker is about to obey earlier commands, and this one is dropped.
        let _ = commands.try_send(command);
    };
    let pools: Vec<_> = composed.lanes.iter().map(|lane| lane.pool.clone()).collect();
    let stop_task = move |task: &str| {
        for pool in &pools {
            // It is in one of them at most.
            let _ = pool.stop(&task.into());
        }
    };
    let Connected { broker, settler, .. } = &composed.connected;
    let (queues, publisher) = (Box::new(broker.clone()), settler.publisher.clone());
    let fleet = FleetConnection { queues, publisher, names: settler.names.clone() };
    let member = Member::new(Arc::clone(&worker.name), handlers_of(worker), settler.names.clone(), fleet);
    let read_timeout = worker.config.connect_timeout;
    let check_interval = binding_check_interval(worker.config.common.events.heartbeat);
    let (broker, metrics) = (broker.clone(), worker.metrics.clone());
    let joining =
        Membership::join(member, broker, metrics, read_timeout, check_interval, on_command, stop_task);
    let given_up = async {
        stopping.cancelled().await;
        sleep(LEAVE_TIMEOUT).await;
    };
    let membership = tokio::select! {
        biased;
        membership = joining => membership?,
        () = given_up => return Ok(None),
    };
    if stopping.is_cancelled() {
        let _ = timeout(LEAVE_TIMEOUT, membership.leave()).await;
        return Ok(None);
    }
    Ok(Some(Joined { composed, membership, heartbeat_requested }))
}

/// Time between two checks of the control queue's bindings: a minute, or less if heartbeats are more frequent than usual.
fn binding_check_interval(heartbeat: Duration) -> Duration {
    const DEFAULT: Duration = Duration::from_secs(60);
    if heartbeat.is_zero() { DEFAULT } else { DEFAULT.min(heartbeat * 30) }
}

/// The worker's kinds, and the lanes that it consumes for them.
fn handlers_of(worker: &Worker) -> Handlers {
    let lanes = &worker.config.lanes;
    let kinds: Vec<_> = worker.registry.deadlines().map(|(kind, _)| kind.to_owned()).collect();
    let has_own = kinds.iter().any(|kind| lanes.bound_to(kind).is_none());
    let consumed = lanes.iter().filter(|(_, lane)| has_own || !lane.catch_all);
    Handlers {
        catch_all: has_own && lanes.iter().any(|(_, lane)| lane.catch_all),
        lanes: Some(consumed.map(|(name, _)| name.to_owned()).collect()),
        kinds,
    }
}

/// Step 4: consumes the queues of all lanes, sends heartbeats, and shows the worker's state on the admin port.
fn consume<B: ConsumeBroker>(
    worker: &Worker,
    joined: Joined<B>,
    intake: watch::Sender<Intake>,
) -> Running<B> {
    let Joined { composed, membership, heartbeat_requested } = joined;
    let Composed { connected: Connected { admin, broker: connection, handlers, settler }, lanes } = composed;
    let Worker { config, registry, .. } = worker;
    let companions = Companions::start(&worker.companions, &worker.metrics, &handlers);
    let (exchange, publisher) = (settler.names.events(), settler.publisher.clone());
    let (member, batches) = (Arc::clone(&membership.member), Arc::default());
    let worker_context = Arc::new(WorkerContext {
        name: Arc::clone(&settler.worker),
        routes: Arc::clone(&settler.routes),
        progress: Arc::default(),
        traces: settler.traces.clone(),
        directives: Arc::clone(&member.directives),
        data: worker.data.clone(),
        checkpoints: Arc::clone(&settler.checkpoints),
    });
    let broker = connection.clone();
    let restore: RestoreExchange = Box::new(move || {
        let broker = broker.clone();
        async move { broker.restore_topology().await.map_err(|error| error.to_string()) }.boxed()
    });
    let (denied, denials) = mpsc::channel(1);
    let (ack_writers, tasks) = (TaskTracker::new(), Vec::new());
    let foreign = connection.for_foreign_messages();
    let mut starter = LaneStarter {
        worker,
        context: Arc::clone(&worker_context),
        settler: Arc::clone(&settler),
        member: Arc::clone(&member),
        batches: Arc::clone(&batches),
        intake: &intake,
        consumers: Consumers { connection, foreign, denied, ack_writers, tasks },
    };
    let lanes: Vec<_> = lanes.into_iter().map(|lane| starter.start(lane)).collect();
    let consumers = starter.consumers;
    let kinds = registry.deadlines().map(|(kind, _)| kind.to_owned()).collect();
    let state: Arc<dyn WorkerState> = Arc::new(LaneStates {
        broker: consumers.connection.clone(),
        lanes: lanes.clone(),
        kinds,
        metrics: settler.metrics.clone(),
        directives: Arc::clone(&member.directives),
        intake: intake.subscribe(),
    });
    let publisher_of_sinks = settler.task_publisher();
    let background = settler.sink_buffer.start_background(&publisher_of_sinks, &state, &settler.force_close);

    let source = HeartbeatSource::new(
        Program::Worker,
        settler.worker.to_string(),
        member.incarnation.clone(),
        config.common.events.heartbeat,
        settler.metrics.clone(),
    );
    let status = Arc::new(Status {
        heartbeats: source,
        intake: intake.subscribe(),
        lanes,
        batches,
        member,
        progress: Arc::clone(&worker_context.progress),
        settler,
        registry: Arc::clone(registry),
        not_ready: Mutex::default(),
    });
    let (shown, interval) = (Arc::clone(&status), status.heartbeats.interval());
    let heartbeats =
        HeartbeatPublisher::start(publisher, exchange, interval, heartbeat_requested, restore, move || {
            shown.heartbeat()
        });
    if let Some(admin) = &admin {
        admin.begin(Arc::clone(&status) as _);
    }
    Running {
        status,
        consumers,
        denials,
        intake,
        membership,
        background,
        heartbeats,
        companions,
        handlers,
        admin,
    }
}
