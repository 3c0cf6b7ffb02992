//! Replies: to whom, when, and what they say.

use garenne_protocol::{
    amqp::{BasicProperties, FieldTable},
    task::header::long,
};

use super::{
    copies::{TestEnv, env},
    *,
};
use crate::reply_queues::REPLY_TO;

/// As RabbitMQ 4.0 made it.
const DIRECT: &str =
    "amq.rabbitmq.reply-to.g1h2AA5yZXBseUA4OTY1ODA5OQAAAusAAAAAawsShg==.rHhIvgoAuO0/oQjhkuteYQ==";

#[tokio::test]
async fn a_reply_follows_the_ack_and_is_counted_if_its_queue_does_not_exist() {
    let mut env = env().await;
    env.envelope(|task| task.reply_to = Some("answers".into()));
    env.test.done();
    let reply = env.broker.next().await;
    assert_eq!(env.test.generation.requested_settlements(), [(1, Settlement::Acked)]);
    assert_eq!((reply.exchange.as_str(), reply.key.as_str()), ("", "answers"));
    let correlation = reply.properties.correlation_id().as_ref().unwrap().as_str();
    assert_eq!(correlation, env.test.envelope.id.as_str());
    reply.return_unroutable();
    reply.ack();
    assert_eq!(env.settlement().await, Settlement::Acked);
    let metrics = env.test.metrics.registry().gather();
    let metrics = prometheus::TextEncoder::new().encode_to_string(&metrics).unwrap();
    assert!(metrics.contains("garenne_published_total{result=\"returned\"} 1\n"), "{metrics}");
}

/// Otherwise a publisher could let the worker write to queues that he may not write to.
#[tokio::test]
async fn a_reply_to_another_queue_is_counted_and_the_task_is_acked_without_it() {
    let mut env = env().await;
    env.envelope(|task| task.reply_to = Some("garenne.directives".into()));
    env.test.done();
    assert_eq!(env.settlement().await, Settlement::Acked);
    assert_eq!(env.broker.connections(), 0);
    assert_eq!(env.test.metrics.headers_ignored(REPLY_TO).get(), 1);
}

#[tokio::test]
async fn without_replies_a_task_with_a_reply_address_is_acked_immediately() {
    let mut env = env().await;
    Arc::get_mut(&mut env.test.settler).unwrap().replies = None;
    env.envelope(|task| task.reply_to = Some("answers".into()));
    env.test.done();
    assert_eq!(env.test.generation.requested_settlements(), [(1, Settlement::Acked)]);
    assert_eq!((env.settlement().await, env.broker.connections()), (Settlement::Acked, 0));
}

/// A delivery that asks for a reply in a queue.
fn asking(env: &TestEnv, queue: &str) -> Delivery {
    let mut delivery = env.delivery();
    let headers = FieldTable::from(std::collections::BTreeMap::from([("mine".into(), long("kept"))]));
    delivery.head_mut().properties = BasicProperties::default()
        .with_reply_to(queue.into())
        .with_correlation_id("c".into())
        .with_headers(headers);
    delivery
}

#[tokio::test]
async fn a_dead_letter_is_answered_after_it_is_confirmed_and_a_retry_is_not() {
    let mut env = env().await;
    let retry = Outcome::Retry { error: "io".into(), after: None };
    env.test.settle_delivery(asking(&env, DIRECT), retry);
    env.copy().await.ack();
    assert_eq!(env.settlement().await, Settlement::Retried, "and nothing else is published");

    let mut env = super::copies::env().await;
    let dead = Outcome::Dead { reason: DeadReason::Rejected, error: "no such\ndevice".into() };
    env.test.settle_delivery(asking(&env, DIRECT), dead);
    env.copy().await.ack();
    let reply = env.broker.next().await;
    assert_eq!(env.test.generation.requested_settlements(), [(1, Settlement::Dead)]);
    assert_eq!((reply.exchange.as_str(), reply.key.as_str()), ("", DIRECT));
    assert_eq!(reply.properties.correlation_id().as_ref().unwrap().as_str(), "c");
    let body: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
    let expected = serde_json::json!({
        "task_id": env.test.envelope.id.as_str(),
        "kind": "any.thing",
        "attempt": 0,
        "worker": "test",
        "dead": {"reason": "rejected", "error": "no such device"},
    });
    assert_eq!(body, expected);
    reply.ack();
    assert_eq!(env.settlement().await, Settlement::Dead);
}

/// A right that is missing costs a connection for each refusal.
#[tokio::test]
async fn after_a_refusal_of_the_broker_tasks_are_settled_without_replies() {
    let mut env = env().await;
    env.envelope(|task| task.reply_to = Some(DIRECT.into()));
    env.test.done();
    let refusal = "ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' refused for user 'w'";
    env.broker.next().await.close_channel(403, refusal);
    while !env.test.settler.replies.as_ref().unwrap().is_denied() {
        tokio::task::yield_now().await;
    }
    env.test.done();
    assert_eq!(env.test.generation.requested_settlements(), [(1, Settlement::Acked), (1, Settlement::Acked)]);
    env.test.settler.idle().await;
    assert!(!env.broker.has_more());
    assert_eq!((env.broker.connections(), env.test.metrics.headers_ignored(REPLY_TO).get()), (1, 1));
}
