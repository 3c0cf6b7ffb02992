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
fn an_attempt_is_a_span_from_its_start_to_its_settlement() {
    let (spans, recorder) = spans(Traces::recorded());
    let envelope = Arc::new(envelope(Some(PARENT)));
    let span = spans.attempt(&envelope);
    assert_eq!(span.context(&envelope), envelope.trace, "it has not begun");
    span.start();
    let context = span.context(&envelope).unwrap();
    span.set_outcome(TaskOutcome::Success);
    span.record_sink_write("postgres", 7, SystemTime::now(), &Accepted::Stored);
    span.end(Settlement::Acked, None);
    span.end(Settlement::Requeued, None);
    let (process, write) = (recorder.only("process garenne.tasks.fast"), recorder.only("write postgres"));
    assert_eq!((process.trace_id.as_str(), process.parent_id.as_str()), (&PARENT[3..35], &PARENT[36..52]));
    assert_eq!((process.span_id.as_str(), process.kind), (context.span_id(), SpanKind::Consumer));
    let said = |name: &str| process.attributes[name].as_str();
    assert_eq!(
        (said("messaging.message.id"), said("garenne.kind"), said("garenne.attempt")),
        ("t", "test.kind", "3")
    );
    assert_eq!(
        (said("garenne.lane"), said("garenne.outcome"), said("garenne.settlement")),
        ("fast", "success", "acked")
    );
    assert_eq!(
        (said("messaging.system"), said("messaging.destination.name")),
        ("rabbitmq", "garenne.tasks.fast")
    );
    assert_eq!((write.parent_id, write.kind), (process.span_id, SpanKind::Client));
    assert_eq!((write.attributes["garenne.batch"].as_str(), write.error), ("7", None));
}

#[test]
fn what_had_no_attempt_has_a_span_only_where_that_is_its_end() {
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
    let given = task.trace.clone().unwrap();
    assert_eq!(recorder.only("receive garenne.tasks.fast").span_id, given.span_id());
    spans.ensure_trace(&mut task);
    assert_eq!(task.trace, Some(given));
}

#[test]
fn nothing_is_made_where_nobody_keeps_it() {
    let (off, _) = spans((Traces::default(), Recorder::default()));
    let mut task = envelope(None);
    off.ensure_trace(&mut task);
    assert_eq!(task.trace, None);
    assert!(!off.attempt(&Arc::new(envelope(Some(PARENT)))).is_kept());

    let (rarely, recorder) = spans(Traces::recorded_as(&Otlp { ratio: 0.0, ..Otlp::default() }));
    rarely.ensure_trace(&mut task);
    let task = Arc::new(task);
    assert_eq!(task.trace.as_ref().map(TraceContext::is_sampled), Some(false));
    let span = rarely.attempt(&task);
    span.start();
    assert!(!span.is_kept());
    assert_eq!(span.context(&task), task.trace, "whoever is next is told not to keep it either");
    span.end(Settlement::Acked, None);
    assert!(recorder.spans().is_empty());
}

#[test]
fn a_follow_up_goes_on_under_the_span_that_sends_it() {
    let (spans, recorder) = spans(Traces::recorded());
    let mut task = NewTask::new(Kind::parse("test.next").unwrap(), ContentType::Json, b"{}".to_vec());
    task.id = TaskId::parse("next").unwrap();
    task.trace = TraceContext::parse(PARENT, None);
    drop(publish_span(&spans.traces, &mut task, "garenne.tasks.slow"));
    let span = recorder.only("publish garenne.tasks.slow");
    assert_eq!((span.parent_id.as_str(), span.kind), (&PARENT[36..52], SpanKind::Producer));
    assert_eq!(task.trace.unwrap().span_id(), span.span_id);
}
