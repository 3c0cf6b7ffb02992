//! Publishes results to the results exchange.

use std::sync::Arc;

use futures_util::future::{BoxFuture, try_join_all};
use garenne_amqp::{Message, Publisher, Target};
use garenne_common::clock;
use garenne_protocol::task::{ContentType, Kind, NewTask, TraceContext};

use super::{FinishedTask, Sink, SinkAnswer, SinkError};
use crate::consumer::MissingQueues;

/// Publishes each result as a message, with the task's kind as the routing key.
///
/// A result counts as stored once the broker confirmed the message, whether or not a queue is bound for it.
pub(crate) struct ResultsSink {
    publisher: Publisher,
    exchange: String,
    missing: Arc<MissingQueues>,
}

impl ResultsSink {
    /// Creates a sink that publishes to `exchange`, and declares it again if it is missing. The exchange must belong
    /// to the worker's topology.
    pub(crate) fn restoring(
        publisher: Publisher,
        exchange: String,
        missing: &Arc<MissingQueues>,
    ) -> Arc<Self> {
        Arc::new(Self { publisher, exchange, missing: Arc::clone(missing) })
    }
}

/// The message of a result. Its id is new, and its correlation id is the task's correlation id, or else the task's
/// id.
pub(crate) fn message(finished: &FinishedTask, target: Target) -> Message {
    let FinishedTask { envelope, trace, .. } = finished;
    let correlation = envelope.correlation_id.as_deref().unwrap_or(envelope.id.as_str());
    message_of(envelope.kind.clone(), trace.clone(), correlation, finished.to_json(), target)
}

/// A message with this body, for who waits under this correlation id.
pub(crate) fn message_of(
    kind: Kind,
    trace: Option<TraceContext>,
    correlation: &str,
    body: Vec<u8>,
    target: Target,
) -> Message {
    let result = NewTask { trace, ..NewTask::new(kind, ContentType::Json, Vec::new()) };
    let properties = result.properties(clock::now()).with_correlation_id(correlation.into());
    Message { target, properties, body: body.into() }
}

impl Sink for ResultsSink {
    fn name(&self) -> &'static str {
        "results"
    }

    fn write<'a>(&'a self, batch: &'a [FinishedTask]) -> BoxFuture<'a, Result<Vec<SinkAnswer>, SinkError>> {
        Box::pin(async move {
            let publishing = batch.iter().map(|finished| {
                let key = finished.envelope.kind.to_string();
                self.publisher.publish(message(finished, Target::announce(self.exchange.clone(), key)))
            });
            match try_join_all(publishing).await {
                Ok(_) => Ok(vec![SinkAnswer::Stored; batch.len()]),
                Err(error) => {
                    let target = Target::announce(self.exchange.clone(), String::new());
                    self.missing.restore([&target]).await;
                    Err(SinkError { sink: "results", detail: error.to_string() })
                }
            }
        })
    }
}
