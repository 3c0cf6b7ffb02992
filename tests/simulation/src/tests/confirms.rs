//! Publishing: confirms, returns, refusals, alarms, routes.

use garenne_protocol::{
    task::header,
    topology::{Arg, Binding, Destination, ExchangeKind, Route},
};

use super::kit::*;
use crate::*;

fn bind(exchange: &str, queue: &str, key: &str) -> Route {
    Route::Bind(Binding { exchange: exchange.into(), to: Destination::Queue(queue.into()), key: key.into() })
}

#[test]
fn each_fate_of_a_publish_stores_and_answers_as_it_says() {
    let mut kit = Kit::new("4.0");
    let late = Fate::Late(ms(500));
    let fates = [Fate::Prompt, late, Fate::Refused, Fate::RefusedButStored, Fate::NeverConfirmed];
    kit.broker.decide_fates(kit.publisher, fates);
    (1..=6).for_each(|n| kit.send("work", n));
    let mut answered = confirms(&kit.settle(), kit.publishing);
    answered.sort_unstable();
    assert_eq!(answered, [(1, true), (3, false), (4, false), (6, true)]);
    assert_eq!(confirms(&kit.pass(ms(1000)), kit.publishing), [(2, true)]);
    assert_eq!(kit.broker.depth("work"), Some((5, 0)));
    assert!(confirms(&kit.pass(ms(100_000)), kit.publishing).is_empty());

    kit.broker.decide_fates(kit.publisher, [Fate::LostWithConnection]);
    kit.publish("work", "7");
    let events = kit.settle();
    assert!(matches!(events[..], [Event::ConnectionClosed { .. }]), "{events:?}");
    assert_eq!(kit.broker.depth("work"), Some((6, 0)));
}

#[test]
fn a_connection_can_end_because_a_confirm_never_comes() {
    let mut kit = Kit::new("4.0");
    kit.broker.decide_fates(kit.publisher, [Fate::NeverConfirmed]);
    kit.publish("work", "1");
    kit.pass(ms(100_000));
    kit.broker.end_waits_for_confirms(ms(200_000));
    assert!(kit.settle().is_empty(), "it has not waited for so long");
    kit.broker.end_waits_for_confirms(ms(60_000));
    let events = kit.settle();
    assert!(matches!(events[..], [Event::ConnectionClosed { .. }]), "{events:?}");
    assert_eq!((kit.broker.depth("work"), kit.broker.mishaps().len()), (Some((1, 0)), 1));
}

#[test]
fn a_mandatory_message_without_a_queue_is_returned_before_its_ack() {
    let mut kit = Kit::new("4.0");
    kit.publish("none", "a");
    let events = kit.settle();
    assert!(
        matches!(
            events[..],
            [Event::Returned { sequence: 1, .. }, Event::Confirm { sequence: 1, acked: true, .. }]
        ),
        "{events:?}"
    );
    let mut optional = message("", "none", "b");
    optional.mandatory = false;
    kit.broker.publish(kit.publishing, optional);
    let events = kit.settle();
    assert!(matches!(events[..], [Event::Confirm { acked: true, .. }]), "{events:?}");
}

#[test]
fn a_missing_exchange_closes_the_channel_and_its_confirms_are_lost() {
    let mut kit = Kit::new("4.0");
    kit.publish("work", "a");
    kit.broker.publish(kit.publishing, message("none", "x", "b"));
    let events = kit.settle();
    assert_eq!(
        (close_code(&events, kit.publishing), confirms(&events, kit.publishing).len()),
        (Some(404), 0)
    );
    assert_eq!(kit.broker.depth("work"), Some((1, 0)));
}

#[test]
fn a_message_over_the_limit_closes_the_channel() {
    let mut kit = Kit::new("4.0");
    let mut large = message("", "work", "a");
    large.message.body = vec![0; (16 << 20) + 1].into();
    kit.broker.publish(kit.publishing, large);
    assert_eq!(close_code(&kit.settle(), kit.publishing), Some(406));
}

#[test]
fn a_full_queue_refuses_or_drops_its_head() {
    let max = ("x-max-length", Arg::Number(2));
    let refusing = [max.clone(), ("x-overflow", text("reject-publish"))];
    let mut kit = Kit::with("4.0", vec![queue("refusing", &refusing), queue("dropping", &[max])]);
    (1..=3).for_each(|n| kit.send("refusing", n));
    let mut answered = confirms(&kit.settle(), kit.publishing);
    answered.sort_unstable();
    assert_eq!(answered, [(1, true), (2, true), (3, false)]);
    (4..=6).for_each(|n| kit.send("dropping", n));
    assert!(confirms(&kit.settle(), kit.publishing).iter().all(|(_, acked)| *acked));
    assert_eq!((kit.broker.depth("refusing"), kit.broker.depth("dropping")), (Some((2, 0)), Some((2, 0))));
    assert_eq!(kit.rules(), [("4".to_owned(), Rule::Lost)], "a queue that drops loses what it confirmed");
}

#[test]
fn topics_alternate_exchanges_and_copies_of_headers_route() {
    let exchanges = vec![
        exchange("rest", ExchangeKind::Fanout, &[]),
        exchange("tasks", ExchangeKind::Topic, &[("alternate-exchange", text("rest"))]),
    ];
    let queues = ["fast", "slow", "unroutable"].map(|name| queue(name, &[])).into();
    let routes =
        vec![bind("tasks", "fast", "a.*"), bind("tasks", "slow", "b.#"), bind("rest", "unroutable", "#")];
    let mut kit = Kit::with_exchanges("4.0", queues, exchanges, routes);
    for key in ["a.x", "b", "c"] {
        kit.broker.publish(kit.publishing, message("tasks", key, key));
    }
    let events = kit.settle();
    assert_eq!(events.len(), 3, "no return: the alternate exchange has a queue");
    let depths = |kit: &Kit| ["fast", "slow", "unroutable"].map(|name| kit.broker.depth(name).unwrap().0);
    assert_eq!(depths(&kit), [1, 1, 1]);

    let mut both = message("tasks", "a.y", "d");
    let cc = amq_protocol::types::AMQPValue::FieldArray(vec![header::long("b")].into());
    let headers = std::collections::BTreeMap::from([("CC".into(), cc)]);
    both.message.properties = both.message.properties.with_headers(headers.into());
    kit.broker.publish(kit.publishing, both);
    kit.settle();
    assert_eq!(depths(&kit), [2, 2, 1]);
    assert_eq!(kit.broker.forks().get(&Fork::SeveralQueues), Some(&1));
    assert!(kit.rules().is_empty());

    kit.broker.delete_queue("fast");
    kit.broker.publish(kit.publishing, message("tasks", "a.z", "e"));
    kit.settle();
    assert_eq!(kit.broker.depth("unroutable"), Some((2, 0)));
}

#[test]
fn equal_keys_go_to_one_shard_and_different_keys_to_all() {
    let arguments = [("hash-header", text(header::KEY))];
    let exchanges = vec![exchange("shards", ExchangeKind::ConsistentHash, &arguments)];
    let queues = ["s0", "s1"].map(|name| queue(name, &[])).into();
    let routes = vec![bind("shards", "s0", "1"), bind("shards", "s1", "1")];
    let mut kit = Kit::with_exchanges("4.0", queues, exchanges, routes);
    for n in 0..40 {
        let mut publish = message("shards", "x", &n.to_string());
        let key = header::long(&(n / 2).to_string());
        let headers = std::collections::BTreeMap::from([(header::KEY.into(), key)]);
        publish.message.properties = publish.message.properties.with_headers(headers.into());
        kit.broker.publish(kit.publishing, publish);
    }
    kit.settle();
    let (first, second) = (kit.broker.depth("s0").unwrap().0, kit.broker.depth("s1").unwrap().0);
    assert_eq!((first + second, first % 2), (40, 0));
    assert!(first > 4 && second > 4, "{first} {second}");
}

#[test]
fn an_alarm_blocks_connections_that_publish_and_no_others() {
    let mut kit = Kit::new("4.0");
    let (_, consuming) = kit.worker("a", 1);
    kit.consume(consuming, "work");
    kit.settle();
    kit.broker.raise_alarm();
    for id in ["a", "b"] {
        kit.publish("work", id);
        kit.broker.effect(id);
    }
    let events = kit.settle();
    assert!(events.iter().any(|event| matches!(event, Event::Blocked(_))), "{events:?}");
    assert_eq!(confirms(&events, kit.publishing), [(1, true)], "the publish that was read is confirmed");
    kit.broker.ack(consuming, 1, false);
    assert!(ids(&kit.settle(), consuming).is_empty());
    assert_eq!(kit.broker.depth("work"), Some((0, 0)), "acks of another connection are read");
    kit.broker.clear_alarm();
    let events = kit.settle();
    assert!(events.iter().any(|event| matches!(event, Event::Unblocked(_))), "{events:?}");
    assert_eq!(confirms(&events, kit.publishing), [(2, true)]);
    assert_eq!(ids(&events, consuming), ["b"]);
}
