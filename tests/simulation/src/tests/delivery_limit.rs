//! The table of what a return counts on each version, as run on live brokers.

use super::kit::*;
use crate::*;

/// How a test returns its message.
#[derive(Clone, Copy, Debug)]
enum Return {
    Nack,
    Reject,
    Close,
}

/// Returns one message eight times. Returns the number of the delivery after which it was dead, and the counts that its
/// deliveries had.
fn returned_eight_times(version: &str, limit: Option<i64>, how: Return) -> (Option<usize>, Vec<u32>) {
    let mut arguments = vec![
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text("dead")),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
    ];
    arguments.extend(limit.map(|limit| ("x-delivery-limit", garenne_protocol::topology::Arg::Number(limit))));
    let mut kit = Kit::with(version, vec![queue("work", &arguments), queue("dead", &[])]);
    kit.publish("work", "a");
    let (owner, mut channel) = kit.worker("worker", 1);
    kit.consume(channel, "work");
    let mut counts = Vec::new();
    for returns in 0..8 {
        let events = kit.settle();
        let Some(delivery) = deliveries(&events, channel).pop() else {
            assert_eq!(kit.broker.depth("dead"), Some((1, 0)));
            return (Some(returns), counts);
        };
        assert_eq!(delivery.redelivered, returns > 0);
        counts.push(delivery.delivery_count);
        match how {
            Return::Nack => kit.broker.nack(channel, delivery.tag, false, true),
            Return::Reject => kit.broker.reject(channel, delivery.tag, true),
            Return::Close => {
                kit.broker.close_channel(channel);
                channel = kit.channel(owner, 1);
                kit.consume(channel, "work");
            }
        }
    }
    (None, counts)
}

#[test]
fn returns_count_as_on_live_brokers() {
    use Return::*;
    let counted = Some(7);
    let uncounted = Some(0);
    for (version, limit, how, dead_after, last_count) in [
        ("3.10", Some(3), Nack, Some(4), None),
        ("3.10", Some(3), Reject, Some(4), None),
        ("3.10", Some(3), Close, Some(4), None),
        ("3.10", Some(-1), Nack, Some(1), None),
        ("3.10", Some(-1), Reject, Some(1), None),
        ("3.10", Some(-1), Close, Some(1), None),
        ("3.10", None, Nack, None, counted),
        ("3.10", None, Reject, None, counted),
        ("3.10", None, Close, None, counted),
        ("4.0", Some(3), Nack, Some(4), None),
        ("4.0", Some(3), Reject, Some(4), None),
        ("4.0", Some(3), Close, Some(4), None),
        ("4.0", Some(-1), Nack, None, counted),
        ("4.0", Some(-1), Reject, None, counted),
        ("4.0", Some(-1), Close, None, counted),
        ("4.3", Some(3), Nack, None, uncounted),
        ("4.3", Some(3), Reject, Some(4), None),
        ("4.3", Some(3), Close, Some(4), None),
        ("4.3", Some(-1), Nack, None, uncounted),
        ("4.3", Some(-1), Reject, None, counted),
        ("4.3", Some(-1), Close, None, counted),
    ] {
        let (dead, counts) = returned_eight_times(version, limit, how);
        let what = format!("{version}, limit {limit:?}, {how:?}: counts {counts:?}");
        assert_eq!(dead, dead_after, "{what}");
        if last_count.is_some() {
            assert_eq!(counts.last().copied(), last_count, "{what}");
        }
    }
}

#[test]
fn a_queue_without_a_limit_argument_has_twenty_from_4_0() {
    for (version, expected) in [("3.13", None), ("4.0", Some(21)), ("4.3", None)] {
        let mut kit = Kit::new(version);
        kit.publish("work", "a");
        let (_, channel) = kit.worker("operator", 1);
        let seen = (1..=25).find(|_| {
            kit.broker.get(channel, "work");
            let events = kit.settle();
            let Some(Answer::Got(Some(delivery))) = answers(&events, channel).pop() else { return true };
            kit.broker.nack(channel, delivery.tag, false, true);
            kit.settle();
            false
        });
        // The look after the twenty-first finds nothing: the message was dropped, for it has no dead-letter exchange.
        assert_eq!(seen, expected.map(|looks| looks + 1), "{version}");
    }
}

#[test]
fn a_crash_counts_against_everything_that_was_held() {
    let mut kit = Kit::new("4.0");
    (0..3).for_each(|n| kit.send("work", n));
    let (owner, channel) = kit.worker("worker", 10);
    kit.consume(channel, "work");
    assert_eq!(kit.settle().len(), 3 + 3 + 1, "three confirms, three deliveries, one answer");
    kit.broker.crash(owner);
    let channel = kit.channel(owner, 10);
    kit.consume(channel, "work");
    let events = kit.settle();
    let counts: Vec<_> =
        deliveries(&events, channel).iter().map(|it| (it.delivery_count, it.redelivered)).collect();
    assert_eq!(counts, [(1, true); 3]);
}

#[test]
fn returned_messages_land_where_each_version_puts_them() {
    use garenne_protocol::topology::Arg;
    let no_limit = |version: &str| if version.starts_with('3') { None } else { Some(-1) };
    for (version, limit, by_nack, by_close) in [
        ("3.10", no_limit("3.10"), ["b", "a"], ["a", "b"]),
        ("3.10", Some(5), ["a", "b"], ["a", "b"]),
        ("4.0", no_limit("4.0"), ["b", "a"], ["a", "b"]),
        ("4.0", Some(5), ["a", "b"], ["a", "b"]),
        ("4.3", no_limit("4.3"), ["a", "b"], ["a", "b"]),
    ] {
        for (is_nack, expected) in [(true, by_nack), (false, by_close)] {
            let limit = limit.map(|limit| ("x-delivery-limit", Arg::Number(limit)));
            let mut kit = Kit::with(version, vec![queue("work", limit.as_slice())]);
            kit.publish("work", "a");
            kit.publish("work", "b");
            let (_, channel) = kit.worker("worker", 1);
            let consumer = kit.consume(channel, "work");
            let events = kit.settle();
            assert_eq!(ids(&events, channel), ["a"]);
            kit.broker.cancel(channel, consumer);
            if is_nack {
                kit.broker.nack(channel, 1, false, true);
            } else {
                kit.broker.close_channel(channel);
            }
            kit.settle();
            let (_, channel) = kit.worker("another", 10);
            kit.consume(channel, "work");
            let events = kit.settle();
            assert_eq!(ids(&events, channel), expected, "{version} limit {limit:?} nack {is_nack}");
        }
    }
}
