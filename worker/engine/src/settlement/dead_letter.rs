//! Dead letters: a copy in `garenne.dead` that names the reason, the error, the worker and the lane.

use std::{sync::Arc, time::SystemTime};

use garenne_amqp::Target;
use garenne_common::shutdown::Settlement;
use garenne_protocol::task::{Copied, DeadReason, TraceContext, header};

use super::{InFlight, Settler, copies::copy_of};
use crate::consumer::Delivery;

impl Settler {
    /// Publishes a task as a dead letter, then takes the original off its queue.
    ///
    /// A task that was never started gets a span as well, because this is where its trace ends.
    pub(crate) fn dead_letter(self: &Arc<Self>, task: InFlight, reason: DeadReason, error: String) {
        task.span.end_dead(reason, &error);
        let (id, kind) = (&task.envelope.id, &task.envelope.kind);
        tracing::warn!(task = %id, %kind, trace_id = task.envelope.trace_id(), %reason, error, "dead letter");
        self.metrics.kind(kind.as_str()).dead(reason);
        let lane = self.lane_of(&task);
        let copied = copy_of(&task).dead(reason, &error, &self.worker, &lane, SystemTime::now());
        self.publish_copy(lane, task.delivery, copied, Target::queue(self.names.dead()), Settlement::Dead);
    }

    /// Publishes a delivery without an envelope as a dead letter: it cannot be read or is too large.
    ///
    /// It counts as kind `unknown`.
    pub(crate) fn dead_letter_unread(
        self: &Arc<Self>,
        lane: Arc<str>,
        delivery: Delivery,
        reason: DeadReason,
        error: String,
    ) {
        let kind = "unknown";
        // The trace headers may be valid although the rest is not.
        let trace = header::trace(delivery.properties.headers());
        let trace_id = trace.as_ref().map(TraceContext::trace_id);
        tracing::warn!(kind, trace_id, %reason, error, "dead letter");
        self.metrics.kind(kind).dead(reason);
        let now = SystemTime::now();
        let copied = Copied::verbatim(&delivery.properties, &delivery.routing_key, now);
        let copied = copied.dead(reason, &error, &self.worker, &lane, now);
        self.publish_copy(lane, delivery, copied, Target::queue(self.names.dead()), Settlement::Dead);
    }
}
