//! Prefetch, tags, cancelling, `basic.get`, the consumer timeout, exclusive queues.

use super::kit::*;
use crate::*;

#[test]
fn a_consumer_holds_at_most_its_prefetch_and_consumers_take_turns() {
    let mut kit = Kit::new("4.0");
    let (_, first) = kit.worker("a", 2);
    let (_, second) = kit.worker("b", 2);
    kit.consume(first, "work");
    kit.consume(second, "work");
    (1..=6).for_each(|n| kit.send("work", n));
    let events = kit.settle();
    assert_eq!(
        (ids(&events, first), ids(&events, second)),
        (vec!["1".into(), "3".into()], vec!["2".into(), "4".into()])
    );
    assert_eq!(kit.broker.depth("work"), Some((2, 4)));
    kit.broker.effect("1");
    kit.broker.ack(first, 1, false);
    let events = kit.settle();
    assert_eq!((ids(&events, first), ids(&events, second)), (vec!["5".to_owned()], vec![]));
    assert!(kit.rules().is_empty());
}

#[test]
fn acks_and_nacks_with_multiple_settle_all_before() {
    let mut kit = Kit::new("4.0");
    let (owner, channel) = kit.worker("a", 5);
    kit.consume(channel, "work");
    for n in 1..=5 {
        kit.publish("work", &n.to_string());
        kit.broker.effect(&n.to_string());
    }
    kit.settle();
    kit.broker.ack(channel, 2, true);
    kit.settle();
    assert_eq!(kit.broker.depth("work"), Some((0, 3)));
    kit.broker.nack(channel, 0, true, true);
    let again = kit.settle();
    assert_eq!(ids(&again, channel), ["3", "4", "5"]);
    let counts = kit.broker.counts_of(owner);
    assert_eq!((counts.delivered, counts.acked, counts.requeued), (8, 2, 3));
    assert_eq!(kit.broker.unacked_of(owner), 3);
}

#[test]
fn an_unknown_tag_closes_the_channel() {
    for multiple in [false, true] {
        let mut kit = Kit::new("4.0");
        kit.publish("work", "a");
        kit.broker.effect("a");
        let (_, channel) = kit.worker("a", 5);
        kit.consume(channel, "work");
        kit.settle();
        kit.broker.ack(channel, 1, false);
        kit.broker.ack(channel, 1, multiple);
        let events = kit.settle();
        assert_eq!(close_code(&events, channel), Some(406));
        assert_eq!(kit.broker.depth("work"), Some((0, 0)), "the first ack holds");
        assert!(!kit.broker.is_open(channel));
    }
}

#[test]
fn after_a_cancel_what_was_delivered_can_still_be_acked() {
    let mut kit = Kit::new("4.0");
    (1..=4).for_each(|n| kit.send("work", n));
    kit.settle();
    let (_, channel) = kit.worker("a", 2);
    let consumer = kit.consume(channel, "work");
    // The deliveries are under way when the client cancels.
    kit.broker.cancel(channel, consumer);
    let events = kit.settle();
    assert_eq!(ids(&events, channel), ["1", "2"]);
    let is_last = |event: &Event| matches!(event, Event::Answer { answer: Answer::Cancelled(_), .. });
    assert!(events.last().is_some_and(is_last), "no delivery follows the answer to the cancel: {events:?}");
    kit.broker.effect("1");
    kit.broker.ack(channel, 1, false);
    let events = kit.settle();
    assert!(events.is_empty(), "no message takes the place of the acked one");
    assert_eq!(kit.broker.depth("work"), Some((2, 1)));
    kit.broker.nack(channel, 2, false, true);
    kit.settle();
    assert_eq!(kit.broker.depth("work"), Some((3, 0)));
}

#[test]
fn get_takes_one_message_of_any_queue_that_has_one() {
    let mut kit = Kit::new("4.0");
    let (_, channel) = kit.worker("a", 0);
    kit.broker.get(channel, "work");
    assert!(matches!(answers(&kit.settle(), channel)[..], [Answer::Got(None)]));
    kit.publish("work", "a");
    kit.broker.get(channel, "work");
    let events = kit.settle();
    let [Answer::Got(Some(delivery))] = &answers(&events, channel)[..] else { panic!("{events:?}") };
    assert_eq!((delivery.message.id(), kit.broker.depth("work")), ("a", Some((0, 1))));
    kit.broker.get(channel, "none");
    assert_eq!(close_code(&kit.settle(), channel), Some(404));
    assert_eq!(kit.broker.depth("work"), Some((1, 0)));
}

#[test]
fn the_consumer_timeout_closes_the_channel_before_4_3_and_cancels_the_consumer_from_then_on() {
    use garenne_protocol::topology::Arg;
    let queues = || {
        let own = [("x-consumer-timeout", Arg::Number(1000)), ("x-delivery-limit", Arg::Number(9))];
        vec![queue("work", &own)]
    };
    let mut kit = Kit::with("4.2", queues());
    kit.publish("work", "a");
    let (_, channel) = kit.worker("a", 5);
    kit.consume(channel, "work");
    assert_eq!(close_code(&kit.pass(ms(900)), channel), None);
    assert_eq!(close_code(&kit.pass(ms(200)), channel), Some(406));
    assert_eq!(kit.broker.depth("work"), Some((1, 0)));

    let mut kit = Kit::with("4.3", queues());
    kit.publish("work", "a");
    let (_, channel) = kit.worker("a", 5);
    kit.consume(channel, "work");
    kit.pass(ms(500));
    kit.publish("work", "b");
    let events = kit.pass(ms(600));
    assert!(events.iter().any(|it| matches!(it, Event::ConsumerCancelled { .. })), "{events:?}");
    assert!(kit.broker.is_open(channel));
    assert_eq!(kit.broker.depth("work"), Some((1, 1)), "only the late message returned");
    // The channel still knows both tags; the queue ignores the first one.
    kit.broker.effect("b");
    kit.broker.ack(channel, 2, true);
    kit.settle();
    assert_eq!(kit.broker.depth("work"), Some((1, 0)));
    let (_, another) = kit.worker("b", 5);
    kit.consume(another, "work");
    let events = kit.settle();
    let again = deliveries(&events, another);
    assert_eq!((again[0].redelivered, again[0].delivery_count), (true, 0), "the timeout does not count");
    assert!(kit.rules().is_empty(), "{:?}", kit.rules());
}

/// As RabbitMQ 4.3.6 does it.
#[test]
fn the_consumer_timeout_of_4_3_cancels_again_for_each_message_and_closes_the_channel_of_a_cancelled_consumer()
{
    use garenne_protocol::topology::Arg;
    let queues = || vec![queue("work", &[("x-consumer-timeout", Arg::Number(1000))])];
    let cancelled =
        |events: &[Event]| events.iter().filter(|it| matches!(it, Event::ConsumerCancelled { .. })).count();
    let mut kit = Kit::with("4.3", queues());
    let (_, channel) = kit.worker("a", 5);
    kit.consume(channel, "work");
    kit.publish("work", "a");
    kit.pass(ms(500));
    kit.publish("work", "b");
    assert_eq!(cancelled(&kit.pass(ms(600))), 1);
    assert_eq!(cancelled(&kit.pass(ms(600))), 1);
    assert_eq!((kit.broker.depth("work"), kit.broker.is_open(channel)), (Some((2, 0)), true));

    let mut kit = Kit::with("4.3", queues());
    let (_, channel) = kit.worker("a", 5);
    let consumer = kit.consume(channel, "work");
    kit.publish("work", "a");
    kit.broker.cancel(channel, consumer);
    let events = kit.pass(ms(1100));
    assert_eq!((close_code(&events, channel), cancelled(&events)), (Some(406), 0));
    let (_, another) = kit.worker("b", 5);
    kit.consume(another, "work");
    let again = &deliveries(&kit.settle(), another)[0];
    assert_eq!((again.acquired_count, again.delivery_count), (Some(1), 0), "a timeout, and no lost channel");
}

#[test]
fn a_settled_delivery_does_not_time_out() {
    use garenne_protocol::topology::Arg;
    let mut kit = Kit::with("4.0", vec![queue("work", &[("x-consumer-timeout", Arg::Number(1000))])]);
    let (_, channel) = kit.worker("a", 5);
    kit.consume(channel, "work");
    for n in 0..10 {
        let id = n.to_string();
        kit.publish("work", &id);
        let events = kit.pass(ms(900));
        kit.broker.effect(&id);
        for delivery in deliveries(&events, channel) {
            kit.broker.ack(channel, delivery.tag, false);
        }
        assert_eq!(close_code(&events, channel), None);
    }
}

#[test]
fn an_exclusive_queue_belongs_to_its_connection_and_ends_with_it() {
    use garenne_protocol::topology::ExchangeKind;
    let control = exchange("control", ExchangeKind::Topic, &[]);
    let mut kit = Kit::with_exchanges("4.0", Vec::new(), vec![control], Vec::new());
    let (owner, channel) = kit.worker("a", 0);
    kit.broker.declare_exclusive(channel, "worker.a", &[("control", "worker.a"), ("control", "workers")]);
    let options = ConsumeOptions { no_ack: true, ..Default::default() };
    kit.broker.consume(channel, "worker.a", options);
    kit.broker.publish(kit.publishing, message("control", "workers", "1"));
    let events = kit.settle();
    assert_eq!(ids(&events, channel), ["1"]);
    assert_eq!(kit.broker.unacked_of(owner), 0);

    let (other, looking) = kit.worker("b", 0);
    kit.broker.look_up(looking, "worker.a");
    assert_eq!(close_code(&kit.settle(), looking), Some(405));
    kit.broker.crash(owner);
    let looking = kit.channel(other, 0);
    kit.broker.look_up(looking, "worker.a");
    assert_eq!(close_code(&kit.settle(), looking), Some(404));
    kit.broker.publish(kit.publishing, message("control", "workers", "2"));
    let events = kit.settle();
    assert!(matches!(events[..], [Event::Returned { .. }, Event::Confirm { acked: true, .. }]), "{events:?}");
}

#[test]
fn a_look_up_counts_ready_messages_and_consumers() {
    let mut kit = Kit::new("4.0");
    (1..=3).for_each(|n| kit.send("work", n));
    let (_, channel) = kit.worker("a", 1);
    kit.consume(channel, "work");
    kit.broker.look_up(channel, "work");
    let answers = answers(&kit.settle(), channel);
    assert!(
        matches!(answers[..], [Answer::Consuming(_), Answer::Exists { ready: 2, consumers: 1 }]),
        "{answers:?}"
    );
}
