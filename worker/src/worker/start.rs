//! Bringing a worker up: ports first, then the broker, then the sinks, then the intake.

use std::sync::Arc;

use garenne_common::{
    broker::{Broker, Publisher, PublisherConfig},
    config::{Concurrency, Lane},
    pool::Pool,
    shutdown::Command,
    task::StopOrder,
    telemetry::admin,
    topology::{LaneSpec, Names, Topology},
};
use tokio::{
    runtime::{Builder, Runtime},
    sync::{mpsc, watch},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Worker, WorkerError,
    drain::Running,
    lane::{hand_back_in_time, show, start_lane, start_pool},
};
use crate::{
    bridge::{Bridge, Job},
    budget,
    clerk::Clerk,
    consumer::{Intake, Link, Meter, Subscription},
    execute::Attempt,
    fleet::Member,
    loans::Loans,
    settings::SinkName,
    sink::{Desk, Sink, postgres::PostgresSink, results::ResultsSink, stdout::StdoutSink},
    status::Status,
};

pub(super) async fn start(worker: &Worker, commands: mpsc::Sender<Command>) -> Result<Running, WorkerError> {
    let config = &worker.config;
    let ladder = config.retry.ladder()?;
    budget::check(config, worker.registry.deadlines())?;
    let admin_port = admin::bind(&config.common).await?;
    let names = Names::new(&config.common.prefix);

    let broker = Broker::new(config.common.amqp_url.expose(), &format!("garenne-worker {}", worker.name))?;
    let link = Link::new(broker.clone(), worker.metrics.clone());
    link.connect_within(config.connect_timeout).await?;
    let version = broker.version().await?;
    let metrics = worker.metrics.connection().clone();
    let publisher = Publisher::observed(broker, PublisherConfig::default(), metrics);
    let topology = Topology::new(&names, &LaneSpec::all(&config.lanes), &ladder, version);
    let connection = link.connection().await?;
    let (ensured, connected) = tokio::join!(link.ensure(&connection, topology), publisher.connect());
    ensured?;
    connected?;
    tracing::info!(%version, "connected to RabbitMQ");

    let hurry = CancellationToken::new();
    let desk = Desk::open(sinks(worker, &publisher, &names).await?, hurry.clone());
    let clerk = Arc::new(Clerk {
        worker: Arc::clone(&worker.name),
        names: names.clone(),
        ladder,
        max_attempts: config.max_attempts,
        replies: config.replies,
        publisher: publisher.clone(),
        desk,
        loans: Loans::default(),
        metrics: worker.metrics.clone(),
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

    let held = pools.clone();
    let stop = move |order: &StopOrder| held.iter().for_each(|pool| stop_in(pool, order));
    let (name, joined) = (Arc::clone(&worker.name), commands.clone());
    let membership = Member::join(name, names.clone(), link.clone(), publisher.clone(), joined, stop).await;

    let (intake, wanted) = watch::channel(Intake::Open);
    let (denied, denials) = mpsc::channel(1);
    let mut lanes = Vec::new();
    for ((name, lane, quarantine), pool) in plans.into_iter().zip(pools) {
        let metrics = worker.metrics.lane(name);
        let bridge = Arc::new(Bridge {
            lane: name.into(),
            default_kind: lane.default_kind.clone(),
            max_payload: config.max_payload.bytes(),
            worker: Arc::clone(&worker.name),
            registry: Arc::clone(&worker.registry),
            pool: pool.clone(),
            clerk: Arc::clone(&clerk),
            member: Arc::clone(&membership.member),
            quarantine,
            room: tokio::sync::Notify::new(),
        });
        let subscription = Subscription {
            queue: if quarantine { names.suspect() } else { names.lane(name) },
            prefetch: lane.prefetch,
            tag: format!("{}.{name}", worker.name),
        };
        let wait = budget::longest_wait(&lane, config.hard_grace, worker.registry.deadlines());
        tokio::spawn(hand_back_in_time(pool.clone(), wait));
        let meter = Meter { tally: Arc::clone(&worker.tally), lane: metrics.clone() };
        lanes.push(start_lane(bridge, subscription, link.clone(), meter, wanted.clone(), denied.clone()));
        worker.metrics.before_encode(move || show(&pool, &metrics));
    }

    let status = Arc::new(Status::new(&lanes, commands));
    let parts = admin::AdminParts {
        metrics: worker.metrics.clone(),
        readiness: Arc::clone(&status) as _,
        control: status,
        mode: config.shutdown_mode,
    };
    let admin_closed = CancellationToken::new();
    let admin = tokio::spawn(admin::serve(admin_port, parts, admin_closed.clone().cancelled_owned()));
    Ok(Running {
        lanes,
        membership,
        intake,
        denials,
        clerk,
        publisher,
        link,
        hurry,
        handlers,
        admin,
        admin_closed,
    })
}

/// What the suspect queue is called among the lanes.
const QUARANTINE: &str = "suspect";

/// Suspects run alone.
fn quarantine() -> Lane {
    Lane { prefetch: 1, concurrency: Concurrency { min: 1, max: 1 }, ..Lane::default() }
}

/// Ends what a stop order covers, as far as this worker holds it.
fn stop_in(pool: &Pool<Attempt, Job>, order: &StopOrder) {
    match order {
        StopOrder::Task { task, .. } => drop(pool.stop(&task.as_str().into())),
        StopOrder::Group { group, .. } => drop(pool.group(group.as_str()).stop()),
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
                let url = config.postgres_url.as_ref().expect("validated with the settings");
                PostgresSink::connect(url.expose(), &config.common.prefix, config.on_conflict).await?
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
