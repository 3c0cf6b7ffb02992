use garenne_common::config::{Lane, Lanes};
use garenne_protocol::task::header::long;
use lapin::types::{AMQPValue, FieldTable};

use super::*;
use garenne_operator::settings::FleetSettings;

fn properties(kind: &str, headers: &[(&str, AMQPValue)]) -> BasicProperties {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert((*name).into(), value.clone());
    }
    BasicProperties::default().with_message_id("7".into()).with_type(kind.into()).with_headers(table)
}

fn copied(properties: &BasicProperties) -> Result<Message, String> {
    // Without a catch-all lane.
    let all = Lanes::default();
    let bound = all.defined().filter(|(_, lane)| !lane.catch_all);
    let lanes = bound.map(|(name, lane)| (name.to_owned(), lane.clone())).collect();
    copied_with(properties, FleetSettings { lanes, ..FleetSettings::default() })
}

fn copied_with(properties: &BasicProperties, settings: FleetSettings) -> Result<Message, String> {
    let operator = Operator::new(settings).unwrap();
    let letter = DeadLetter::of("garenne.dead", properties, 2);
    copy(&operator, HeldQueue::Dead, &UnboundLanes::default(), &letter, properties, b"{}".to_vec())
}

fn target(properties: &BasicProperties) -> Result<(String, String), String> {
    copied(properties).map(|it| (it.target.exchange, it.target.routing_key))
}

fn to(exchange: &str, key: &str) -> Result<(String, String), String> {
    Ok((exchange.to_owned(), key.to_owned()))
}

#[test]
fn a_copy_goes_to_the_queue_of_its_lane() {
    let from = |kind: &str, lane: &str| target(&properties(kind, &[(header::LANE, long(lane))]));
    assert_eq!(target(&properties("alert.notify", &[])), to("", "garenne.tasks.slow"));
    assert_eq!(from("alert.notify", "fast"), to("", "garenne.tasks.slow"));
    assert_eq!(from("unbound", "fast"), to("", "garenne.tasks.fast"));
    assert_eq!(from("alert.notify", "no-such-lane"), to("", "garenne.tasks.slow"));
    assert_eq!(
        target(&properties("unbound", &[("x-first-death-queue", long("garenne.retry.slow.5s"))])),
        to("", "garenne.tasks.slow")
    );
}

#[test]
fn a_copy_of_an_unbound_kind_goes_to_the_catch_all_lane() {
    let key = |properties: &BasicProperties| {
        let copy = copied_with(properties, FleetSettings::default());
        copy.map(|copy| copy.target.routing_key)
    };
    assert_eq!(key(&properties("unbound", &[])).unwrap(), "garenne.tasks.default");
    let from_fast = properties("unbound", &[(header::LANE, long("fast"))]);
    assert_eq!(key(&from_fast).unwrap(), "garenne.tasks.fast");
    let without_kind = BasicProperties::default().with_message_id("7".into());
    assert_eq!(key(&without_kind).unwrap_err(), "it has neither a kind nor a lane");
}

#[test]
fn a_copy_without_a_known_lane_goes_to_the_tasks_exchange_without_internal_headers() {
    let in_an_hour = epoch_ms(SystemTime::now()) + 3_600_000;
    let letter = properties(
        "unbound",
        &[
            (header::LANE, long("elsewhere")),
            (header::DEPTH, AMQPValue::LongUInt(3)),
            (header::EXPIRES_AT, AMQPValue::LongLongInt(in_an_hour)),
            ("mine", long("kept")),
        ],
    );
    assert_eq!(target(&letter), to("garenne.tasks", "unbound"));
    let copy = copied(&letter).unwrap();
    let headers = copy.properties.headers().as_ref().unwrap();
    let names: Vec<_> = headers.inner().keys().map(|name| name.as_str()).collect();
    assert_eq!(names, ["mine"]);
    let left: i64 = copy.properties.expiration().as_ref().unwrap().as_str().parse().unwrap();
    assert!((3_590_000..=3_600_000).contains(&left), "{left}");
}

#[test]
fn a_dead_letter_that_cannot_be_published_has_a_reason() {
    let why = |properties: &BasicProperties| copied(properties).map(|_| ()).unwrap_err();
    assert_eq!(
        why(&BasicProperties::default().with_message_id("7".into())),
        "it has neither a kind nor a lane"
    );
    let death = |key: &str| {
        let mut death = FieldTable::default();
        death.insert("routing-keys".into(), AMQPValue::FieldArray(vec![long(key)].into()));
        let deaths = AMQPValue::FieldArray(vec![AMQPValue::FieldTable(death)].into());
        let mut table = FieldTable::default();
        table.insert("x-death".into(), deaths);
        BasicProperties::default().with_headers(table)
    };
    assert_eq!(why(&death(&"k".repeat(256))), "its kind has 256 bytes, the limit is 255");
}

#[test]
fn a_payload_that_no_map_takes_is_not_replayed_as_a_task() {
    let unmapped = properties("mqtt.message", &[(header::REASON, long("unmapped"))]);
    let why = copied_with(&unmapped, FleetSettings::default()).map(|_| ()).unwrap_err();
    assert!(why.contains("garenne-producer map publish"), "{why}");
}

/// A fleet with a lane for RabbitMQ's MQTT plugin.
fn with_mqtt_lane() -> FleetSettings {
    let mapped = Lane { maps: vec!["site.toml".to_owned()], ..Lane::default() };
    let lanes = [("mqtt".to_owned(), mapped), ("slow".to_owned(), Lane::bound_to(["alert.#"]))];
    FleetSettings { lanes: lanes.into_iter().collect(), ..FleetSettings::default() }
}

#[test]
fn an_unmapped_message_of_a_lane_with_maps_is_mapped_again() {
    let letter = properties(
        FOREIGN_KIND,
        &[
            (header::REASON, long("unmapped")),
            (header::LANE, long("mqtt")),
            (header::SOURCE, long("topic:n/a")),
            (header::FIRST_SEEN, AMQPValue::LongLongInt(7)),
        ],
    );
    let copy = copied_with(&letter, with_mqtt_lane()).unwrap();
    assert_eq!((copy.target.exchange.as_str(), copy.target.routing_key.as_str()), ("", "garenne.tasks.mqtt"));
    assert!(is_foreign_copy(&copy.properties));
    assert!(copied_with(&letter, FleetSettings::default()).is_err(), "its lane is unknown");
}

#[test]
fn a_message_that_expired_in_a_lane_with_maps_does_not_become_the_task_that_its_sender_wants() {
    let mut death = FieldTable::default();
    death.insert("routing-keys".into(), AMQPValue::FieldArray(vec![long("alert.notify")].into()));
    let deaths = AMQPValue::FieldArray(vec![AMQPValue::FieldTable(death)].into());
    let headers = [
        ("x-death", deaths),
        ("x-first-death-reason", long("expired")),
        ("x-first-death-queue", long("garenne.tasks.mqtt")),
        (header::LANE, long("slow")),
        (header::SOURCE, long("topic:forged")),
    ];
    for sent in [properties("alert.notify", &headers), properties(FOREIGN_KIND, &headers)] {
        let copy = copied_with(&sent, with_mqtt_lane()).unwrap();
        assert_eq!(copy.target.routing_key, "garenne.tasks.mqtt");
        assert!(is_foreign_copy(&copy.properties));
        let headers = copy.properties.headers();
        let source = header::get(headers, header::SOURCE).and_then(header::text);
        assert_eq!(source.as_deref(), Some("topic:alert/notify"));
        assert_eq!(header::get(headers, header::LANE), None);
    }
}

#[test]
fn headers_that_are_too_large_are_left_out_of_the_copy() {
    let large = properties("bench.noop", &[("large", long(&"x".repeat(131_000))), ("small", long("kept"))]);
    let copy = copied(&large).unwrap().properties;
    let headers = copy.headers().as_ref().unwrap().inner();
    assert!(headers.contains_key("small") && !headers.contains_key("large"), "{headers:?}");
    assert!(headers.contains_key(header::DROPPED) && headers.contains_key(header::DROPPED_BYTES));
}

#[test]
fn copies_of_equal_messages_without_an_id_have_ids_with_an_equal_first_half() {
    let id = |count: u32, body: &[u8]| {
        let mut table = FieldTable::default();
        table.insert("x-delivery-count".into(), AMQPValue::LongUInt(count));
        new_id(&BasicProperties::default().with_headers(table), body)
    };
    let (first, again, other) = (id(1, b"{}"), id(2, b"{}"), id(1, b"[]"));
    assert_ne!(first, again);
    assert_eq!(first[..33], again[..33]);
    assert_ne!(first[..33], other[..33]);
}

#[test]
fn an_unroutable_message_is_published_again_as_it_was_sent() {
    let lanes: Lanes = [("fast".to_owned(), Lane::bound_to(["import.#"]))].into_iter().collect();
    let operator = Operator::new(FleetSettings { lanes, ..FleetSettings::default() }).unwrap();
    let sent = properties(
        "other.kind",
        &[
            ("mine", long("kept")),
            (header::GROUP, long("import-7")),
            (header::DELAY_MS, AMQPValue::LongUInt(5)),
            (header::ATTEMPT, AMQPValue::LongUInt(3)),
            ("x-death", AMQPValue::FieldArray(Vec::new().into())),
        ],
    );
    let sent = sent.with_expiration("60000".into()).with_user_id("sender".into());
    let copied = |key: &str| {
        let message = DeadLetter::unroutable(key, &sent, 2);
        copy(&operator, HeldQueue::Unroutable, &UnboundLanes::default(), &message, &sent, b"{}".to_vec())
    };
    let copy = copied("import.csv").unwrap();
    let target = (copy.target.exchange.as_str(), copy.target.routing_key.as_str());
    assert_eq!(target, ("garenne.tasks", "import.csv"));
    let again = copy.properties;
    let headers = again.headers().as_ref().unwrap().inner();
    let names: Vec<_> = headers.keys().map(|name| name.as_str()).collect();
    assert_eq!(names, ["garenne-delay-ms", "garenne-group", "mine"]);
    assert_eq!(again.kind().as_ref().unwrap().as_str(), "other.kind");
    assert_eq!(again.message_id().as_ref().unwrap().as_str(), "7");
    assert_eq!((again.expiration(), again.user_id()), (&Some("60000".into()), &None));
    assert_eq!(
        copied("unbound").unwrap_err(),
        "no lane of the settings (--config) takes the routing key \"unbound\""
    );
}
