//! The pipeline of a lane: takes deliveries from the consumer to their settlement.
//!
//! [`LanePipeline::process`] receives deliveries from `consumer`. The life of each reads from top to bottom in `life.rs`;
//! the other modules are its steps.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use garenne_common::{clock, supervise::catch};
use garenne_pool::{Pool, Spec};
use garenne_protocol::task::DeadReason;
use tokio::sync::{Notify, Semaphore, watch};

use crate::{
    batch::RunningBatches,
    consumer::{Delivery, LaneQuiet},
    execution::Execution,
    fleet::Member,
    handler::WorkerContext,
    registry::Registry,
    settlement::Settler,
    spans::Spans,
};

mod adapter;
mod admission_panics;
mod celery;
mod checks;
mod dispatched;
mod foreign;
mod key_limits;
mod life;
mod quarantine;
mod unhandled;

pub(crate) use adapter::LaneAdapter;
use admission_panics::{AdmissionPanics, MAX_PANICS};
pub(crate) use celery::CeleryLane;
use dispatched::Dispatched;
pub(crate) use foreign::ForeignLane;
pub(crate) use key_limits::KeyLimits;
use quarantine::QuarantineRun;

pub(crate) type LanePool = Pool<Execution, Dispatched>;

/// A task that is ready for the pool.
type Ready = (Spec, Execution, Dispatched);

/// The pipeline of one lane, or of the quarantine.
pub(crate) struct LanePipeline {
    pub(crate) lane: Arc<str>,
    /// The kind of messages that name none.
    pub(crate) default_kind: Option<String>,
    /// If the lane receives messages of clients that do not know Garenne.
    pub(crate) adapter: Option<Box<dyn LaneAdapter>>,
    /// The maximum size of a message's body, in bytes.
    pub(crate) max_payload: usize,
    pub(crate) worker: Arc<WorkerContext>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) pool: LanePool,
    pub(crate) settler: Arc<Settler>,
    pub(crate) member: Arc<Member>,
    /// The batches of all lanes of this worker.
    pub(crate) batches: Arc<RunningBatches>,
    pub(crate) spans: Arc<Spans>,
    /// How long the records of a batch may run altogether.
    pub(crate) batch_deadline: Duration,
    /// Whether this is the quarantine. There, one task runs at a time, after its start is recorded.
    pub(crate) is_quarantine: bool,
    /// The permit for the one run at a time in the quarantine.
    pub(crate) quarantine_permit: Arc<Semaphore>,
    pub(crate) key_limits: Arc<KeyLimits>,
    /// Why the lane is not consumed.
    pub(crate) quiet: watch::Receiver<LaneQuiet>,
    /// Notified whenever a task of the pool has ended.
    pub(crate) pool_space: Notify,
    pub(crate) admission_panics: AdmissionPanics,
}

impl LanePipeline {
    /// Processes deliveries until each is in the pool or on its way to its settlement. Waits while the pool is full,
    /// which only happens if it still holds tasks of a dead channel. A panic during an admission hands its delivery
    /// back; the others are processed, and the error is the message of the last one.
    pub(crate) async fn process(self: &Arc<Self>, deliveries: Vec<Delivery>) -> Result<(), String> {
        let now = clock::now();
        let mut ready = VecDeque::with_capacity(deliveries.len());
        let mut result = Ok(());
        for delivery in deliveries {
            match self.admit_caught(delivery, |delivery| self.admit(delivery, now)) {
                Ok(admitted) => ready.extend(admitted),
                Err(panic) => result = Err(panic),
            }
        }
        self.dispatch(ready).await;
        result
    }

    /// Admits a delivery. After too many panics over its message, it becomes a dead letter instead.
    fn admit_caught(
        &self,
        delivery: Delivery,
        admit: impl Fn(Delivery) -> Option<Ready>,
    ) -> Result<Option<Ready>, String> {
        let (panics, fingerprint) = (&self.admission_panics, delivery.fingerprint());
        let admitted = catch(|| {
            let Some(panic) = fingerprint.and_then(|message| panics.take_if_too_many(message)) else {
                return admit(delivery);
            };
            let error = format!("the worker panicked {MAX_PANICS} times over its redeliveries: {panic}");
            let delivery = self.without_untrusted_headers(delivery);
            let (settler, lane) = (Arc::clone(&self.settler), Arc::clone(&self.lane));
            self.settler.in_background("admission", async move {
                let reason = DeadReason::AttemptsExhausted;
                settler.dead_letter_unread(lane, delivery, reason, error).await;
            });
            None
        });
        match (fingerprint, &admitted) {
            (Some(message), Ok(Some(_))) => panics.forget(message),
            (Some(message), Err(panic)) => panics.record(message, panic),
            // Deliveries that were not settled meanwhile continue in the background, where they may panic.
            (_, Ok(None)) | (None, _) => {}
        }
        admitted
    }
}

#[cfg(test)]
pub(crate) use quarantine::tests::{TestEnv, lane_env, long_kind};
#[cfg(test)]
mod tests;
