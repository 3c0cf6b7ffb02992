//! Begins to consume a lane.

use std::sync::Arc;

use futures_util::FutureExt;
use garenne_common::supervise;
use garenne_protocol::topology::LaneQueues;
use tokio::sync::{Notify, Semaphore, watch};

use super::{
    Worker,
    catch_all::stand_by,
    consumers::Consumers,
    lane::{Lane, requeue_overdue_tasks},
    lane_pause::follow_pauses,
    lane_readiness::{follow_readiness, readiness_of},
};
use crate::{
    batch::RunningBatches,
    budget,
    consumer::{ConsumeBroker, Intake, LaneIntake, LaneQuiet, SettlementCounters, Subscription},
    fleet::Member,
    handler::WorkerContext,
    pipeline::{CeleryLane, ForeignLane, KeyLimits, LaneAdapter, LanePipeline},
    settlement::Settler,
    spans::Spans,
    status::LaneStatus,
};

/// What the lanes of a worker share when they begin to consume.
pub(super) struct LaneStarter<'a, B> {
    pub(super) worker: &'a Worker,
    pub(super) context: Arc<WorkerContext>,
    pub(super) settler: Arc<Settler>,
    pub(super) member: Arc<Member>,
    pub(super) batches: Arc<RunningBatches>,
    pub(super) intake: &'a watch::Sender<Intake>,
    pub(super) consumers: Consumers<B>,
}

impl<B: ConsumeBroker> LaneStarter<'_, B> {
    /// Consumes the lane's queues, follows its pauses, and requeues tasks that wait for too long.
    pub(super) fn start(&mut self, lane: Lane) -> LaneStatus {
        let Worker { name: worker, config, registry, tally, .. } = self.worker;
        let Lane { name, config: settings, is_quarantine, metrics, pool } = &lane;
        let names = &self.settler.names;
        let mut queues = match is_quarantine {
            true => vec![names.quarantine()],
            false => LaneQueues::new(names, name, settings.shards).queues(),
        };
        let own_queues = queues.len();
        queues.extend(settings.queue.clone());
        let quiet = watch::Sender::new(LaneQuiet::default());
        let pipeline = self.pipeline(&lane, queues[0].clone(), quiet.subscribe());
        let max_wait = budget::max_wait(config, name, settings.consumer_timeout, registry.deadlines());
        supervise::restarting("sweep", (pool.clone(), max_wait), |(pool, max)| {
            requeue_overdue_tasks(pool, *max).boxed()
        })
        .spawn()
        .detach();
        if !is_quarantine {
            let readiness = readiness_of(registry, &config.lanes, name);
            follow_readiness(name, pool, readiness, self.intake.subscribe(), quiet.clone());
            follow_pauses(name, pool, &self.member, self.intake.subscribe(), quiet.clone());
        }
        if settings.catch_all && !self.member.serves_catch_all() {
            stand_by(Arc::clone(&self.member), self.intake.subscribe(), quiet.clone());
        }
        let intake = LaneIntake::new(self.intake.subscribe(), quiet.subscribe());
        let mut subscriptions =
            Subscription::for_queues(queues, settings.prefetch, &format!("{worker}.{name}"));
        subscriptions.iter_mut().skip(own_queues).for_each(|it| it.is_of_others = true);
        let queues = subscriptions.into_iter().map(|queue| {
            let counters = SettlementCounters { tally: Arc::clone(tally), lane: metrics.clone() };
            self.consumers.start(&pipeline, queue, counters, intake.clone())
        });
        LaneStatus {
            queues: queues.collect(),
            name: Arc::clone(name),
            pool: pool.clone(),
            key_limits: Arc::clone(&pipeline.key_limits),
        }
    }

    /// The pipeline of a lane. Spans name `queue` as the source of its tasks.
    fn pipeline(&self, lane: &Lane, queue: String, quiet: watch::Receiver<LaneQuiet>) -> Arc<LanePipeline> {
        let Lane { name, config: settings, is_quarantine, pool, .. } = lane;
        let max_payload = self.worker.config.max_payload.bytes();
        let adapter: Option<Box<dyn LaneAdapter>> = match settings.foreign_exchange() {
            Some(exchange) => Some(Box::new(ForeignLane::new(exchange))),
            None if settings.celery => {
                let names = &self.settler.names;
                Some(Box::new(CeleryLane::of(names, name, settings, max_payload)))
            }
            None => None,
        };
        let spans = Spans { traces: self.settler.traces.clone(), lane: Arc::clone(name), queue };
        Arc::new(LanePipeline {
            lane: Arc::clone(name),
            default_kind: settings.default_kind.clone(),
            adapter,
            max_payload,
            worker: Arc::clone(&self.context),
            registry: Arc::clone(&self.worker.registry),
            pool: pool.clone(),
            settler: Arc::clone(&self.settler),
            member: Arc::clone(&self.member),
            batches: Arc::clone(&self.batches),
            spans: Arc::new(spans),
            batch_deadline: budget::batch_time(settings),
            is_quarantine: *is_quarantine,
            quarantine_permit: Arc::new(Semaphore::new(1)),
            key_limits: KeyLimits::new(settings, pool.clone()),
            quiet,
            pool_space: Notify::new(),
            admission_panics: Default::default(),
        })
    }
}
