use garenne_common::{config::Otlp, telemetry::traces::Recorder};
use garenne_protocol::task::{ContentType, Kind, TaskId};

use super::*;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn spans((traces, recorder): (Traces, Recorder)) -> (Arc<Spans>, Recorder) {
    (Arc::new(Spans { traces, lane: "fast".into(), queue: "garenne.tasks.fast".into() }), recorder)
}

fn envelope(parent: Option<&str>) -> Envelope {
    let found = Envelope::clone(&crate::testing::finished("t", "{}").envelope);
    Envelope { trace: parent.and_then(|parent| TraceContext::parse(parent, None)), attempt: 2, ..found }
}

#[test]
fn an_attempt_has_a_span_from_its_start_to_its_settlement() {
    let (spans, recorder) = spans(Traces::recorded());
    let envelope = Arc::new(envelope(Some(PARENT)));
    let span = spans.attempt(&envelope);
    assert_eq!(span.context(&envelope), envelope.trace, "the span has not started");
    span.start();
    let context = span.context(&envelope).unwrap();
    span.set_outcome(TaskOutcome::Success);
    span.record_sink_write("postgres", &[("db.system.name", "postgresql")], 7, SystemTime::now(), None);
    span.end(Settlement::Acked, None);
    span.end(Settlement::Requeued, None);
    let (process, write) = (recorder.only("process garenne.tasks.fast"), recorder.only("write postgres"));
    assert_eq!((process.trace_id.as_str(), process.parent_id.as_str()), (&PARENT[3..35], &PARENT[36..52]));
    assert_eq!((process.span_id.as_str(), process.kind), (context.span_id(), SpanKind::Consumer));
    let attribute = |name: &str| process.attributes[name].as_str();
    assert_eq!(
        (attribute("messaging.message.id"), attribute("garenne.kind"), attribute("garenne.attempt")),
        ("t", "test.kind", "3")
    );
    assert_eq!(
        (attribute("garenne.lane"), attribute("garenne.outcome"), attribute("garenne.settlement")),
        ("fast", "success", "acked")
    );
    assert_eq!(
        (attribute("messaging.system"), attribute("messaging.destination.name")),
        ("rabbitmq", "garenne.tasks.fast")
    );
    assert_eq!((write.parent_id, write.kind), (process.span_id, SpanKind::Client));
    assert_eq!((write.attributes["garenne.batch"].as_str(), write.error), ("7", None));
    assert_eq!(write.attributes["db.system.name"], "postgresql");
}

#[test]
fn a_task_without_an_attempt_has_a_span_only_if_it_is_dead_lettered() {
    let (spans, recorder) = spans(Traces::recorded());
    let envelope = Arc::new(envelope(Some(PARENT)));
    spans.attempt(&envelope).end(Settlement::Requeued, None);
    assert!(recorder.spans().is_empty());
    spans.attempt(&envelope).end_dead(DeadReason::Expired, "expired before it started");
    let span = recorder.only("process garenne.tasks.fast");
    assert_eq!(
        (span.attributes["garenne.settlement"].as_str(), span.attributes["garenne.reason"].as_str()),
        ("dead", "expired")
    );
    assert_eq!(span.error.as_deref(), Some("expired before it started"));
}

#[test]
fn a_task_without_a_trace_gets_one_and_keeps_its_own() {
    let (spans, recorder) = spans(Traces::recorded());
    let mut task = envelope(None);
    spans.ensure_trace(&mut task);
    let started = task.trace.clone().unwrap();
    assert_eq!(recorder.only("receive garenne.tasks.fast").span_id, started.span_id());
    spans.ensure_trace(&mut task);
    assert_eq!(task.trace, Some(started));
}

#[test]
fn an_unsampled_trace_has_no_spans() {
    let (off, _) = spans((Traces::default(), Recorder::default()));
    let mut task = envelope(None);
    off.ensure_trace(&mut task);
    assert_eq!(task.trace, None);
    assert!(off.attempt(&Arc::new(envelope(Some(PARENT)))).0.is_none());

    let (unsampled, recorder) = spans(Traces::recorded_as(&Otlp { ratio: 0.0, ..Otlp::default() }));
    unsampled.ensure_trace(&mut task);
    let task = Arc::new(task);
    assert_eq!(task.trace.as_ref().map(TraceContext::is_sampled), Some(false));
    let span = unsampled.attempt(&task);
    span.start();
    assert!(span.0.is_none());
    assert_eq!(span.context(&task), task.trace, "the unsampled context is passed on");
    span.end(Settlement::Acked, None);
    assert!(recorder.spans().is_empty());
}

#[test]
fn the_publish_span_is_the_parent_of_a_follow_up() {
    let (spans, recorder) = spans(Traces::recorded());
    let mut task = NewTask::new(Kind::parse("test.next").unwrap(), ContentType::Json, b"{}".to_vec());
    task.id = TaskId::parse("next").unwrap();
    task.trace = TraceContext::parse(PARENT, None);
    drop(publish_span(&spans.traces, &mut task, "garenne.tasks.slow"));
    let span = recorder.only("publish garenne.tasks.slow");
    assert_eq!((span.parent_id.as_str(), span.kind), (&PARENT[36..52], SpanKind::Producer));
    assert_eq!(task.trace.unwrap().span_id(), span.span_id);
}
