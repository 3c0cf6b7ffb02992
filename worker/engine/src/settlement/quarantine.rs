//! Copies into the quarantine.
//!
//! Each copy waits for a second in the quarantine's delay queue first. A copy that ran at once could crash
//! this worker before the original is acked, and the original would come back as a second copy.

use std::sync::Arc;

use garenne_amqp::Target;
use garenne_common::shutdown::Settlement;
use garenne_protocol::task::{Copied, WorkerIncarnation, header};

use super::{InFlight, Settler, copies::copy_of};

impl Settler {
    /// Moves a task to the quarantine, where it runs alone. The copy records the lane that it came from.
    pub(crate) fn quarantine(self: &Arc<Self>, task: InFlight) {
        let (id, kind, trace_id) = (&task.envelope.id, &task.envelope.kind, task.envelope.trace_id());
        let returns = task.envelope.delivery_count;
        tracing::warn!(task = %id, %kind, trace_id, returns, "task moved to the quarantine");
        let copied = copy_of(&task).unmarked().with(header::LANE, header::long(&self.lane_of(&task)));
        self.publish_to_quarantine(task, copied, Settlement::Quarantined);
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
        let copied = copy_of(&task).crashed(runs, crashed);
        self.publish_to_quarantine(task, copied, Settlement::Quarantined);
    }

    /// Returns a task to the quarantine because this worker has no handler for it, so that another worker gets
    /// it. `since` is when it began to wait for a handler, in milliseconds since 1970.
    pub(crate) fn pass_to_other_worker(self: &Arc<Self>, task: InFlight, since: i64) {
        let copied = copy_of(&task).handed_on(since);
        self.publish_to_quarantine(task, copied, Settlement::Retried);
    }

    fn publish_to_quarantine(self: &Arc<Self>, task: InFlight, copied: Copied, settlement: Settlement) {
        let lane = self.lane_of(&task);
        let target = Target::queue(self.names.quarantine_retry());
        self.publish_copy(lane, task.delivery, copied, target, settlement);
    }
}
