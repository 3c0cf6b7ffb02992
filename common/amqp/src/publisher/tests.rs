//! The publisher against a fake broker whose answers the test sends.

use std::time::Duration;

use garenne_amqp_kit::FakeBroker;
use garenne_common::telemetry::{Metrics, metrics::Role};
use garenne_protocol::task::header::long;
use lapin::{BasicProperties, types::FieldTable};
use tokio::time::timeout;

use super::*;
use crate::{Message, Target};

mod dead_letters;

/// Longer than any step takes, also on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

fn publisher(broker: &FakeBroker, config: PublisherConfig) -> Publisher {
    Publisher::new(Broker::new(&broker.url(), "test").unwrap(), config)
}

fn message(key: &str, id: &str) -> Message {
    let properties = BasicProperties::default().with_message_id(id.into());
    Message { target: Target::exchange("e".into(), key.into()), properties, body: "{}".into() }
}

/// A message with one header value of `bytes`.
fn with_header(bytes: usize) -> Message {
    let mut headers = FieldTable::default();
    headers.insert("h".into(), long(&"x".repeat(bytes)));
    let message = message("k", "large");
    Message { properties: message.properties.with_headers(headers), ..message }
}

#[tokio::test]
async fn no_header_frame_over_the_limit_is_sent() {
    let mut broker = FakeBroker::start(8192).await;
    let publisher = publisher(&broker, PublisherConfig::default());
    // 2,048 bytes stay free for the broker. Less: the header's name, type and length, the table's length, the id,
    // and the fixed part of each header frame.
    let largest = 6144 - (2 + 1 + 4 + 4 + 6 + 22);
    let (sent, answered) = tokio::join!(publisher.publish(with_header(largest)), async {
        let published = broker.next().await;
        published.ack();
        published.header_frame()
    });
    sent.unwrap();
    assert_eq!(answered, 6144);
    let error = publisher.publish(with_header(largest + 1)).await.unwrap_err();
    assert_eq!(error.to_string(), "the message's header frame has 6145 bytes, 6144 are allowed");
    assert!(!error.in_doubt());
    let refused = publisher.announce(with_header(largest + 1)).await.unwrap_err();
    assert!(matches!(refused, PublishError::TooLarge { .. }), "{refused:?}");

    let (sent, ()) =
        tokio::join!(publisher.publish(message("k", "next")), async { broker.next().await.ack() });
    sent.unwrap();
    assert_eq!(broker.connections(), 1);
}

#[tokio::test]
async fn names_over_255_bytes_are_an_error_and_do_not_panic() {
    let mut broker = FakeBroker::start(131_072).await;
    let publisher = publisher(&broker, PublisherConfig::default());
    let long = |key: usize| Message { target: Target::queue("q".repeat(key)), ..message("k", "long") };
    let refused = publisher.publish(long(256)).await.unwrap_err();
    assert!(matches!(refused, PublishError::TooLarge { bytes: 256, limit: 255, .. }), "{refused:?}");
    let refused = publisher.announce(long(10_000)).await.unwrap_err();
    assert!(matches!(refused, PublishError::TooLarge { bytes: 10_000, limit: 255, .. }), "{refused:?}");
    let (sent, ()) = tokio::join!(publisher.publish(long(255)), async { broker.next().await.ack() });
    sent.unwrap();
}

/// lapin attaches a returned message to the next confirm, also if that is another message's.
#[tokio::test]
async fn a_return_fails_the_message_with_the_same_address_and_id() {
    let mut broker = FakeBroker::start(131_072).await;
    let publisher = publisher(&broker, PublisherConfig::default());
    let stored = publisher.send(message("stored", "same")).await.unwrap();
    let first = broker.next().await;
    let lost = publisher.send(message("lost", "same")).await.unwrap();
    let second = broker.next().await;
    second.return_unroutable();
    first.ack();
    second.ack();
    timeout(TIMEOUT, stored.confirmed()).await.unwrap().unwrap();
    let error = timeout(TIMEOUT, lost.confirmed()).await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "no queue is bound to exchange \"e\" for routing key \"lost\"");
}

#[tokio::test]
async fn an_offer_that_no_queue_takes_is_no_problem_of_its_exchange() {
    let mut broker = FakeBroker::start(131_072).await;
    let publisher = publisher(&broker, PublisherConfig::default());
    let mut returned = async || {
        let published = broker.next().await;
        published.return_unroutable();
        published.ack();
    };
    let (offered, ()) = tokio::join!(publisher.offer(message("gone", "1")), returned());
    assert!(matches!(offered, Err(PublishError::Unroutable { .. })), "{offered:?}");
    assert_eq!(publisher.route_problem(), None);
    let (published, ()) = tokio::join!(publisher.publish(message("gone", "2")), returned());
    assert!(matches!(published, Err(PublishError::Unroutable { .. })), "{published:?}");
    assert!(publisher.route_problem().is_some());
}

#[tokio::test]
async fn while_connected_awaits_a_slow_confirm_until_the_connection_ends() {
    let mut broker = FakeBroker::start(131_072).await;
    let brief = Duration::from_millis(100);
    let config =
        PublisherConfig { confirm_timeout: brief, acquire_timeout: brief, ..PublisherConfig::default() };
    let patient = publisher(&broker, PublisherConfig { while_connected: true, ..config.clone() });
    // Connecting may take longer than the brief timeout.
    while patient.connect().await.is_err() {}
    let mut publishing = Box::pin(patient.publish(message("k", "1")));
    let published = tokio::select! {
        answer = &mut publishing => panic!("answered before the confirm: {answer:?}"),
        published = broker.next() => published,
    };
    timeout(brief * 5, &mut publishing).await.expect_err("still waiting for the confirm");
    published.ack();
    timeout(TIMEOUT, publishing).await.unwrap().unwrap();

    let mut publishing = Box::pin(patient.publish(message("k", "2")));
    let published = tokio::select! {
        answer = &mut publishing => panic!("answered before the confirm: {answer:?}"),
        published = broker.next() => published,
    };
    published.cut();
    let error = timeout(TIMEOUT, publishing).await.unwrap().unwrap_err();
    assert!(matches!(error, PublishError::InDoubt(_)), "{error:?}");

    let impatient = publisher(&broker, config);
    while impatient.connect().await.is_err() {}
    let (error, _) = tokio::join!(impatient.publish(message("k", "3")), broker.next());
    assert_eq!(error.unwrap_err().to_string(), "unconfirmed: no confirm within 100ms");
}

/// The broker closes the shared channel because of a body over its limit.
#[tokio::test]
async fn a_body_over_the_limit_is_too_large_and_others_on_its_channel_are_in_doubt() {
    let mut broker = FakeBroker::start(131_072).await;
    let publisher = publisher(&broker, PublisherConfig::default());
    let small = publisher.send(message("k", "small")).await.unwrap();
    broker.next().await;
    let large = Message { body: vec![b'x'; 2000].into(), ..message("k", "large") };
    let large = publisher.send(large).await.unwrap();
    let text = "PRECONDITION_FAILED - message size 2000 is larger than configured max size 1999";
    broker.next().await.close_channel(406, text);
    let error = timeout(TIMEOUT, large.confirmed()).await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the message's body has 2000 bytes, 1999 are allowed");
    let error = timeout(TIMEOUT, small.confirmed()).await.unwrap().unwrap_err();
    assert!(matches!(error, PublishError::InDoubt(_)), "{error:?}");
}

#[tokio::test]
async fn a_connection_whose_confirm_tracker_ended_is_replaced() {
    let mut broker = FakeBroker::start(131_072).await;
    let metrics = Metrics::new("test").connection().clone();
    let known = Broker::new(&broker.url(), "test").unwrap();
    let config = PublisherConfig { while_connected: true, ..PublisherConfig::default() };
    let publisher = Publisher::observed(known, config, metrics.clone());
    let unanswered = publisher.send(message("k", "1")).await.unwrap();
    broker.next().await;
    match &publisher.outlet {
        Outlet::Amqp(queue) => queue.connection().await.unwrap().confirm_tracker.task.abort(),
        #[cfg(feature = "simulation")]
        Outlet::Simulated(_) => unreachable!("it is not simulated"),
    }
    let error = timeout(TIMEOUT, unanswered.confirmed()).await.unwrap().unwrap_err();
    assert!(matches!(error, PublishError::InDoubt(_)), "{error:?}");

    let (sent, ()) = tokio::join!(publisher.publish(message("k", "2")), async { broker.next().await.ack() });
    sent.unwrap();
    assert_eq!((broker.connections(), metrics.reconnects(Role::Publish).get()), (2, 1));
}
