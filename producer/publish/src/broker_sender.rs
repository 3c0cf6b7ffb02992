//! Sends tasks to the broker.

use std::sync::Arc;

use futures_util::future::{BoxFuture, join, join_all};
use garenne_amqp::{DeadLetters, Message, PublishError};
use garenne_common::telemetry::{
    Traces,
    traces::{Span, SpanKind},
};
use garenne_protocol::{
    task::{Kind, NewTask, UNMAPPED_TASK_KIND},
    topology::Names,
};

use crate::{connector::TopologyGate, group_commit::GroupCommit, task_sender::TaskSender};

/// The message of a task that stands for a dead letter; `None` for any other task.
pub type LetterOf = fn(&NewTask, &Names) -> Option<Message>;

/// Sends tasks to the broker: after the topology was ensured, under a span, in groups.
#[derive(Clone)]
pub struct BrokerSender {
    topology: TopologyGate,
    letters: Option<Letters>,
    traces: Traces,
    names: Names,
    groups: Arc<GroupCommit>,
}

/// Tasks that stand for dead letters go to the exchange of dead letters. So a spool can keep both.
///
/// While neither queue takes dead letters, a task that stands for one is published as a task of another kind. A bridge
/// acknowledges messages in the order in which they came, and its spool is drained in order: a letter that waits would hold
/// all readings behind it. A worker makes the task a dead letter again, and holds or puts off what it cannot publish.
#[derive(Clone)]
pub(crate) struct Letters {
    pub(crate) queue: Arc<DeadLetters>,
    pub(crate) message_of: LetterOf,
}

impl BrokerSender {
    /// Sends with `groups` to the task exchange of `names`. Each call is a span of `traces`.
    pub fn new(groups: Arc<GroupCommit>, traces: &Traces, names: &Names) -> Self {
        let (topology, traces, names) = (TopologyGate::open(), traces.clone(), names.clone());
        Self { topology, letters: None, traces, names, groups }
    }

    /// The same, which waits at `topology`, and publishes letters with `letters`.
    pub(crate) fn behind(self, topology: TopologyGate, letters: Option<Letters>) -> Self {
        Self { topology, letters, ..self }
    }

    /// The same for the drain of a service: it waits for the topology without a limit, and begins no spans, because the
    /// tasks of a batch belong to several requests and keep the spans of these.
    pub(crate) fn for_drain(&self) -> Self {
        Self { topology: self.topology.without_limit(), traces: Traces::default(), ..self.clone() }
    }

    /// Publishes a dead letter, or the task that stands for it if neither queue takes letters.
    async fn send_letter(
        &self,
        letters: &Letters,
        letter: Message,
        task: NewTask,
    ) -> Result<(), PublishError> {
        let published = letters.queue.publish_at_once(letter).await;
        if published.is_err() && letters.queue.is_closed() {
            let kind = Kind::parse(UNMAPPED_TASK_KIND).expect("a constant");
            return self.send_tasks(vec![NewTask { kind, ..task }]).await;
        }
        published
    }

    /// Sends tasks that stand for no letter.
    async fn send_tasks(&self, mut tasks: Vec<NewTask>) -> Result<(), PublishError> {
        if tasks.is_empty() {
            return Ok(());
        }
        let span = self.begin_span(&mut tasks);
        let outcome = self.groups.group(tasks).await;
        if let (Some(mut span), Err(error)) = (span, &outcome) {
            span.failed(error.to_string());
        }
        outcome
    }

    /// Begins a span that covers all tasks. They keep it as their parent if group commit publishes them together with
    /// others; the consumer spans of the tasks are its children.
    fn begin_span(&self, tasks: &mut [NewTask]) -> Option<Span> {
        // Tasks that another gateway forwards belong to several requests, and keep the spans of these.
        if !self.traces.is_on() || tasks.windows(2).any(|pair| pair[0].trace != pair[1].trace) {
            return None;
        }
        let exchange = self.names.tasks();
        let parent = tasks.first().and_then(|task| task.trace.clone());
        let begun = self.traces.begin(parent.as_ref(), SpanKind::Producer, |span| {
            span.name(format!("publish {exchange}"));
            span.set("messaging.system", "rabbitmq");
            span.set("messaging.operation.type", "send");
            span.set("messaging.operation.name", "publish");
            span.set("messaging.destination.name", exchange);
            if let Some(task) = tasks.first() {
                span.set("messaging.rabbitmq.destination.routing_key", task.kind.to_string());
            }
            match tasks {
                [task] => span.set("messaging.message.id", task.id.to_string()),
                _ => {
                    let count = i64::try_from(tasks.len()).unwrap_or(i64::MAX);
                    span.set("messaging.batch.message_count", count);
                }
            }
        });
        for task in tasks {
            task.trace.clone_from(&begun.context);
        }
        begun.span
    }
}

impl Letters {
    /// Takes the letters out of `tasks`.
    fn take(&self, tasks: &mut Vec<NewTask>, names: &Names) -> Vec<(Message, NewTask)> {
        let (mut letters, mut others) = (Vec::new(), Vec::with_capacity(tasks.len()));
        for task in tasks.drain(..) {
            match (self.message_of)(&task, names) {
                Some(letter) => letters.push((letter, task)),
                None => others.push(task),
            }
        }
        *tasks = others;
        letters
    }
}

impl TaskSender for BrokerSender {
    fn send(&self, mut tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        Box::pin(async move {
            self.topology.wait().await?;
            let Some(letters) = &self.letters else { return self.send_tasks(tasks).await };
            let taken = letters.take(&mut tasks, &self.names);
            let publishing =
                join_all(taken.into_iter().map(|(letter, task)| self.send_letter(letters, letter, task)));
            // Waits for every confirm, also after a failure.
            let (sent, published) = join(self.send_tasks(tasks), publishing).await;
            published.into_iter().fold(sent, Result::and)
        })
    }
}

#[cfg(test)]
mod tests {
    use garenne_common::config::Otlp;
    use garenne_protocol::task::{ContentType, TraceContext};

    use super::*;
    use crate::{group_commit::GroupCommitConfig, testing::MemorySender};

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn task(parent: Option<&str>) -> NewTask {
        let kind = Kind::parse("reading.process").unwrap();
        let trace = parent.and_then(|parent| TraceContext::parse(parent, None));
        NewTask { trace, ..NewTask::new(kind, ContentType::Json, b"{}".to_vec()) }
    }

    fn traced(traces: &Traces) -> (Arc<MemorySender>, BrokerSender) {
        let memory = MemorySender::new();
        let kind = Kind::parse("reading.process").unwrap();
        let groups = GroupCommit::start(memory.clone(), GroupCommitConfig::off(), kind);
        (memory, BrokerSender::new(groups, traces, &Names::new("garenne")))
    }

    #[tokio::test]
    async fn tasks_carry_the_span_of_their_publish() {
        let (traces, recorder) = Traces::recorded();
        let (memory, publisher) = traced(&traces);
        publisher.send(vec![task(Some(PARENT)), task(Some(PARENT))]).await.unwrap();
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
        publisher.send(vec![task(Some(PARENT)), task(Some(&other)), task(None)]).await.unwrap();
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
        publisher.send(vec![task(None)]).await.unwrap_err();
        let span = recorder.only("publish garenne.tasks");
        assert_eq!(span.parent_id, "0000000000000000");
        assert_eq!(span.error, Some(PublishError::Blocked.to_string()));
    }

    #[tokio::test]
    async fn an_unsampled_trace_is_passed_on_unsampled() {
        let (traces, recorder) = Traces::recorded_as(&Otlp { ratio: 0.0, ..Otlp::default() });
        let (memory, publisher) = traced(&traces);
        publisher.send(vec![task(None)]).await.unwrap();
        let trace = memory.tasks().remove(0).trace.unwrap();
        assert!(!trace.is_sampled() && recorder.spans().is_empty());
    }
}
