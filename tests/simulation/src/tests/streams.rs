//! Streams.

use super::kit::*;
use crate::*;

fn stream() -> Kit {
    let arguments = [("x-queue-type", text("stream")), ("x-max-age", text("1D"))];
    Kit::with("4.0", vec![queue("log", &arguments)])
}

fn read(kit: &mut Kit, channel: ChannelId, offset: StreamOffset) {
    let options = ConsumeOptions { offset, ..Default::default() };
    kit.broker.at(kit.now).consume(channel, "log", options);
}

fn offsets(events: &[Event], channel: ChannelId) -> Vec<i64> {
    deliveries(events, channel).iter().map(|it| it.offset.unwrap()).collect()
}

#[test]
fn a_stream_is_read_from_its_beginning_by_many_and_keeps_its_records() {
    let mut kit = stream();
    (0..5).for_each(|n| kit.send("log", n));
    let (_, first) = kit.worker("a", 3);
    let (_, second) = kit.worker("b", 10);
    read(&mut kit, first, StreamOffset::First);
    read(&mut kit, second, StreamOffset::At(3));
    let events = kit.settle();
    assert_eq!((offsets(&events, first), offsets(&events, second)), (vec![0, 1, 2], vec![3, 4]));
    let properties = deliveries(&events, first)[0].properties();
    let offset = garenne_protocol::task::header::get(properties.headers(), "x-stream-offset");
    assert_eq!(offset.and_then(garenne_protocol::task::header::integer), Some(0));
    kit.broker.ack(first, 1, false);
    kit.publish("log", "5");
    let events = kit.settle();
    assert_eq!(
        (offsets(&events, first), offsets(&events, second)),
        (vec![3], vec![5]),
        "an ack gives credit"
    );
    assert_eq!(kit.broker.depth("log"), Some((6, 0)));
}

#[test]
fn old_records_go_and_offsets_stay() {
    let mut kit = stream();
    kit.publish("log", "old");
    kit.pass(ms(86_400_001));
    kit.publish("log", "new");
    let (_, channel) = kit.worker("a", 3);
    read(&mut kit, channel, StreamOffset::First);
    assert_eq!(offsets(&kit.settle(), channel), [1]);
}

#[test]
fn a_stream_survives_a_restart_and_not_its_deletion() {
    let mut kit = stream();
    kit.publish("log", "a");
    kit.broker.restart(ms(100));
    kit.pass(ms(200));
    let (_, channel) = kit.worker("a", 3);
    read(&mut kit, channel, StreamOffset::First);
    assert_eq!(offsets(&kit.settle(), channel), [0]);
    kit.broker.delete_queue("log");
    let events = kit.settle();
    assert!(matches!(events[..], [Event::ConsumerCancelled { .. }]), "{events:?}");
    read(&mut kit, channel, StreamOffset::First);
    assert_eq!(close_code(&kit.settle(), channel), Some(404));
}

#[test]
fn a_reader_needs_a_prefetch() {
    let mut kit = stream();
    let (_, channel) = kit.worker("a", 0);
    read(&mut kit, channel, StreamOffset::First);
    assert_eq!(close_code(&kit.settle(), channel), Some(406));
}

#[test]
fn a_reader_of_what_comes_next_sees_nothing_older() {
    let mut kit = stream();
    kit.publish("log", "a");
    kit.settle();
    let (_, channel) = kit.worker("a", 5);
    read(&mut kit, channel, StreamOffset::Next);
    kit.publish("log", "b");
    assert_eq!(offsets(&kit.settle(), channel), [1]);
}
