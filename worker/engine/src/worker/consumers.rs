//! The consumers of a worker's queues.

use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use garenne_amqp::BrokerError;
use garenne_common::supervise::{self, TaskHandle};
use tokio::sync::{mpsc, watch};
use tokio_util::task::TaskTracker;

use crate::{
    consumer::{ConsumeBroker, LaneIntake, OnOrphan, SettlementCounters, Subscriber, Subscription},
    pipeline::LanePipeline,
    status::ConsumedQueue,
};

/// The consumers of all queues of a worker.
///
/// Each queue has its own channel and ledger, so that a missing queue or a failed channel does not affect the others.
pub(super) struct Consumers<B> {
    /// The connection of lanes with tasks.
    pub(super) connection: B,
    /// The connection of lanes with foreign messages.
    pub(super) foreign: B,
    /// Receives an error if the broker denies a queue from the start.
    pub(super) denied: mpsc::Sender<BrokerError>,
    /// The ack writers of the consumers' channels.
    pub(super) ack_writers: TaskTracker,
    /// One task per queue.
    pub(super) tasks: Vec<TaskHandle<()>>,
}

impl<B: ConsumeBroker> Consumers<B> {
    /// Starts to consume a queue into its lane's pipeline.
    pub(super) fn start(
        &mut self,
        pipeline: &Arc<LanePipeline>,
        subscription: Subscription,
        counters: SettlementCounters,
        intake: LaneIntake,
    ) -> ConsumedQueue {
        let name = subscription.queue.clone();
        let (problem, current_problem) = watch::channel(Some("consuming has not started".to_owned()));
        let failed = problem.clone();
        let on_failure = move |failure: &supervise::Failure| {
            failed.send_replace(Some(format!("the consumer failed: {failure}")));
        };
        let (settler, tally) = (Arc::clone(&pipeline.settler), Arc::clone(&counters.tally));
        let (queue, lane, until) = (name.clone(), Arc::clone(&pipeline.lane), intake.clone());
        let on_orphan: OnOrphan = Arc::new(move |orphan| {
            settler.reclaim(&lane, orphan, &queue, until.clone(), &tally);
        });
        let is_foreign = pipeline.adapter.as_ref().is_some_and(|it| it.may_close_connection());
        let pipeline = Arc::clone(pipeline);
        let must_bind = subscription.is_of_others;
        let subscriber = Subscriber {
            broker: if is_foreign { &self.foreign } else { &self.connection }.clone(),
            is_foreign,
            metrics: pipeline.settler.metrics.clone(),
            subscription,
            counters,
            intake,
            problem,
            denied: Some(self.denied.clone()),
            accept: async move |deliveries| pipeline.process(deliveries).await,
            ack_writers: self.ack_writers.clone(),
            on_orphan,
            cancellation: Weak::new(),
            must_bind,
        };
        let consumer = supervise::restarting_with("consumer", subscriber, |it| it.run().boxed(), on_failure);
        self.tasks.push(consumer.spawn());
        ConsumedQueue { name, problem: current_problem }
    }
}
