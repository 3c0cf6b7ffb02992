//! Lanes as destinations: which lane a task belongs to, and which queue or exchange leads there.

use std::{sync::Arc, time::SystemTime};

use garenne_amqp::{Message, Target};
use garenne_common::telemetry::traces::Span;
use garenne_protocol::{task::NewTask, topology::LaneQueues};

use super::{InFlight, Settler};
use crate::spans::publish_span;

impl Settler {
    /// The message of a follow-up, and the span that covers its publishing.
    ///
    /// Follow-ups are published directly to the lane and not to the tasks exchange: that exchange has an
    /// alternate exchange, which confirms messages that no lane takes. Returns [`None`] if no lane takes the
    /// kind; the handler's request was checked for that already.
    pub(super) fn follow_up_message(
        &self,
        task: NewTask,
        now: SystemTime,
    ) -> Option<(Message, Option<Span>)> {
        let queues = self.lane_queues(self.routes.lanes.taking(task.kind.as_str())?);
        let target = Target::lane(queues);
        let mut task = if queues.is_sharded() { task.keyed() } else { task };
        let span = publish_span(&self.traces, &mut task, &target.routing_key);
        let properties = task.properties(now);
        Some((Message { target, properties, body: task.body.into() }, span))
    }

    /// The lane whose retry ladder a task uses.
    ///
    /// A quarantined task uses the lane that it came from, as recorded in its header `garenne-lane`. Any other
    /// task uses the lane that it was delivered to. If that lane is not defined (any more), the lane that takes
    /// the task's kind is used. [`None`] if there is no such lane either.
    pub(super) fn retry_lane(&self, task: &InFlight) -> Option<Arc<str>> {
        let lanes = &self.routes.lanes;
        let is_defined = |lane: &str| lanes.defined().any(|(name, _)| name == lane);
        let recorded = task.envelope.lane.as_deref().filter(|lane| is_defined(lane)).map(Arc::from);
        let own = || is_defined(&task.lane).then(|| Arc::clone(&task.lane));
        let by_kind = || lanes.taking(task.envelope.kind.as_str()).map(Arc::from);
        recorded.or_else(own).or_else(by_kind)
    }

    /// The queues of a lane, as many as it has shards.
    pub(super) fn lane_queues<'a>(&'a self, lane: &'a str) -> LaneQueues<'a> {
        LaneQueues::new(&self.names, lane, self.routes.lanes.shards(lane))
    }
}
