//! Channels, connections and brokers that end.

use super::kit::*;
use crate::*;

#[test]
fn a_connection_dies_before_or_after_a_frame() {
    for (moment, stored) in [(Moment::Before, 1), (Moment::After, 2)] {
        let mut kit = Kit::new("4.0");
        let target = Target::Connection;
        kit.broker.arm(kit.publisher, ArmedFault { on: Some(FrameKind::Publish), skip: 1, moment, target });
        (1..=3).for_each(|n| kit.send("work", n));
        let events = kit.settle();
        assert!(matches!(events[..], [Event::ConnectionClosed { .. }]), "no confirm arrives: {events:?}");
        assert_eq!(kit.broker.depth("work"), Some((stored, 0)), "{moment:?}");
    }
}

#[test]
fn a_channel_dies_before_or_after_an_ack() {
    for (moment, left) in [(Moment::Before, 2), (Moment::After, 1)] {
        let mut kit = Kit::new("4.0");
        let (owner, channel) = kit.worker("a", 2);
        kit.consume(channel, "work");
        for id in ["a", "b"] {
            kit.publish("work", id);
            kit.broker.effect(id);
        }
        kit.settle();
        let fault = ArmedFault { on: Some(FrameKind::Settle), skip: 0, moment, target: Target::Channel };
        kit.broker.arm(owner, fault);
        kit.broker.ack(channel, 1, false);
        kit.broker.ack(channel, 2, false);
        let events = kit.settle();
        assert_eq!(close_code(&events, channel), Some(541));
        assert_eq!(kit.broker.depth("work"), Some((left, 0)), "{moment:?}");
        assert!(kit.rules().is_empty());
        assert_eq!(kit.broker.counts_of(owner).unsettled, left as u64);
    }
}

#[test]
fn what_is_under_way_to_a_dead_connection_returns() {
    let mut kit = Kit::new("4.0");
    kit.publish("work", "a");
    kit.settle();
    let (owner, channel) = kit.worker("a", 2);
    kit.consume(channel, "work");
    kit.broker.crash(owner);
    let events = kit.settle();
    assert!(deliveries(&events, channel).is_empty(), "{events:?}");
    let (_, channel) = kit.worker("b", 2);
    kit.consume(channel, "work");
    let events = kit.settle();
    assert!(deliveries(&events, channel)[0].redelivered, "the broker had delivered it");
}

#[test]
fn operations_on_what_is_closed_do_nothing() {
    let mut kit = Kit::new("4.0");
    kit.broker.kill_channel(kit.publishing);
    kit.publish("work", "a");
    let events = kit.settle();
    assert!(matches!(events[..], [Event::ChannelClosed { .. }]), "{events:?}");
    kit.broker.crash(kit.publisher);
    kit.publish("work", "b");
    assert_eq!(kit.broker.depth("work"), Some((0, 0)));
    assert!(kit.broker.connections_of(None).is_empty());
}

#[test]
fn a_restart_ends_all_connections_and_keeps_messages() {
    let mut kit = Kit::new("4.0");
    (1..=4).for_each(|n| kit.send("work", n));
    let (owner, channel) = kit.worker("a", 2);
    kit.consume(channel, "work");
    let second = kit.channel(owner, 2);
    kit.consume(second, "work");
    kit.broker.declare_exclusive(channel, "worker.a", &[]);
    kit.settle();
    kit.broker.restart(ms(1000));
    let events = kit.pass(ms(500));
    assert_eq!(events.len(), 3, "each connection is told: {events:?}");
    assert_eq!(kit.broker.connect(owner), Err(ConnectError::Refused));
    assert_eq!(kit.broker.next_due(), Some(ms(1100)));
    kit.pass(ms(600));
    assert_eq!(kit.broker.depth("worker.a"), None);
    let channel = kit.channel(owner, 10);
    kit.consume(channel, "work");
    let events = kit.settle();
    let counts: Vec<_> = deliveries(&events, channel).iter().map(|it| it.delivery_count).collect();
    assert_eq!(counts, [1; 4], "each returned once");
}

#[test]
fn a_frozen_broker_reads_and_sends_nothing() {
    let mut kit = Kit::new("4.0");
    let (owner, channel) = kit.worker("a", 2);
    kit.consume(channel, "work");
    kit.settle();
    kit.publish("work", "a");
    kit.broker.freeze();
    kit.publish("work", "b");
    assert!(kit.pass(ms(10_000)).is_empty());
    assert_eq!((kit.broker.next_due(), kit.broker.connect(owner)), (None, Err(ConnectError::NoAnswer)));
    kit.broker.thaw();
    let events = kit.settle();
    assert_eq!(
        (ids(&events, channel), confirms(&events, kit.publishing).len()),
        (vec!["a".into(), "b".into()], 2)
    );
}

#[test]
fn a_deleted_queue_cancels_its_consumers_and_takes_its_messages_along() {
    let mut kit = Kit::new("4.0");
    kit.publish("work", "a");
    kit.publish("work", "b");
    let (_, channel) = kit.worker("a", 1);
    let consumer = kit.consume(channel, "work");
    kit.settle();
    kit.broker.delete_queue("work");
    let events = kit.settle();
    assert!(
        matches!(events[..], [Event::ConsumerCancelled { consumer: it, .. }] if it == consumer),
        "{events:?}"
    );
    assert_eq!(kit.broker.depth("work"), None);
    // The tag is still known, and the new queue of the same name does not care.
    kit.broker.declare_queue(&queue("work", &[]));
    kit.broker.ack(channel, 1, false);
    kit.settle();
    assert!(kit.broker.is_open(channel));
    assert!(kit.rules().is_empty(), "an operator lost them: {:?}", kit.rules());
}

#[test]
fn a_forgotten_consumer_is_not_told() {
    let mut kit = Kit::new("4.0");
    let (_, channel) = kit.worker("a", 1);
    let consumer = kit.consume(channel, "work");
    kit.settle();
    kit.broker.forget_consumer(channel, consumer);
    kit.publish("work", "a");
    let events = kit.settle();
    assert_eq!(events.len(), 1, "the confirm alone: {events:?}");
    assert_eq!(kit.broker.depth("work"), Some((1, 0)));
}

#[test]
fn equal_seeds_and_operations_give_equal_traces() {
    let trace = |seed| {
        let mut kit = Kit::new("4.0");
        kit.broker.reseed(seed);
        let (_, channel) = kit.worker("a", 3);
        kit.consume(channel, "work");
        for n in 0..20 {
            kit.publish("work", &n.to_string());
            for delivery in deliveries(&kit.pass(ms(1)), channel) {
                kit.broker.nack(channel, delivery.tag, false, true);
            }
        }
        kit.broker.trace()
    };
    assert_eq!(trace(1), trace(1));
    assert_ne!(trace(1), trace(2));
}
