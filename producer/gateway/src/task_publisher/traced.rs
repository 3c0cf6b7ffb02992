//! Adds a producer span to each publish; the consumer spans of its tasks are its children.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use garenne_amqp::PublishError;
use garenne_common::telemetry::{Traces, traces::SpanKind};
use garenne_protocol::{task::NewTask, topology::Names};

use super::TaskPublisher;

/// Makes one span of each call, which covers all its tasks. The tasks keep this span as their parent if group commit
/// publishes them together with others.
pub struct TracedPublisher {
    next: Arc<dyn TaskPublisher>,
    traces: Traces,
    exchange: String,
}

impl TracedPublisher {
    /// Wraps `next`, which publishes to the task exchange of `names`. Returns `next` itself if traces are off.
    pub fn wrap(next: Arc<dyn TaskPublisher>, traces: &Traces, names: &Names) -> Arc<dyn TaskPublisher> {
        if !traces.is_on() {
            return next;
        }
        Arc::new(Self { next, traces: traces.clone(), exchange: names.tasks() })
    }
}

impl TaskPublisher for TracedPublisher {
    fn publish(&self, mut tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        // Tasks that another gateway forwards belong to several requests, and keep the spans of these.
        if tasks.windows(2).any(|pair| pair[0].trace != pair[1].trace) {
            return self.next.publish(tasks);
        }
        let parent = tasks.first().and_then(|task| task.trace.clone());
        let begun = self.traces.begin(parent.as_ref(), SpanKind::Producer, |span| {
            span.name(format!("publish {}", self.exchange));
            span.set("messaging.system", "rabbitmq");
            span.set("messaging.operation.type", "send");
            span.set("messaging.operation.name", "publish");
            span.set("messaging.destination.name", self.exchange.clone());
            if let Some(task) = tasks.first() {
                span.set("messaging.rabbitmq.destination.routing_key", task.kind.to_string());
            }
            match &tasks[..] {
                [task] => span.set("messaging.message.id", task.id.to_string()),
                _ => {
                    let count = i64::try_from(tasks.len()).unwrap_or(i64::MAX);
                    span.set("messaging.batch.message_count", count);
                }
            }
        });
        for task in &mut tasks {
            task.trace.clone_from(&begun.context);
        }
        Box::pin(async move {
            let outcome = self.next.publish(tasks).await;
            if let (Some(mut span), Err(error)) = (begun.span, &outcome) {
                span.failed(error.to_string());
            }
            outcome
        })
    }
}

#[cfg(test)]
mod tests {
    use garenne_common::config::Otlp;
    use garenne_protocol::task::{ContentType, Kind, TraceContext};

    use super::*;
    use crate::tests::memory_publisher::MemoryPublisher;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn task(parent: Option<&str>) -> NewTask {
        let kind = Kind::parse("reading.process").unwrap();
        let trace = parent.and_then(|parent| TraceContext::parse(parent, None));
        NewTask { trace, ..NewTask::new(kind, ContentType::Json, b"{}".to_vec()) }
    }

    fn traced(traces: &Traces) -> (Arc<MemoryPublisher>, Arc<dyn TaskPublisher>) {
        let memory = MemoryPublisher::new();
        let traced = TracedPublisher::wrap(Arc::clone(&memory) as _, traces, &Names::new("garenne"));
        (memory, traced)
    }

    #[tokio::test]
    async fn tasks_carry_the_span_of_their_publish() {
        let (traces, recorder) = Traces::recorded();
        let (memory, publisher) = traced(&traces);
        publisher.publish(vec![task(Some(PARENT)), task(Some(PARENT))]).await.unwrap();
        let span = recorder.only("publish garenne.tasks");
        assert_eq!((span.kind, span.parent_id.as_str()), (SpanKind::Producer, &PARENT[36..52]));
        let attribute = |name: &str| span.attributes[name].as_str();
        assert_eq!(
            (attribute("messaging.system"), attribute("messaging.batch.message_count")),
            ("rabbitmq", "2")
        );
        assert_eq!(attribute("messaging.destination.name"), "garenne.tasks");
        for task in memory.tasks() {
            let trace = task.trace.unwrap();
            assert_eq!((trace.trace_id(), trace.span_id()), (&PARENT[3..35], span.span_id.as_str()));
        }
    }

    #[tokio::test]
    async fn tasks_of_several_requests_keep_their_own_traces() {
        let (traces, recorder) = Traces::recorded();
        let (memory, publisher) = traced(&traces);
        let other = PARENT.replace("0af7", "ffff");
        publisher.publish(vec![task(Some(PARENT)), task(Some(&other)), task(None)]).await.unwrap();
        assert!(recorder.spans().is_empty());
        let kept: Vec<_> =
            memory.tasks().iter().map(|it| it.trace.as_ref().map(|t| t.parent().to_owned())).collect();
        assert_eq!(kept, [Some(PARENT.to_owned()), Some(other), None]);
    }

    #[tokio::test]
    async fn a_publish_without_a_parent_starts_a_trace_and_a_failure_is_recorded() {
        let (traces, recorder) = Traces::recorded();
        let (memory, publisher) = traced(&traces);
        memory.fail(Some(PublishError::Blocked));
        publisher.publish(vec![task(None)]).await.unwrap_err();
        let span = recorder.only("publish garenne.tasks");
        assert_eq!(span.parent_id, "0000000000000000");
        assert_eq!(span.error, Some(PublishError::Blocked.to_string()));
    }

    #[tokio::test]
    async fn an_unsampled_trace_is_passed_on_unsampled() {
        let (traces, recorder) = Traces::recorded_as(&Otlp { ratio: 0.0, ..Otlp::default() });
        let (memory, publisher) = traced(&traces);
        publisher.publish(vec![task(None)]).await.unwrap();
        let trace = memory.tasks().remove(0).trace.unwrap();
        assert!(!trace.is_sampled() && recorder.spans().is_empty());
    }
}
