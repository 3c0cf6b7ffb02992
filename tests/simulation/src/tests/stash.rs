//! The settlements that a channel keeps back, and loses when it closes.

use super::kit::*;
use crate::*;

/// Delivers and acks that many messages, each with a frame of its own. Nothing is applied yet.
fn acked_one_by_one(count: u64) -> (Kit, ChannelId) {
    let mut kit = Kit::new("4.0");
    for n in 1..=count {
        kit.publish("work", &n.to_string());
        kit.broker.effect(&n.to_string());
    }
    let (_, channel) = kit.worker("a", 1000);
    kit.consume(channel, "work");
    kit.settle();
    (1..=count).for_each(|tag| kit.broker.ack(channel, tag, false));
    (kit, channel)
}

#[test]
fn what_was_sent_to_the_queue_is_applied_although_the_channel_closes() {
    let (mut kit, channel) = acked_one_by_one(32);
    kit.broker.close_channel(channel);
    kit.settle();
    assert_eq!(kit.broker.depth("work"), Some((0, 0)));
}

#[test]
fn the_stash_is_dropped_when_the_channel_closes() {
    let (mut kit, channel) = acked_one_by_one(100);
    kit.broker.close_channel(channel);
    kit.settle();
    assert_eq!(kit.broker.depth("work"), Some((68, 0)), "acked messages are back");
    assert!(kit.rules().is_empty(), "no client did anything wrong");
    assert!(kit.broker.forks().is_empty(), "each exists once");
}

#[test]
fn a_passive_declaration_does_not_save_the_stash_and_a_get_does() {
    let (mut kit, channel) = acked_one_by_one(100);
    kit.broker.look_up(channel, "work");
    kit.broker.close_channel(channel);
    kit.settle();
    assert_eq!(kit.broker.depth("work"), Some((68, 0)));

    let (mut kit, channel) = acked_one_by_one(100);
    kit.broker.get(channel, "work");
    kit.broker.close_channel(channel);
    kit.settle();
    assert_eq!(kit.broker.depth("work"), Some((0, 0)));
}

#[test]
fn one_ack_of_everything_needs_no_stash() {
    let mut kit = Kit::new("4.0");
    for n in 1..=100 {
        kit.publish("work", &n.to_string());
        kit.broker.effect(&n.to_string());
    }
    let (_, channel) = kit.worker("a", 1000);
    kit.consume(channel, "work");
    kit.settle();
    kit.broker.ack(channel, 100, true);
    kit.broker.close_channel(channel);
    kit.settle();
    assert_eq!(kit.broker.depth("work"), Some((0, 0)));
}

#[test]
fn the_stash_is_sent_once_the_queue_has_caught_up() {
    let (mut kit, channel) = acked_one_by_one(100);
    kit.settle();
    assert_eq!(kit.broker.depth("work"), Some((0, 0)));
    assert!(kit.broker.trace().iter().any(|line| line.contains("the stash of a channel 1 is sent to work")));
    kit.broker.close_channel(channel);
    kit.settle();
}

#[test]
fn a_reject_sends_the_stash_from_4_3() {
    for (version, left) in [("4.2", 68), ("4.3", 0)] {
        let mut kit = Kit::new(version);
        for n in 1..=101 {
            kit.publish("work", &n.to_string());
            kit.broker.effect(&n.to_string());
        }
        let (_, channel) = kit.worker("a", 1000);
        kit.consume(channel, "work");
        kit.settle();
        (1..=100).for_each(|tag| kit.broker.ack(channel, tag, false));
        kit.broker.reject(channel, 101, true);
        kit.broker.close_channel(channel);
        kit.settle();
        assert_eq!(kit.broker.depth("work"), Some((left + 1, 0)), "{version}");
    }
}
