//! What follows from a success, and when: tasks that its handler or a sink asked for, and the reply.

use garenne_protocol::task::TaskId;

use super::{
    copies::{FRAME_MAX, Scene, scene, scene_with},
    *,
};
use crate::spans::Spans;

/// Success whose handler asked for tasks of these kinds.
fn done_with(scene: &Scene, kinds: &[&str]) -> Outcome {
    let mut output = Output::json(&serde_json::json!({})).unwrap();
    let task = |kind: &&str| {
        let id = TaskId::parse(&format!("after-{kind}")).unwrap();
        NewTask::following(&scene.bench.envelope, id, Kind::parse(kind).unwrap(), b"{}".to_vec())
    };
    output.follow_ups = kinds.iter().map(task).collect();
    Outcome::Done { output, started_at: SystemTime::UNIX_EPOCH, took: Duration::ZERO }
}

#[tokio::test]
async fn follow_ups_are_confirmed_before_their_parent_is_acked() {
    let mut scene = scene().await;
    let trace = TraceContext::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None);
    scene.envelope(|task| task.trace = trace);
    scene.bench.settle(done_with(&scene, &["bench.noop", "alert.send"]));
    let (first, second) = (scene.copy().await, scene.copy().await);
    let mut keys = [first.key.as_str(), second.key.as_str()];
    keys.sort_unstable();
    assert_eq!(keys, ["garenne.tasks.fast", "garenne.tasks.slow"]);
    assert_eq!(first.text(header::PARENT), Some(scene.bench.envelope.id.to_string()));
    assert!(first.text(header::TRACEPARENT).unwrap().contains("0af7651916cd43dd8448eb211c80319c"));
    first.ack();
    // The first one is stored, this one is not: it alone is published again.
    second.nack();
    let again = scene.copy().await;
    assert_eq!(again.key, second.key);
    again.ack();
    assert_eq!(scene.settlement().await, Settlement::Acked);
}

#[tokio::test]
async fn what_a_sink_asks_for_is_started_before_the_ack() {
    let kind = Kind::parse("alert.send").unwrap();
    let start = Start { id: TaskId::parse("started").unwrap(), kind, body: b"{}".to_vec() };
    let mut scene = scene_with(says(Accepted::StoredAnd(vec![start])), Routes::default(), FRAME_MAX).await;
    scene.bench.done();
    let copy = scene.copy().await;
    assert_eq!(copy.key, "garenne.tasks.slow");
    assert_eq!(copy.properties.message_id().as_ref().unwrap().as_str(), "started");
    copy.ack();
    assert_eq!(scene.settlement().await, Settlement::Acked);
}

#[tokio::test]
async fn a_reply_follows_the_ack_and_one_that_no_queue_takes_is_counted() {
    let mut scene = scene().await;
    scene.envelope(|task| task.reply_to = Some("answers".into()));
    scene.bench.done();
    let reply = scene.broker.next().await;
    assert_eq!(scene.bench.generation.requested_settlements(), [(1, Settlement::Acked)]);
    assert_eq!((reply.exchange.as_str(), reply.key.as_str()), ("", "answers"));
    let correlation = reply.properties.correlation_id().as_ref().unwrap().as_str();
    assert_eq!(correlation, scene.bench.envelope.id.as_str());
    reply.send_back();
    assert_eq!(scene.settlement().await, Settlement::Acked);
    assert_eq!(scene.bench.settler.unroutable_replies.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn success_without_anything_to_publish_needs_no_connection() {
    let mut scene = scene().await;
    scene.bench.done();
    assert_eq!(scene.settlement().await, Settlement::Acked);
    assert_eq!(scene.broker.connections(), 0);
}

#[tokio::test]
async fn a_follow_up_belongs_to_the_attempt_that_asked_for_it() {
    let mut scene = scene().await;
    let (traces, recorder) = Traces::recorded();
    let spans = Arc::new(Spans { traces, lane: "fast".into(), queue: "garenne.tasks.fast".into() });
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    scene.envelope(|task| task.trace = TraceContext::parse(parent, None));
    let (bench, delivery) = (&scene.bench, scene.delivery());
    let span = spans.attempt(&bench.envelope);
    span.start();
    let end = AttemptEnd { outcome: done_with(&scene, &["bench.noop"]), attempt: None, took: None };
    bench.settler.settle(&bench.lane, delivery, Arc::clone(&bench.envelope), &bench.entry, end, span);
    let copy = scene.copy().await;
    let given = copy.text(header::TRACEPARENT).unwrap();
    copy.ack();
    assert_eq!(scene.settlement().await, Settlement::Acked);
    let attempt = recorder.only("process garenne.tasks.fast");
    assert_eq!((&given[3..35], &given[36..52]), (attempt.trace_id.as_str(), attempt.span_id.as_str()));
}
