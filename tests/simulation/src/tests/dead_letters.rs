//! Delay queues and dead-lettering.

use amq_protocol::types::AMQPValue;
use garenne_protocol::{task::header, topology::Arg};

use super::kit::*;
use crate::*;

fn delay(name: &str, ttl: i64, to: &str) -> garenne_protocol::topology::Queue {
    queue(
        name,
        &[
            ("x-message-ttl", Arg::Number(ttl)),
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text(to)),
            ("x-dead-letter-strategy", text("at-least-once")),
            ("x-overflow", text("reject-publish")),
        ],
    )
}

#[test]
fn a_delay_queue_passes_its_messages_on_when_their_time_is_up() {
    let mut kit = Kit::with("4.0", vec![queue("work", &[]), delay("retry", 1000, "work")]);
    let (_, channel) = kit.worker("a", 5);
    kit.consume(channel, "work");
    kit.publish("retry", "a");
    assert!(ids(&kit.pass(ms(990)), channel).is_empty());
    let events = kit.pass(ms(50));
    let delivery = &deliveries(&events, channel)[0];
    let properties = delivery.properties();
    let word = |name: &str| header::get(properties.headers(), name).and_then(header::text);
    assert_eq!(word("x-first-death-queue").as_deref(), Some("retry"));
    assert_eq!(word("x-first-death-reason").as_deref(), Some("expired"));
    let Some(AMQPValue::FieldArray(deaths)) = header::get(properties.headers(), "x-death") else { panic!() };
    assert_eq!(deaths.as_slice().len(), 1);
    assert_eq!((delivery.redelivered, delivery.delivery_count), (false, 0), "a new queue counts from 0");
}

#[test]
fn messages_expire_only_at_the_head() {
    let mut kit = Kit::with("4.0", vec![queue("work", &[]), delay("retry", 5000, "work")]);
    kit.publish("retry", "slow");
    let mut quick = message("", "retry", "quick");
    quick.message.properties = quick.message.properties.with_expiration("10".into());
    kit.broker.publish(kit.publishing, quick);
    kit.pass(ms(4000));
    assert_eq!(kit.broker.depth("work"), Some((0, 0)));
    kit.pass(ms(2000));
    assert_eq!(kit.broker.depth("work"), Some((2, 0)));
    let (_, channel) = kit.worker("a", 5);
    kit.consume(channel, "work");
    let properties: Vec<_> = deliveries(&kit.settle(), channel).iter().map(Delivery::properties).collect();
    assert!(properties.iter().all(|it| it.expiration().is_none()), "it would expire in the next queue too");
}

#[test]
fn a_dead_letter_waits_until_its_target_takes_it() {
    let limit = [("x-max-length", Arg::Number(1)), ("x-overflow", text("reject-publish"))];
    let mut kit = Kit::with("4.0", vec![queue("dead", &limit), delay("retry", 10, "dead")]);
    kit.publish("retry", "a");
    kit.publish("retry", "b");
    kit.settle();
    assert_eq!((kit.broker.depth("dead"), kit.broker.depth("retry")), (Some((1, 0)), Some((1, 0))));
    let (_, channel) = kit.worker("operator", 1);
    kit.broker.get(channel, "dead");
    kit.settle();
    kit.broker.ended("a", "dropped by an operator");
    kit.broker.ack(channel, 1, false);
    kit.pass(ms(200_000));
    assert_eq!((kit.broker.depth("dead"), kit.broker.depth("retry")), (Some((1, 0)), Some((0, 0))));

    kit.broker.delete_queue("dead");
    kit.publish("retry", "c");
    kit.pass(ms(200_000));
    assert_eq!(kit.broker.depth("retry"), Some((1, 0)), "without a target it stays");
    kit.broker.declare_queue(&queue("dead", &[]));
    kit.pass(ms(200_000));
    assert_eq!(kit.broker.depth("dead"), Some((1, 0)));
    assert!(kit.rules().is_empty());
}

#[test]
fn without_a_strategy_a_dead_letter_without_a_target_is_lost() {
    let arguments = [("x-message-ttl", Arg::Number(10)), ("x-dead-letter-exchange", text("none"))];
    let mut kit = Kit::with("4.0", vec![queue("work", &arguments)]);
    kit.publish("work", "a");
    kit.settle();
    assert_eq!(kit.rules(), [("a".to_owned(), Rule::Lost)]);
}

#[test]
fn a_copied_x_death_makes_a_message_vanish_before_4_0() {
    for (version, expected) in [("3.10", (0, 0)), ("4.0", (1, 0))] {
        let mut kit = Kit::with(version, vec![queue("work", &[]), delay("retry", 10, "work")]);
        kit.broker.set_use("retry", false, false);
        let (_, channel) = kit.worker("a", 5);
        kit.publish("retry", "a");
        kit.settle();
        kit.broker.get(channel, "work");
        let events = kit.settle();
        let Some(Answer::Got(Some(delivery))) = answers(&events, channel).pop() else { panic!("{events:?}") };
        // It was in `work`, says a client that copies what it received and adds that queue.
        let mut copy = message("", "retry", "a");
        let mut headers = delivery.properties().headers().clone().unwrap();
        let mut table = amq_protocol::types::FieldTable::default();
        table.insert("queue".into(), header::long("work"));
        table.insert("reason".into(), header::long("expired"));
        headers.insert("x-death".into(), AMQPValue::FieldArray(vec![AMQPValue::FieldTable(table)].into()));
        copy.message.properties = copy.message.properties.with_headers(headers);
        kit.broker.ended("a", "not followed further");
        kit.broker.ack(channel, delivery.tag, false);
        kit.broker.publish(kit.publishing, copy);
        kit.settle();
        assert_eq!(kit.broker.depth("work"), Some(expected), "{version}");
    }
}

#[test]
fn a_rejected_message_goes_to_the_dead_letter_exchange() {
    let arguments = [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text("dead"))];
    let mut kit = Kit::with("4.0", vec![queue("work", &arguments), queue("dead", &[])]);
    kit.broker.set_use("dead", true, true);
    kit.publish("work", "a");
    let (_, channel) = kit.worker("a", 5);
    kit.consume(channel, "work");
    kit.settle();
    assert_eq!(kit.broker.unfinished().len(), 1);
    kit.broker.reject(channel, 1, false);
    kit.settle();
    assert_eq!(kit.broker.depth("dead"), Some((1, 0)));
    assert!(kit.broker.unfinished().is_empty(), "a dead letter is finished");
}
