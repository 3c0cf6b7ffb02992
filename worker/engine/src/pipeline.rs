//! The pipeline of a lane: takes deliveries from the consumer to the settlement.
//!
//! [`LanePipeline::process`] receives deliveries from `consumer`. Each passes these steps:
//!
//! 1. [`admit`](LanePipeline::admit) decodes the delivery and checks whether its task may run now. If not, the
//!    delivery is passed to `settlement`: it is deferred, dead-lettered, quarantined or acked.
//! 2. [`prepare`](LanePipeline::prepare) splits an admitted task into its [`Execution`], which the pool runs, and
//!    its [`ExecutionCompletion`], which holds the delivery.
//! 3. [`dispatch`](LanePipeline::dispatch) submits both to the lane's pool.
//! 4. The pool executes the task: `Execution::run` calls `Attempt::execute`.
//! 5. The pool calls the completion with the task's ending, and the completion calls `Settler::settle`.
//!
//! A delivery that contains a batch passes the same steps, and each of its records is settled by itself. Tasks in
//! the quarantine wait in [`run_alone`](LanePipeline::run_alone) between steps 1 and 2.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_pool::{Pool, Spec, panic_message};
use tokio::sync::{Notify, Semaphore};

use crate::{
    batch::RunningBatches, consumer::Delivery, execution::Execution, fleet::Member, handler::WorkerContext,
    registry::Registry, settlement::Settler, spans::Spans,
};

mod admit;
mod admitted;
mod batch;
mod completion;
mod dispatch;
mod quarantine;

use admitted::Admitted;
use completion::ExecutionCompletion;
use quarantine::QuarantineRun;

/// The pool of a lane.
pub(crate) type LanePool = Pool<Execution, ExecutionCompletion>;

/// A task that is ready for the pool.
type Ready = (Spec, Execution, ExecutionCompletion);

/// The pipeline of one lane, or of the quarantine.
pub(crate) struct LanePipeline {
    pub(crate) lane: Arc<str>,
    /// The kind of messages that name none.
    pub(crate) default_kind: Option<String>,
    /// The maximum size of a message's body, in bytes.
    pub(crate) max_payload: usize,
    /// The name of this worker.
    pub(crate) worker: Arc<str>,
    pub(crate) worker_context: WorkerContext,
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
    /// Notified whenever a task of the pool has ended.
    pub(crate) pool_space: Notify,
}

impl LanePipeline {
    /// Processes deliveries until each is in the pool or on its way to its settlement. Waits while the pool is
    /// full, which only happens if it still holds tasks of a dead channel.
    ///
    /// # Errors
    /// The message of the last panic during an admission. The delivery concerned is handed back, and the others
    /// are processed.
    pub(crate) async fn process(self: &Arc<Self>, deliveries: Vec<Delivery>) -> Result<(), String> {
        let now = SystemTime::now();
        let mut ready = VecDeque::with_capacity(deliveries.len());
        let mut result = Ok(());
        for delivery in deliveries {
            match catch_unwind(AssertUnwindSafe(|| self.admit(delivery, now))) {
                Ok(admitted) => ready.extend(admitted),
                Err(panic) => result = Err(panic_message(panic)),
            }
        }
        self.dispatch(ready).await;
        result
    }
}
