//! Where a task goes that goes to a lane: its queue, or what divides it among several.

use std::{sync::Arc, time::SystemTime};

use garenne_amqp::{Message, Target};
use garenne_common::{shutdown::Settlement, telemetry::traces::Span};
use garenne_protocol::{
    task::{Copied, Envelope, NewTask},
    topology::{Delay, LaneQueues},
};

use super::Settler;
use crate::{consumer::Delivery, spans::publish_span};

impl Settler {
    /// A follow-up, straight to the queue of the lane that takes it, or what divides its tasks among several:
    /// there, unlike at the tasks' exchange, a missing lane is told of.
    pub(super) fn message(&self, task: NewTask, now: SystemTime) -> Option<(Message, Option<Span>)> {
        let place = self.place(self.routes.lanes.taking(task.kind.as_str())?);
        let target = Target::lane(place);
        let mut task = if place.is_sharded() { task.keyed() } else { task };
        let span = publish_span(&self.traces, &mut task, &target.routing_key);
        let properties = task.properties(now);
        Some((Message { target, properties, body: task.body.into() }, span))
    }

    fn place<'a>(&'a self, lane: &'a str) -> LaneQueues<'a> {
        LaneQueues::new(&self.names, lane, self.routes.lanes.shards(lane))
    }

    /// To a rung of a lane's ladder; where that leads to several queues the copy needs a key.
    pub(super) fn to_rung(
        self: &Arc<Self>,
        lane: &str,
        rung: Delay,
        delivery: Delivery,
        envelope: &Envelope,
        copied: Copied,
    ) {
        let place = self.place(lane);
        let copied = if place.is_sharded() { copied.keyed(envelope.id.as_str()) } else { copied };
        self.copy(lane, delivery, copied, Target::queue(place.rung(rung)), Settlement::Retried);
    }
}
