//! After a success: follow-ups of the handler. Tasks of the sinks' background work.

use garenne_amqp::PublishError;
use garenne_common::config::Lane;
use garenne_protocol::task::{Kind, TaskId, TraceContext, header};

use super::{
    copies::{FRAME_MAX, TestEnv, env, env_with},
    *,
};
use crate::{handler::WhenDead, spans::Spans};

/// A success whose handler requested follow-ups of these kinds.
fn done_with(env: &TestEnv, kinds: &[&str]) -> Outcome {
    let mut output = Output::json(&serde_json::json!({})).unwrap();
    let task = |kind: &&str| {
        let id = TaskId::parse(&format!("after-{kind}")).unwrap();
        NewTask::following(&env.test.envelope, id, Kind::parse(kind).unwrap(), b"{}".to_vec())
    };
    output.follow_ups = kinds.iter().map(task).collect();
    Outcome::Done { output, started_at: SystemTime::UNIX_EPOCH, took: Duration::ZERO }
}

#[tokio::test]
async fn follow_ups_are_confirmed_before_their_parent_is_acked() {
    let mut env = env().await;
    let trace = TraceContext::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None);
    env.envelope(|task| task.trace = trace);
    env.test.settle(done_with(&env, &["bench.noop", "alert.send"]));
    let (first, second) = (env.copy().await, env.copy().await);
    let mut keys = [first.key.as_str(), second.key.as_str()];
    keys.sort_unstable();
    assert_eq!(keys, ["garenne.tasks.fast", "garenne.tasks.slow"]);
    assert_eq!(first.text(header::PARENT), Some(env.test.envelope.id.to_string()));
    assert!(first.text(header::TRACEPARENT).unwrap().contains("0af7651916cd43dd8448eb211c80319c"));
    first.ack();
    // Only the refused one is published again.
    second.nack();
    let again = env.copy().await;
    assert_eq!(again.key, second.key);
    again.ack();
    assert_eq!(env.settlement().await, Settlement::Acked);
}

/// A success whose handler refused a part and requested follow-ups of these kinds.
fn done_but_for_a_part(env: &TestEnv, kinds: &[&str]) -> Outcome {
    let Outcome::Done { mut output, started_at, took } = done_with(env, kinds) else { panic!() };
    output.refused = Some(RefusedPart {
        reason: DeadReason::Unmapped,
        error: "record 1: b: not a finite number".to_owned(),
        codes: vec!["not-finite"],
        payload: b"{\"b\":NaN}".to_vec(),
        content_type: Some(ContentType::SenmlJson),
    });
    Outcome::Done { output, started_at, took }
}

#[tokio::test]
async fn what_a_handler_refuses_is_a_dead_letter_that_is_confirmed_before_the_ack() {
    let mut env = env().await;
    env.test.settle(done_but_for_a_part(&env, &["bench.noop"]));
    let mut copies = [env.copy().await, env.copy().await];
    copies.sort_by_key(|copy| copy.key.clone());
    let [letter, follow_up] = copies;
    assert_eq!((follow_up.key.as_str(), letter.key.as_str()), ("garenne.tasks.fast", "garenne.dead"));
    let refused = |env: &TestEnv| env.test.metrics.records_refused("amqp", "not-finite").get();
    assert_eq!((letter.text(header::REASON).as_deref(), refused(&env)), (Some("unmapped"), 0));
    assert_eq!(letter.text(header::ERROR).as_deref(), Some("record 1: b: not a finite number"));
    assert_eq!(letter.body, b"{\"b\":NaN}");
    let content_type = letter.properties.content_type().as_ref().map(|it| it.as_str().to_owned());
    assert_eq!(content_type.as_deref(), Some("application/senml+json"));
    // A replay under the id of the whole task would be taken for its repetition.
    let own = TaskId::derived(&env.test.envelope.id, "refused");
    assert_eq!(letter.properties.message_id().as_ref().unwrap().as_str(), own.as_str());
    follow_up.ack();
    letter.ack();
    assert_eq!(env.settlement().await, Settlement::Acked);
    assert_eq!(refused(&env), 1);
}

#[tokio::test]
async fn what_a_handler_refuses_is_a_dead_letter_also_without_follow_ups() {
    let mut env = env().await;
    env.test.settle(done_but_for_a_part(&env, &[]));
    assert_eq!(env.test.generation.requested_settlements(), [], "the dead letter is not confirmed");
    let letter = env.copy().await;
    assert_eq!((letter.key.as_str(), letter.body.as_slice()), ("garenne.dead", &b"{\"b\":NaN}"[..]));
    letter.ack();
    assert_eq!(env.settlement().await, Settlement::Acked);
}

#[tokio::test]
async fn a_dead_letter_is_followed_by_the_task_of_its_kind_which_is_sent_once() {
    for confirmed in [true, false] {
        let mut env = env().await;
        let following = |id: &TaskId, body: &[u8]| {
            let id = TaskId::derived(id, "dead");
            let kind = Kind::parse("bench.noop").unwrap();
            Some(NewTask::with_id(id, kind, ContentType::Json, body.to_vec()))
        };
        let settler = Arc::get_mut(&mut env.test.settler).unwrap();
        settler.when_dead.insert("any.thing".to_owned(), Some(WhenDead(Arc::new(following))));
        env.test.settle(Outcome::Dead { reason: DeadReason::Rejected, error: "no".into() });
        let letter = env.copy().await;
        assert_eq!(letter.key.as_str(), "garenne.dead");
        letter.ack();
        let told = env.copy().await;
        assert_eq!((told.key.as_str(), told.body.as_slice()), ("garenne.tasks.fast", &b"{}"[..]));
        if confirmed {
            told.ack();
        } else {
            told.nack();
        }
        assert_eq!(env.settlement().await, Settlement::Dead);
    }
}

/// The delivery of the panicking settlement is handed back, and others go on.
#[tokio::test]
async fn a_panic_in_a_settlement_concerns_only_its_task() {
    let mut env = env().await;
    let settler = Arc::get_mut(&mut env.test.settler).unwrap();
    settler
        .when_dead
        .insert("any.thing".to_owned(), Some(WhenDead(Arc::new(|_, _| panic!("during a settlement")))));
    env.test.settle(Outcome::Dead { reason: DeadReason::Rejected, error: "no".into() });
    env.copy().await.ack();
    assert_eq!(env.settlement().await, Settlement::Requeued);
    assert_eq!(supervise::panics_of("settlement"), 1);
    env.test.settle_delivery(Delivery::mock(&env.test.generation, 2, b"{}"), success());
    assert_eq!(env.test.generation.requested_settlements().last(), Some(&(2, Settlement::Acked)));
}

#[tokio::test]
async fn a_task_of_a_sink_is_published_to_its_lane_until_the_confirm() {
    let lanes = [("slow".to_owned(), Lane::bound_to(["alert.#"]))].into_iter().collect();
    let mut env = env_with(Vec::new(), Routes { lanes, ..Routes::default() }, FRAME_MAX).await;
    let publisher = env.test.settler.task_publisher();
    let task = |kind| NewTask::new(Kind::parse(kind).unwrap(), ContentType::Json, b"{}".to_vec());
    let (alert, unknown) = (task("alert.send"), task("no.lane"));
    let published = tokio::spawn({
        let (publisher, alert) = (publisher.clone(), alert.clone());
        async move { publisher.publish(alert).await }
    });
    let message = env.copy().await;
    assert_eq!((message.exchange.as_str(), message.key.as_str()), ("", "garenne.tasks.slow"));
    assert_eq!(message.properties.message_id().as_ref().unwrap().as_str(), alert.id.as_str());
    assert!(!published.is_finished());
    message.ack();
    published.await.unwrap().unwrap();
    let error = publisher.publish(unknown).await.unwrap_err();
    assert!(
        matches!(&error, PublishError::Unroutable { routing_key, .. } if routing_key == "no.lane"),
        "{error}"
    );
}

#[tokio::test]
async fn a_success_with_nothing_to_publish_opens_no_connection() {
    let mut env = env().await;
    env.test.done();
    assert_eq!(env.settlement().await, Settlement::Acked);
    assert_eq!(env.broker.connections(), 0);
}

#[tokio::test]
async fn the_trace_parent_of_a_follow_up_is_the_attempt_that_requested_it() {
    let mut env = env().await;
    let (traces, recorder) = Traces::recorded();
    let spans = Arc::new(Spans { traces, lane: "fast".into(), queue: "garenne.tasks.fast".into() });
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    env.envelope(|task| task.trace = TraceContext::parse(parent, None));
    let span = spans.attempt(&env.test.envelope);
    span.start();
    let end = AttemptEnd::not_started(done_with(&env, &["bench.noop"]));
    env.test.settler.settle(InFlight { span, ..env.task() }, &env.test.entry, end);
    let copy = env.copy().await;
    let trace_parent = copy.text(header::TRACEPARENT).unwrap();
    copy.ack();
    assert_eq!(env.settlement().await, Settlement::Acked);
    let attempt = recorder.only("process garenne.tasks.fast");
    assert_eq!(
        (&trace_parent[3..35], &trace_parent[36..52]),
        (attempt.trace_id.as_str(), attempt.span_id.as_str())
    );
}
