//! Bringing a worker up: ports first, then the broker, then the sinks, then the intake.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_common::{
    broker::{Backoff, Broker, Heart, Publisher, PublisherConfig},
    config::{Concurrency, Lane},
    exit::{Exit, HasExit},
    shutdown::Command,
    task::StandingOrder,
    telemetry::{
        Traces,
        admin::{self, AdminPort},
        traces::Service,
    },
    topology::{BrokerVersion, LaneSpec, Names, Topology},
};
use tokio::{
    runtime::{Builder, Runtime},
    sync::{Notify, mpsc, watch},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Worker, WorkerError,
    drain::Running,
    lane::{hand_back_in_time, show, show_stuck, start_lane, start_pool},
};
use crate::{
    bridge::Bridge,
    budget,
    clerk::Clerk,
    consumer::{Intake, Link, Meter, Subscription},
    fleet::{Command as FleetCommand, Member},
    handler::{Routes, Surroundings},
    loans::Loans,
    pack::Packs,
    settings::{SinkName, WorkerConfig},
    sink::{Desk, Sink, postgres::PostgresSink, results::ResultsSink, stdout::StdoutSink},
    spans::Spans,
    status::{Status, Vitals},
    work::LanePool,
};

pub(super) async fn start(worker: &Worker, commands: mpsc::Sender<Command>) -> Result<Running, WorkerError> {
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
    let link = Link::new(broker.clone(), worker.metrics.clone());
    let metrics = worker.metrics.connection().clone();
    let publisher = Publisher::observed(
        broker.clone(),
        PublisherConfig { outlast_alarms: true, ..PublisherConfig::default() },
        metrics,
    );
    let topology = |version| Topology::new(&names, &LaneSpec::all(&config.lanes), &ladder, version);
    let version = reach(&broker, &link, &publisher, topology, config.connect_timeout).await?;
    tracing::info!(%version, "connected to RabbitMQ");
    tell_of_leftovers(config, &names, &link).await;

    let routes = Routes { lanes: config.lanes.clone(), max_payload: config.max_payload.bytes() };
    let surroundings =
        Surroundings { routes: Arc::new(routes), traces: traces.clone(), ..Surroundings::default() };
    let hurry = CancellationToken::new();
    let desk = Desk::open(sinks(worker, &publisher, &names).await?, hurry.clone());
    let clerk = Arc::new(Clerk {
        worker: Arc::clone(&worker.name),
        names: names.clone(),
        ladder,
        max_attempts: config.max_attempts,
        routes: Arc::clone(&surroundings.routes),
        replies: config.replies,
        publisher: publisher.clone(),
        desk,
        loans: Loans::default(),
        metrics: worker.metrics.clone(),
        traces: traces.clone(),
        runtime: tokio::runtime::Handle::current(),
        tracker: TaskTracker::new(),
        hurry: hurry.clone(),
        unroutable_replies: 0.into(),
    });

    let handlers = handler_runtime()?;
    let mut plans: Vec<_> = config.lanes.iter().map(|(name, lane)| (name, lane.clone(), false)).collect();
    plans.push((QUARANTINE, quarantine(), true));
    let mut pools = Vec::new();
    for (name, lane, _) in &plans {
        let metrics = worker.metrics.lane(name);
        pools.push(start_pool(name, lane, config.hard_grace, &metrics, handlers.handle().clone())?);
    }
    let (shown, stuck) = (pools.clone(), worker.metrics.tasks_stuck().clone());
    worker.metrics.before_encode(move || show_stuck(&shown, &stuck));

    let held = pools.clone();
    let enforce = move |order: &StandingOrder| held.iter().for_each(|pool| enforce_in(pool, order));
    let asked = Arc::new(Notify::new());
    let obey = obey(commands.clone(), Arc::clone(&asked));
    let (name, patience, theirs) = (Arc::clone(&worker.name), config.connect_timeout, names.clone());
    let joining = Member::join(name, theirs, link.clone(), publisher.clone(), patience, obey, enforce);
    let membership = match joining.await {
        Ok(membership) => membership,
        Err(error) => {
            // A runtime cannot be dropped where others run.
            handlers.shutdown_background();
            return Err(error.into());
        }
    };

    let packs = Arc::new(Packs::default());
    let (intake, wanted) = watch::channel(Intake::Open);
    let (denied, denials) = mpsc::channel(1);
    let mut lanes = Vec::new();
    for ((name, lane, quarantine), pool) in plans.into_iter().zip(pools) {
        let metrics = worker.metrics.lane(name);
        let lane_name: Arc<str> = name.into();
        let queues = if quarantine { vec![names.suspect()] } else { names.place(name, lane.shards).queues() };
        let queue = queues[0].clone();
        let spans = Spans { traces: traces.clone(), lane: Arc::clone(&lane_name), queue };
        let bridge = Arc::new(Bridge {
            lane: lane_name,
            default_kind: lane.default_kind.clone(),
            max_payload: config.max_payload.bytes(),
            worker: Arc::clone(&worker.name),
            surroundings: surroundings.clone(),
            registry: Arc::clone(&worker.registry),
            pool: pool.clone(),
            clerk: Arc::clone(&clerk),
            member: Arc::clone(&membership.member),
            packs: Arc::clone(&packs),
            spans: Arc::new(spans),
            pack_time: budget::pack_time(&lane),
            quarantine,
            room: Notify::new(),
        });
        let tag = format!("{}.{name}", worker.name);
        let subscriptions = Subscription::shares(queues, lane.prefetch, &tag);
        let wait = budget::longest_wait(&lane, config.hard_grace, worker.registry.deadlines());
        tokio::spawn(hand_back_in_time(pool.clone(), wait));
        let meter = Meter { tally: Arc::clone(&worker.tally), lane: metrics.clone() };
        lanes.push(start_lane(bridge, subscriptions, link.clone(), meter, wanted.clone(), denied.clone()));
        worker.metrics.before_encode(move || show(&pool, &metrics));
    }

    let member = Arc::clone(&membership.member);
    let status = Arc::new(Status::new(&lanes, packs, member, surroundings.progress, commands));
    let vitals = Vitals {
        worker: Arc::clone(&worker.name),
        incarnation: membership.member.incarnation().to_owned(),
        started: SystemTime::now(),
        every: config.common.events.heartbeat,
        intake: wanted,
        metrics: worker.metrics.clone(),
    };
    let (shown, every) = (Arc::clone(&status), vitals.every);
    let look = move || shown.beat(&vitals);
    let heart = Heart::start(publisher.clone(), names.events(), every, asked, look);
    admin.begin(status);
    Ok(Running {
        lanes,
        membership,
        heart,
        intake,
        denials,
        clerk,
        publisher,
        link,
        hurry,
        handlers,
        traces,
        admin,
    })
}

/// What the worker's spans say of it.
fn service(worker: &Worker) -> Service {
    let (instance, version) = (worker.name.to_string(), env!("CARGO_PKG_VERSION"));
    Service { name: "garenne-worker", instance, version }
}

/// What the suspect queue is called among the lanes.
const QUARANTINE: &str = "suspect";

/// Suspects run alone.
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

/// Ends what a standing order covers, as far as this worker holds it. What a pause covers is put off
/// when its turn comes.
fn enforce_in(pool: &LanePool, order: &StandingOrder) {
    match order {
        StandingOrder::Task { task, .. } => drop(pool.stop(&task.as_str().into())),
        StandingOrder::Group { group, .. } => drop(pool.group(group.as_str()).stop()),
        StandingOrder::Pause { .. } | StandingOrder::Resume { .. } => {}
    }
}

/// Connects, and makes sure that what this worker needs is there. A broker that goes away in the middle of
/// that is waited for as one that was away before, until the budget is spent.
async fn reach(
    broker: &Broker,
    link: &Link,
    publisher: &Publisher,
    topology: impl Fn(BrokerVersion) -> Topology,
    budget: Duration,
) -> Result<BrokerVersion, WorkerError> {
    let until = Instant::now() + budget;
    let mut backoff = Backoff::default();
    link.connect_within(budget).await?;
    loop {
        let attempt = async {
            let version = broker.version().await?;
            let connection = link.connection().await?;
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
        tokio::time::sleep(wait).await;
    }
}

/// Says where a lane has more queues than these settings know: what is in them is for others to do.
async fn tell_of_leftovers(config: &WorkerConfig, names: &Names, link: &Link) {
    for (lane, Lane { shards, .. }) in config.lanes.iter() {
        let next = names.shard(lane, *shards);
        if let Some(ready) = link.ready(&next).await {
            let problem = "there are more queues than shards, and this worker leaves them alone: \
                           give it the lane's number of shards, or delete them once they are empty";
            tracing::warn!(lane, shards, queue = next, ready, problem);
        }
    }
}

async fn sinks(
    worker: &Worker,
    publisher: &Publisher,
    names: &Names,
) -> Result<Vec<Arc<dyn Sink>>, WorkerError> {
    let config = &worker.config;
    let mut sinks = worker.sinks.clone();
    for name in &config.sinks {
        sinks.push(match name {
            SinkName::Stdout => StdoutSink::new(),
            SinkName::Results => ResultsSink::new(publisher.clone(), names.results()),
            SinkName::Postgres => {
                let database = config.database().expect("validated with the settings")?;
                let rules = Arc::clone(&worker.rules);
                let (prefix, patience) = (&config.common.prefix, config.connect_timeout);
                PostgresSink::connect(database, prefix, config.on_conflict, rules, patience).await?
            }
        });
    }
    Ok(sinks)
}

/// Handlers run on threads of their own, so that nothing they do holds up heartbeats and acks.
fn handler_runtime() -> Result<Runtime, WorkerError> {
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("handler")
        .enable_all()
        .build()
        .map_err(WorkerError::Threads)
}
