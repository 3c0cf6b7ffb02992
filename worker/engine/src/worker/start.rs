//! Bringing a worker up: ports first, then the broker, then the sinks, then the intake.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::FutureExt;
use garenne_amqp::{Broker, HeartbeatPublisher, Publisher, PublisherConfig};
use garenne_common::supervise;
use garenne_common::{
    backoff::Backoff,
    config::{Concurrency, Lane},
    exit::{Exit, HasExit},
    shutdown::Command,
    telemetry::{
        Traces,
        admin::{self, AdminPort},
        traces::Service,
    },
};
use garenne_protocol::{
    task::Origin,
    topology::{BrokerVersion, LaneQueues, Names, Topology},
};
use tokio::{
    sync::{Notify, Semaphore, mpsc, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Worker, WorkerError,
    drain::Running,
    handler_runtime::HandlerRuntime,
    lane::{requeue_overdue_tasks, start_lane, start_pool, update_lane_gauges, update_stuck_gauge},
};
use crate::{
    batch::RunningBatches,
    budget,
    consumer::{ConsumerConnection, Intake, MissingQueues, SettlementCounters, Subscription},
    fleet::{Command as FleetCommand, Identity, Membership},
    handler::{Routes, WorkerContext},
    pipeline::LanePipeline,
    redelivery::RedeliveryTracker,
    settings::{SinkName, WorkerConfig},
    settlement::Settler,
    sink::{Sink, SinkBuffer, SinkMetrics, results::ResultsSink, stdout::StdoutSink},
    spans::Spans,
    status::{HeartbeatSource, Status},
};

/// How long a start that is told to end may take to become a member of the fleet: the others must hear that it
/// left once they heard that it came.
const LEAVING: Duration = Duration::from_millis(500);

/// Starts the worker; answers none once `leaving` is cancelled, however far it came. `intake` says whether new
/// messages are wanted from the beginning.
pub(super) async fn start(
    worker: &Worker,
    commands: mpsc::Sender<Command>,
    intake: watch::Sender<Intake>,
    leaving: &CancellationToken,
) -> Result<Option<Running>, WorkerError> {
    let config = &worker.config;
    let ladder = config.retry.ladder()?;
    budget::check(config, worker.registry.deadlines())?;
    let admin_port = admin::bind(&config.common).await?;
    let traces = Traces::start(&config.common.otlp, &service(worker), &worker.metrics)?;
    let awaited = "not begun: the broker and the sinks are being reached";
    let (metrics, mode) = (worker.metrics.clone(), config.shutdown_mode);
    let admin = AdminPort::open(admin_port, metrics, mode, commands.clone(), awaited);
    let names = Names::new(&config.common.prefix);

    let broker = Broker::configured(&config.common, &format!("garenne-worker {}", worker.name))?;
    let link = ConsumerConnection::new(broker.clone(), worker.metrics.clone());
    let metrics = worker.metrics.connection().clone();
    let publisher = Publisher::observed(
        broker.clone(),
        PublisherConfig { while_connected: true, ..PublisherConfig::default() },
        metrics,
    );
    let topology = |version| Topology::new(&names, &config.lanes.specs(), &ladder, version);
    let missing = MissingQueues::new(link.clone(), worker.metrics.registry());
    let reaching = async {
        let version = reach(&broker, &link, &publisher, topology, config.connect_timeout).await?;
        tracing::info!(%version, "connected to RabbitMQ");
        tell_of_leftovers(config, &names, &link).await;
        sinks(worker, &publisher, &missing, &names).await
    };
    let sinks = tokio::select! {
        sinks = reaching => sinks?,
        () = leaving.cancelled() => return Ok(None),
    };

    let routes = Routes { lanes: config.lanes.clone(), max_payload: config.max_payload.bytes() };
    let worker_context =
        WorkerContext { routes: Arc::new(routes), traces: traces.clone(), ..WorkerContext::default() };
    let force_close = CancellationToken::new();
    let registry = worker.metrics.registry();
    let sink_buffer = SinkBuffer::open(sinks, &force_close, &SinkMetrics::register(registry));
    let settler = Arc::new(Settler {
        worker: Arc::clone(&worker.name),
        names: names.clone(),
        ladder,
        max_attempts: config.max_attempts,
        routes: Arc::clone(&worker_context.routes),
        replies: config.replies,
        publisher: publisher.clone(),
        missing,
        sink_buffer,
        redeliveries: RedeliveryTracker::default(),
        metrics: worker.metrics.clone(),
        traces: traces.clone(),
        runtime: tokio::runtime::Handle::current(),
        tracker: TaskTracker::new(),
        force_close: force_close.clone(),
        unroutable_replies: 0.into(),
    });

    Origin::labels().for_each(|header| drop(worker.metrics.headers_ignored(header)));

    let handlers = HandlerRuntime::start()?;
    let mut plans: Vec<_> = config.lanes.iter().map(|(name, lane)| (name, lane.clone(), false)).collect();
    plans.push((Names::QUARANTINE, quarantine(), true));
    let mut pools = Vec::new();
    for (name, lane, _) in &plans {
        let metrics = worker.metrics.lane(name);
        pools.push(start_pool(name, lane, config.hard_grace, &metrics, handlers.handle())?);
    }
    let (shown, stuck) = (pools.clone(), worker.metrics.tasks_stuck().clone());
    worker.metrics.before_encode(move || update_stuck_gauge(&shown, &stuck));

    let held = pools.clone();
    let stop = move |task: &str| {
        for pool in &held {
            // It is in one of them at most.
            let _ = pool.stop(&task.into());
        }
    };
    let asked = Arc::new(Notify::new());
    let obey = obey(commands.clone(), Arc::clone(&asked));
    let kinds = worker.registry.deadlines().map(|(kind, _)| kind.to_owned()).collect();
    let identity = Identity { worker: Arc::clone(&worker.name), kinds };
    let (patience, theirs) = (config.connect_timeout, names.clone());
    let joining = Membership::join(identity, theirs, link.clone(), publisher.clone(), patience, obey, stop);
    let given_up = async {
        leaving.cancelled().await;
        sleep(LEAVING).await;
    };
    let membership = tokio::select! {
        membership = joining => membership?,
        () = given_up => return Ok(None),
    };
    if leaving.is_cancelled() {
        let _ = timeout(LEAVING, membership.leave()).await;
        return Ok(None);
    }

    let batches = Arc::new(RunningBatches::default());
    let wanted = intake.subscribe();
    let (denied, denials) = mpsc::channel(1);
    let mut lanes = Vec::new();
    for ((name, lane, quarantine), pool) in plans.into_iter().zip(pools) {
        let metrics = worker.metrics.lane(name);
        let lane_name: Arc<str> = name.into();
        let queues = if quarantine {
            vec![names.quarantine()]
        } else {
            LaneQueues::new(&names, name, lane.shards).queues()
        };
        let queue = queues[0].clone();
        let spans = Spans { traces: traces.clone(), lane: Arc::clone(&lane_name), queue };
        let pipeline = Arc::new(LanePipeline {
            lane: lane_name,
            default_kind: lane.default_kind.clone(),
            max_payload: config.max_payload.bytes(),
            worker: Arc::clone(&worker.name),
            worker_context: worker_context.clone(),
            registry: Arc::clone(&worker.registry),
            pool: pool.clone(),
            settler: Arc::clone(&settler),
            member: Arc::clone(&membership.member),
            batches: Arc::clone(&batches),
            spans: Arc::new(spans),
            batch_deadline: budget::batch_time(&lane),
            is_quarantine: quarantine,
            quarantine_permit: Arc::new(Semaphore::new(1)),
            pool_space: Notify::new(),
        });
        let tag = format!("{}.{name}", worker.name);
        let subscriptions = Subscription::for_queues(queues, lane.prefetch, &tag);
        let wait = budget::max_wait(&lane, config.hard_grace, worker.registry.deadlines());
        // Returns when the pool is no longer open.
        supervise::restarting("sweep", pool.clone(), move |pool| {
            requeue_overdue_tasks(pool.clone(), wait).boxed()
        })
        .spawn()
        .detach();
        let counters = SettlementCounters { tally: Arc::clone(&worker.tally), lane: metrics.clone() };
        let (link, wanted, denied) = (link.clone(), wanted.clone(), denied.clone());
        lanes.push(start_lane(pipeline, subscriptions, link, counters, wanted, denied));
        worker.metrics.before_encode(move || update_lane_gauges(&pool, &metrics));
    }

    let member = Arc::clone(&membership.member);
    let status = Arc::new(Status::new(
        lanes.iter().map(super::lane::Lane::status).collect(),
        batches,
        member,
        worker_context.progress,
        Arc::clone(&settler),
        commands,
    ));
    let vitals = HeartbeatSource {
        worker: Arc::clone(&worker.name),
        incarnation: membership.member.incarnation().to_owned(),
        started: SystemTime::now(),
        every: config.common.events.heartbeat,
        intake: wanted,
        metrics: worker.metrics.clone(),
    };
    let (shown, every) = (Arc::clone(&status), vitals.every);
    let look = move || shown.heartbeat(&vitals);
    let heartbeats = HeartbeatPublisher::start(publisher.clone(), names.events(), every, asked, look);
    admin.begin(status);
    Ok(Some(Running {
        lanes,
        membership,
        heartbeats,
        intake,
        denials,
        settler,
        publisher,
        connection: link,
        force_close,
        handlers,
        traces,
        admin,
    }))
}

/// What the worker's spans say of it.
fn service(worker: &Worker) -> Service {
    let (instance, version) = (worker.name.to_string(), env!("CARGO_PKG_VERSION"));
    Service { name: "garenne-worker", instance, version }
}

/// Quarantined tasks run alone.
fn quarantine() -> Lane {
    Lane { prefetch: 1, concurrency: Concurrency { min: 1, max: 1 }, ..Lane::default() }
}

/// Does what commands on the worker's own queue say.
fn obey(
    commands: mpsc::Sender<Command>,
    asked: Arc<Notify>,
) -> impl Fn(FleetCommand) + Send + Sync + 'static {
    let send = move |command| {
        // A full channel holds commands enough.
        let _ = commands.try_send(command);
    };
    move |command| match command {
        FleetCommand::Shutdown { mode } => send(Command::Shutdown(mode.unwrap_or_default())),
        FleetCommand::Quiet => send(Command::Quiet),
        FleetCommand::Resume => send(Command::Resume),
        FleetCommand::Beat => asked.notify_one(),
    }
}

/// Connects, and makes sure that what this worker needs is there. A broker that goes away in the middle of
/// that is waited for as one that was away before, until the budget is spent.
async fn reach(
    broker: &Broker,
    link: &ConsumerConnection,
    publisher: &Publisher,
    topology: impl Fn(BrokerVersion) -> Topology,
    budget: Duration,
) -> Result<BrokerVersion, WorkerError> {
    let until = Instant::now() + budget;
    let mut backoff = Backoff::default();
    link.connect_within(budget).await?;
    loop {
        let attempt = async {
            let connection = link.connection().await?;
            let version = broker.version().await?;
            let (ensured, connected) =
                tokio::join!(link.ensure(&connection, topology(version)), publisher.connect());
            ensured?;
            connected?;
            Ok::<_, WorkerError>(version)
        };
        let error = match attempt.await {
            Ok(version) => return Ok(version),
            Err(error) if error.exit() != Exit::BrokerUnavailable || Instant::now() >= until => {
                return Err(error);
            }
            Err(error) => error,
        };
        let wait = backoff.next_wait();
        tracing::warn!(%error, ?wait, "the broker went away during the start");
        sleep(wait).await;
    }
}

/// Says where a lane has more queues than these settings know: what is in them is for others to do.
async fn tell_of_leftovers(config: &WorkerConfig, names: &Names, link: &ConsumerConnection) {
    for (lane, Lane { shards, .. }) in config.lanes.iter() {
        let next = names.shard(lane, *shards);
        if let Some(ready) = link.ready_messages(&next).await {
            let problem = "there are more queues than shards, and this worker leaves them alone: \
                           give it the lane's number of shards, or delete them once they are empty";
            tracing::warn!(lane, shards, queue = next, ready, problem);
        }
    }
}

async fn sinks(
    worker: &Worker,
    publisher: &Publisher,
    missing: &Arc<MissingQueues>,
    names: &Names,
) -> Result<Vec<Arc<dyn Sink>>, WorkerError> {
    let config = &worker.config;
    let mut sinks = worker.sinks.clone();
    for SinkName(name) in &config.sinks {
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
