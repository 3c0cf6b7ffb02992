//! Copies into the quarantine.
//!
//! Each copy waits for a second in the quarantine's delay queue first. A copy that ran at once could crash
//! this worker before the original is acked, and the original would come back as a second copy.

use std::{sync::Arc, time::SystemTime};

use garenne_amqp::Target;
use garenne_common::shutdown::Settlement;
use garenne_protocol::task::{Copied, WorkerIncarnation, header};

use super::{InFlight, Settler};

impl Settler {
    /// Moves a task to the quarantine, where it runs alone. The copy records the lane that it came from.
    pub(crate) fn quarantine(self: &Arc<Self>, task: InFlight) {
        let (id, kind, trace_id) = (&task.envelope.id, &task.envelope.kind, task.envelope.trace_id());
        let returns = task.envelope.delivery_count;
        tracing::warn!(task = %id, %kind, trace_id, returns, "task moved to the quarantine");
        let lane = self.retry_lane(&task).unwrap_or_else(|| Arc::clone(&task.lane));
        let copied = Copied::of(&task.delivery.properties, &task.envelope, SystemTime::now())
            .unmarked()
            .with(header::LANE, header::long(&lane));
        let target = Target::queue(self.names.quarantine_retry());
        self.publish_copy(task.lane, task.delivery, copied, target, Settlement::Quarantined);
    }

    /// Returns a task to the quarantine after a run there that crashed its worker.
    ///
    /// `runs` is the number of such runs including this one, `crashed` the worker of the last one.
    pub(crate) fn quarantine_after_crash(
        self: &Arc<Self>,
        task: InFlight,
        runs: u32,
        crashed: &WorkerIncarnation,
    ) {
        let (id, kind, trace_id) = (&task.envelope.id, &task.envelope.kind, task.envelope.trace_id());
        tracing::warn!(task = %id, %kind, trace_id, runs, worker = %crashed, "quarantined task crashed its worker");
        let copied = Copied::of(&task.delivery.properties, &task.envelope, SystemTime::now());
        self.return_to_quarantine(task, copied.crashed(runs, crashed), Settlement::Quarantined);
    }

    /// Returns a task to the quarantine because this worker has no handler for it, so that another worker gets
    /// it. `since` is when it began to wait for a handler, in milliseconds since 1970.
    pub(crate) fn pass_to_other_worker(self: &Arc<Self>, task: InFlight, since: i64) {
        let copied = Copied::of(&task.delivery.properties, &task.envelope, SystemTime::now());
        self.return_to_quarantine(task, copied.handed_on(since), Settlement::Retried);
    }

    fn return_to_quarantine(self: &Arc<Self>, task: InFlight, copied: Copied, settlement: Settlement) {
        let lane = self.retry_lane(&task).unwrap_or_default();
        let target = Target::queue(self.names.quarantine_retry());
        self.publish_copy(lane, task.delivery, copied, target, settlement);
    }
}
