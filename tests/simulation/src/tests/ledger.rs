//! What the ledger reports, and what it must not report.

use std::collections::BTreeMap;

use garenne_protocol::task::header;

use super::kit::*;
use crate::*;

/// A worker that holds the message `a` with tag 1, and its publishing channel.
fn holding() -> (Kit, OwnerId, ChannelId, ChannelId) {
    let mut kit = Kit::with("4.0", vec![queue("work", &[]), queue("retry", &[]), queue("dead", &[])]);
    kit.broker.set_use("dead", true, true);
    kit.publish("work", "a");
    let (owner, consuming) = kit.worker("worker", 1);
    let publishing = kit.channel(owner, 0);
    kit.consume(consuming, "work");
    kit.settle();
    (kit, owner, consuming, publishing)
}

/// The channel of a worker dies, and another one of it receives what the first one held.
fn delivered_again(kit: &mut Kit, owner: OwnerId, consuming: ChannelId) -> ChannelId {
    kit.broker.kill_channel(consuming);
    let consuming = kit.channel(owner, 1);
    kit.consume(consuming, "work");
    kit.settle();
    consuming
}

fn broken(rule: Rule) -> Vec<(String, Rule)> {
    vec![("a".to_owned(), rule)]
}

/// No delivery accounts for a copy either, so that the message is in two places.
fn both(rule: Rule) -> Vec<(String, Rule)> {
    [broken(rule), broken(Rule::InTwoPlaces)].concat()
}

#[test]
fn an_ack_before_the_effect_is_reported_with_the_history() {
    let (mut kit, _, consuming, _) = holding();
    kit.broker.ack(consuming, 1, false);
    kit.settle();
    assert_eq!(kit.rules(), broken(Rule::AckedTooEarly));
    let text = kit.broker.violations()[0].to_string();
    let lines: Vec<_> =
        text.lines().map(|line| line.split_once(" publisher").map_or(line, |it| it.1)).collect();
    assert!(text.starts_with(
        "message a of publisher was acked before its effect took place or its copy was confirmed"
    ));
    for expected in [
        "publishes number 1: a (m0)",
        "is stored in work",
        "is delivered from work to worker channel 1 as tag 1",
        "acks tag 1",
    ] {
        assert!(lines.iter().any(|line| line.contains(expected)), "{expected} in\n{text}");
    }
}

#[test]
fn an_ack_after_the_effect_is_fine() {
    let (mut kit, _, consuming, _) = holding();
    assert_eq!(kit.broker.unfinished().len(), 1);
    kit.broker.effect("a");
    kit.broker.ack(consuming, 1, false);
    kit.settle();
    assert!(kit.rules().is_empty());
    assert_eq!((kit.broker.unfinished().len(), kit.broker.effects("a")), (0, 1));
}

#[test]
fn an_ack_before_the_confirm_of_a_follow_up_is_reported() {
    let (mut kit, _, consuming, publishing) = holding();
    kit.broker.effect("a");
    kit.broker.follows("a", "b");
    kit.publish_on(publishing, "work", "b");
    kit.broker.ack(consuming, 1, false);
    kit.settle();
    assert_eq!(kit.rules(), broken(Rule::AckedBeforeItsFollowUps), "the confirm was under way");

    let (mut kit, _, consuming, publishing) = holding();
    kit.broker.effect("a");
    kit.broker.follows("a", "b");
    kit.publish_on(publishing, "work", "b");
    kit.settle();
    kit.broker.ack(consuming, 1, false);
    kit.settle();
    assert!(kit.rules().is_empty());
}

#[test]
fn a_copy_covers_its_original_once_its_confirm_was_read() {
    let (mut kit, _, consuming, publishing) = holding();
    kit.publish_on(publishing, "retry", "a");
    kit.settle();
    kit.broker.ack(consuming, 1, false);
    kit.settle();
    assert!(kit.rules().is_empty());
    assert!(kit.broker.forks().is_empty());

    let (mut kit, _, consuming, publishing) = holding();
    kit.publish_on(publishing, "retry", "a");
    kit.broker.ack(consuming, 1, false);
    kit.settle();
    assert_eq!(kit.rules(), both(Rule::AckedTooEarly), "the confirm was under way");
}

#[test]
fn a_copy_that_was_refused_or_returned_does_not_cover_its_original() {
    for (to, fate) in [("retry", Fate::Refused), ("retry", Fate::RefusedButStored), ("none", Fate::Prompt)] {
        let (mut kit, owner, consuming, publishing) = holding();
        kit.broker.decide_fates(owner, [fate]);
        kit.publish_on(publishing, to, "a");
        kit.settle();
        kit.broker.ack(consuming, 1, false);
        kit.settle();
        assert_eq!(kit.rules()[0].1, Rule::AckedTooEarly, "{to} {fate:?}");
    }
}

#[test]
fn a_second_copy_is_reported_unless_the_first_failed() {
    for (fate, is_broken) in [
        (Fate::Prompt, true),
        (Fate::NeverConfirmed, true),
        (Fate::Refused, false),
        (Fate::RefusedButStored, false),
    ] {
        let (mut kit, owner, consuming, publishing) = holding();
        kit.broker.decide_fates(owner, [fate]);
        kit.publish_on(publishing, "retry", "a");
        kit.settle();
        kit.publish_on(publishing, "retry", "a");
        kit.settle();
        kit.broker.ack(consuming, 1, false);
        kit.settle();
        let reported = kit.rules().contains(&("a".to_owned(), Rule::CopiedTwice));
        assert_eq!(reported, is_broken, "{fate:?} {:?}", kit.rules());
        assert!(is_broken || kit.rules().is_empty());
    }
}

#[test]
fn a_copy_may_be_repeated_after_its_connection_was_lost() {
    let (mut kit, owner, consuming, publishing) = holding();
    kit.broker.decide_fates(owner, [Fate::LostWithConnection]);
    kit.publish_on(publishing, "retry", "a");
    kit.settle();
    let publishing = kit.channel(owner, 0);
    kit.publish_on(publishing, "retry", "a");
    kit.settle();
    kit.broker.ack(consuming, 1, false);
    kit.settle();
    assert!(kit.rules().is_empty());
    assert_eq!(kit.broker.forks().get(&Fork::ConfirmLost), Some(&1));
    assert_eq!(kit.broker.depth("retry"), Some((2, 0)));
}

#[test]
fn a_requeue_after_the_confirm_of_the_copy_is_reported() {
    let (mut kit, _, consuming, publishing) = holding();
    kit.publish_on(publishing, "retry", "a");
    kit.settle();
    kit.broker.nack(consuming, 1, false, true);
    kit.settle();
    assert_eq!(kit.rules(), broken(Rule::RequeuedAfterItsCopy));
}

#[test]
fn a_requeue_is_no_broken_rule_if_nothing_waited_for_the_confirm() {
    let (mut kit, _, consuming, publishing) = holding();
    let sequence = kit.publish_on(publishing, "retry", "a");
    kit.now += ms(100);
    kit.broker.poll(kit.now);
    kit.broker.read_confirm(publishing, sequence, true, false);
    kit.broker.nack(consuming, 1, false, true);
    kit.settle();
    assert!(kit.rules().is_empty());
    assert_eq!(kit.broker.forks().get(&Fork::ConfirmLost), Some(&1));
}

#[test]
fn an_original_that_returns_by_a_fault_beside_its_copy_is_a_fork() {
    let (mut kit, owner, consuming, publishing) = holding();
    kit.publish_on(publishing, "retry", "a");
    kit.settle();
    kit.broker.kill_channel(consuming);
    kit.settle();
    assert_eq!(kit.broker.forks().get(&Fork::AckLost), Some(&1));
    // The original runs again and is copied again: both copies may exist.
    let consuming = kit.channel(owner, 1);
    kit.consume(consuming, "work");
    kit.settle();
    kit.publish_on(publishing, "retry", "a");
    kit.settle();
    kit.broker.ack(consuming, 1, false);
    kit.settle();
    assert!(kit.rules().is_empty(), "{:?}", kit.rules());
    assert_eq!(kit.broker.depth("retry"), Some((2, 0)));
}

#[test]
fn a_copy_of_a_lost_delivery_is_a_fork() {
    let (mut kit, _, consuming, publishing) = holding();
    kit.broker.kill_channel(consuming);
    let (_, another) = kit.worker("another", 1);
    kit.consume(another, "work");
    kit.settle();
    kit.publish_on(publishing, "retry", "a");
    kit.settle();
    assert!(kit.rules().is_empty());
    assert_eq!(kit.broker.forks().get(&Fork::LostDelivery), Some(&1));
    kit.broker.ack(another, 1, false);
    kit.settle();
    assert_eq!(
        kit.rules(),
        broken(Rule::AckedTooEarly),
        "the copy of one worker does not cover another's delivery"
    );
}

/// The publish waited for a channel, and its delivery was lost and came again meanwhile.
#[test]
fn a_late_copy_of_a_lost_delivery_is_not_one_of_the_next_delivery() {
    let (mut kit, owner, consuming, publishing) = holding();
    kit.broker.decide_fates(owner, [Fate::Refused]);
    kit.publish_on(publishing, "dead", "a");
    kit.settle();
    let consuming = delivered_again(&mut kit, owner, consuming);
    kit.publish_on(publishing, "retry", "a");
    kit.settle();
    kit.broker.ack(consuming, 1, false);
    kit.settle();
    kit.publish_on(publishing, "dead", "a");
    kit.settle();
    assert!(kit.rules().is_empty(), "{:?}", kit.rules());
    assert_eq!(kit.broker.forks().get(&Fork::LostDelivery), Some(&1));
    kit.publish_on(publishing, "dead", "a");
    kit.settle();
    assert_eq!(kit.rules(), both(Rule::CopiedTwice), "each delivery has its copy");
}

/// Both copies leave after the message was delivered again, one for each delivery.
#[test]
fn the_confirmed_copy_is_that_of_the_delivery_that_is_acked() {
    for fates in [[Fate::NeverConfirmed, Fate::Prompt], [Fate::Prompt, Fate::NeverConfirmed]] {
        let (mut kit, owner, consuming, publishing) = holding();
        let consuming = delivered_again(&mut kit, owner, consuming);
        kit.broker.decide_fates(owner, fates);
        kit.publish_on(publishing, "dead", "a");
        kit.publish_on(publishing, "retry", "a");
        kit.settle();
        kit.broker.ack(consuming, 1, false);
        kit.settle();
        assert!(kit.rules().is_empty(), "{:?}", kit.rules());
        assert_eq!(kit.broker.forks().get(&Fork::LostDelivery), Some(&1));
    }
    let (mut kit, owner, consuming, publishing) = holding();
    kit.broker.decide_fates(owner, [Fate::Prompt]);
    kit.publish_on(publishing, "dead", "a");
    kit.settle();
    let consuming = delivered_again(&mut kit, owner, consuming);
    kit.broker.ack(consuming, 1, false);
    kit.settle();
    assert_eq!(kit.rules()[0].1, Rule::AckedTooEarly, "that copy was published before the delivery");
}

#[test]
fn a_publisher_without_a_confirm_may_publish_again() {
    let mut kit = Kit::new("4.0");
    kit.broker.decide_fates(kit.publisher, [Fate::LostWithConnection]);
    kit.publish("work", "a");
    kit.settle();
    let again = kit.channel(kit.publisher, 0);
    kit.publish_on(again, "work", "a");
    kit.settle();
    assert!(kit.rules().is_empty());
    assert_eq!(kit.broker.forks().get(&Fork::Republished), Some(&1));
}

#[test]
fn a_confirmed_message_that_its_queue_drops_is_reported_as_lost() {
    let arguments = [("x-delivery-limit", garenne_protocol::topology::Arg::Number(0))];
    let mut kit = Kit::with("4.0", vec![queue("work", &arguments)]);
    kit.publish("work", "a");
    let (_, channel) = kit.worker("worker", 1);
    kit.consume(channel, "work");
    kit.settle();
    kit.broker.nack(channel, 1, false, true);
    kit.settle();
    assert_eq!(kit.rules(), broken(Rule::Lost));
}

#[test]
fn a_follow_up_belongs_to_the_delivery_of_its_parent() {
    let follow_up = || {
        let mut publish = message("", "work", "child");
        let headers = BTreeMap::from([(header::PARENT.into(), header::long("a"))]);
        publish.message.properties = publish.message.properties.with_headers(headers.into());
        publish
    };
    let (mut kit, _, _, publishing) = holding();
    kit.broker.publish(publishing, follow_up());
    kit.settle();
    kit.broker.publish(publishing, follow_up());
    kit.settle();
    assert_eq!(kit.rules()[0], ("child".to_owned(), Rule::CopiedTwice));

    let (mut kit, owner, consuming, publishing) = holding();
    kit.broker.publish(publishing, follow_up());
    kit.settle();
    delivered_again(&mut kit, owner, consuming);
    kit.broker.publish(publishing, follow_up());
    kit.settle();
    assert!(kit.rules().is_empty(), "{:?}", kit.rules());
    assert_eq!(kit.broker.forks().get(&Fork::Repeated), Some(&1));
}

#[test]
fn a_task_can_end_without_an_effect() {
    let (mut kit, _, consuming, _) = holding();
    kit.broker.ended("a", "stopped by an operator");
    kit.broker.ack(consuming, 1, false);
    kit.settle();
    assert!(kit.rules().is_empty());
    assert!(kit.broker.unfinished().is_empty());
}

#[test]
fn the_trace_has_a_line_for_each_operation_and_event() {
    let (mut kit, _, consuming, publishing) = holding();
    kit.broker.remark(|| "step 1: the handler fails".to_owned());
    kit.publish_on(publishing, "retry", "a");
    kit.settle();
    kit.broker.ack(consuming, 1, false);
    kit.settle();
    let trace = kit.broker.trace().join("\n");
    for expected in [
        "publisher connects as Publisher: connection 0",
        "worker channel 1 consumes work as consumer 1, prefetch 1",
        "a (m0) is delivered from work to worker channel 1 as tag 1",
        "step 1: the handler fails",
        "worker channel 2 publishes number 1: a (m1, instance 2) (fate: Prompt)",
        "worker channel 2 reads the ack of number 1",
        "worker channel 1 acks tag 1",
        "a (m0) is gone from work: acked",
    ] {
        assert!(trace.contains(expected), "{expected} in\n{trace}");
    }
}

#[test]
fn what_a_worker_holds_of_a_deleted_queue_must_end_or_be_published_again() {
    let deleted = || {
        let (mut kit, owner, consuming, publishing) = holding();
        kit.broker.delete_queue("work");
        (kit, owner, consuming, publishing)
    };
    let (mut kit, owner, _, publishing) = deleted();
    kit.settle();
    assert_eq!(kit.broker.unfinished().len(), 1, "the worker knows of the deletion");
    kit.broker.declare_queue(&queue("work", &[]));
    kit.publish_on(publishing, "work", "a");
    kit.settle();
    assert_eq!(kit.broker.mishaps().get(&Mishap::Orphaned), Some(&1));
    kit.broker.crash(owner);
    assert_eq!(kit.broker.unfinished().len(), 1, "the copy remains");
    kit.broker.delete_queue("work");
    assert_eq!((kit.broker.unfinished().len(), kit.rules()), (0, vec![]), "the operator has deleted it");

    let (mut kit, _, _, _) = deleted();
    kit.settle();
    kit.broker.effect("a");
    assert_eq!((kit.broker.unfinished().len(), kit.rules()), (0, vec![]), "it ran to its end");

    type Loss = fn(&mut Kit, OwnerId, ChannelId);
    let lost: [(&str, Loss); 3] = [
        ("with the process", |kit, owner, _| {
            kit.settle();
            kit.broker.crash(owner);
        }),
        ("with the channel", |kit, _, consuming| kit.broker.kill_channel(consuming)),
        ("handed back before the worker knew", |kit, _, consuming| {
            kit.broker.nack(consuming, 1, false, true);
        }),
    ];
    for (how, lose) in lost {
        let (mut kit, owner, consuming, _) = deleted();
        lose(&mut kit, owner, consuming);
        kit.settle();
        assert_eq!((kit.broker.unfinished().len(), kit.rules()), (0, vec![]), "{how}");
    }
}
