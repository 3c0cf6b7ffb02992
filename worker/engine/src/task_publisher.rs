//! Publishes tasks to the queues of their lanes.

use std::{sync::Arc, time::SystemTime};

use garenne_amqp::{Message, PublishError, Publisher, Target};
use garenne_common::clock;
use garenne_common::telemetry::{Traces, traces::Span};
use garenne_protocol::{
    task::NewTask,
    topology::{LaneQueues, Names},
};

use crate::{consumer::MissingQueues, handler::Routes, spans::publish_span};

/// Publishes tasks over the worker's connection, with a confirm for each. Cheap to clone.
///
/// Tasks are published directly to the queue of their lane and not to the tasks exchange: that exchange has an alternate
/// exchange, which confirms messages that no lane takes.
#[derive(Clone)]
pub struct TaskPublisher {
    pub(crate) names: Names,
    /// The lanes that tasks are published to.
    pub(crate) routes: Arc<Routes>,
    pub(crate) publisher: Publisher,
    /// Declares queues again that a task could not be routed to.
    pub(crate) missing: Arc<MissingQueues>,
    pub(crate) traces: Traces,
}

impl TaskPublisher {
    /// Whether a lane of the worker's settings takes tasks of this kind.
    pub fn has_lane_for(&self, kind: &str) -> bool {
        self.lane_for(kind).is_some()
    }

    pub(crate) fn lane_for(&self, kind: &str) -> Option<&str> {
        self.routes.lanes.taking(kind)
    }

    /// Publishes a task once. Returns after the broker has confirmed it.
    ///
    /// A slow confirm is waited for as long as the connection is open, because a task that is published again may be
    /// stored twice.
    ///
    /// # Errors
    /// The task is not known to be stored. It may be published again, with the same id. If its queue does not exist, it
    /// is declared again as far as the user's permissions allow.
    pub async fn publish(&self, task: NewTask) -> Result<(), PublishError> {
        let Some((message, span)) = self.message(task.clone(), clock::now()) else {
            let (exchange, routing_key) = (self.names.tasks(), task.kind.to_string());
            return Err(PublishError::Unroutable { exchange, routing_key });
        };
        let target = message.target.clone();
        let published = self.publisher.publish(message).await;
        drop(span);
        // A missing exchange is not reported as unroutable: it closes the channel, as many other errors do.
        if let Err(PublishError::Unroutable { .. } | PublishError::Denied(_)) = &published {
            self.missing.restore([&target]).await;
        }
        published
    }

    /// The message of a task, and the span that covers its publishing. [`None`] if no lane takes the kind.
    pub(crate) fn message(&self, task: NewTask, now: SystemTime) -> Option<(Message, Option<Span>)> {
        let lane = self.routes.lanes.taking(task.kind.as_str())?;
        let queues = LaneQueues::new(&self.names, lane, self.routes.lanes.shards(lane));
        let target = Target::lane(queues);
        let mut task = if queues.is_sharded() { task.keyed() } else { task };
        let span = publish_span(&self.traces, &mut task, &target.routing_key);
        let properties = task.properties(now);
        Some((Message { target, properties, body: task.body.into() }, span))
    }
}
