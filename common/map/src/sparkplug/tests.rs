use garenne_protocol::sensor::{Limits, Reading};
use prost::Message as _;

use super::payload::MetricValue;
use super::*;
use crate::{
    Map, Mapped, Source, Unmapped,
    limits::{MAX_METRICS, MAX_NODE_METRICS, MAX_NODES, MAX_VALUES},
};

fn now() -> Timestamp {
    Timestamp::parse("2026-11-24T12:00:00Z").unwrap()
}

fn map() -> Map {
    Map::load("builtin:sparkplug").unwrap()
}

fn metric(name: &str, alias: u64, datatype: u32, value: MetricValue) -> Metric {
    Metric {
        name: (!name.is_empty()).then(|| name.to_owned()),
        alias: (alias > 0).then_some(alias),
        datatype: (datatype > 0).then_some(datatype),
        value: Some(value),
        ..Metric::default()
    }
}

fn message(timestamp: Option<u64>, metrics: Vec<Metric>) -> Vec<u8> {
    Payload { timestamp, metrics }.encode_to_vec()
}

fn birth(session: u64, metrics: Vec<Metric>) -> Vec<u8> {
    let session = metric(BD_SEQ, 0, 8, MetricValue::Long(session));
    message(Some(1_000), [session].into_iter().chain(metrics).collect())
}

fn apply(map: &Map, topic: &str, payload: &[u8]) -> Result<Mapped, Unmapped> {
    map.apply(Source::Topic(topic), payload, now(), &Limits::default())
}

/// `device metric value time`, with `?` instead of a time that is not from the payload.
fn mapped(map: &Map, topic: &str, payload: &[u8]) -> Vec<String> {
    let records = apply(map, topic, payload).unwrap().records;
    let shown = records.iter().map(|record| {
        let Reading { device, metric, value, time, .. } = &record.reading;
        let time = if record.time_assumed { "?".to_owned() } else { time.to_string() };
        format!("{device} {metric} {value} {time}")
    });
    shown.collect()
}

#[test]
fn births_announce_names_and_aliases_and_are_states() {
    let map = map();
    let metrics = vec![
        metric("inlet/temperature", 1, 10, MetricValue::Double(21.5)),
        metric("Node Control/Rebirth", 2, 11, MetricValue::Boolean(false)),
        metric("count", 3, 3, MetricValue::Int(-5_i32 as u32)),
        metric("firmware", 4, 12, MetricValue::Text("1.2".to_owned())),
        metric("started", 5, 13, MetricValue::Long(1_000)),
    ];
    let node = birth(7, metrics);
    assert_eq!(
        mapped(&map, "spBv1.0/plant/NBIRTH/edge", &node),
        [
            "plant/edge online 1 1970-01-01T00:00:01Z",
            "plant/edge inlet/temperature 21.5 1970-01-01T00:00:01Z",
            "plant/edge count -5 1970-01-01T00:00:01Z",
        ]
    );
    let device = message(Some(2_000), vec![metric("level", 1, 1, MetricValue::Int(0xff))]);
    assert_eq!(
        mapped(&map, "spBv1.0/plant/DBIRTH/edge/tank", &device),
        ["plant/edge/tank online 1 1970-01-01T00:00:02Z", "plant/edge/tank level -1 1970-01-01T00:00:02Z"]
    );
    // Aliases and types of data come from the births; a metric's own time counts more than that of the message.
    let mut late = metric("", 1, 0, MetricValue::Double(22.0));
    late.timestamp = Some(2_500);
    let data = message(Some(3_000), vec![late, metric("count", 0, 0, MetricValue::Int(-6_i32 as u32))]);
    assert_eq!(
        mapped(&map, "spBv1.0/plant/NDATA/edge", &data),
        [
            "plant/edge inlet/temperature 22 1970-01-01T00:00:02.5Z",
            "plant/edge count -6 1970-01-01T00:00:03Z",
        ]
    );
    let data = message(None, vec![metric("", 1, 0, MetricValue::Int(0xfe))]);
    assert_eq!(mapped(&map, "spBv1.0/plant/DDATA/edge/tank", &data), ["plant/edge/tank level -2 ?"]);
}

#[test]
fn a_death_is_a_state_of_the_node_and_its_devices_also_if_it_is_repeated() {
    let map = map();
    apply(&map, "spBv1.0/plant/NBIRTH/edge", &birth(7, vec![])).unwrap();
    for device in ["b", "a"] {
        apply(&map, &format!("spBv1.0/plant/DBIRTH/edge/{device}"), &message(Some(1), vec![])).unwrap();
    }
    let other = birth(6, vec![]);
    assert_eq!(mapped(&map, "spBv1.0/plant/NDEATH/edge", &other), [""; 0], "of an earlier session");
    let death = birth(7, vec![]);
    for _ in 0..2 {
        assert_eq!(
            mapped(&map, "spBv1.0/plant/NDEATH/edge", &death),
            ["plant/edge online 0 ?", "plant/edge/a online 0 ?", "plant/edge/b online 0 ?"]
        );
    }
    assert_eq!(
        mapped(&map, "spBv1.0/plant/DDEATH/edge/a", &message(Some(5_000), vec![])),
        ["plant/edge/a online 0 1970-01-01T00:00:05Z"]
    );
    // The devices of a node's next birth are new.
    apply(&map, "spBv1.0/plant/NBIRTH/edge", &birth(8, vec![])).unwrap();
    assert_eq!(mapped(&map, "spBv1.0/plant/NDEATH/edge", &birth(8, vec![])), ["plant/edge online 0 ?"]);
}

#[test]
fn an_unknown_alias_tells_that_the_birth_was_not_seen() {
    let data = message(Some(1), vec![metric("", 9, 0, MetricValue::Double(1.0))]);
    let error = apply(&map(), "spBv1.0/plant/NDATA/edge", &data).unwrap_err();
    assert_eq!(error.reason.code(), "unknown-alias");
    assert_eq!(
        error.to_string(),
        "rule 2: metric alias 9 of \"plant/edge\" is unknown; its birth was not seen, request a rebirth"
    );
}

#[test]
fn null_and_not_finite_values_are_left_out() {
    let mut null = metric("a", 0, 10, MetricValue::Double(1.0));
    null.is_null = Some(true);
    let nan = metric("b", 0, 9, MetricValue::Float(f32::NAN));
    let long = metric("c", 0, 4, MetricValue::Long(-3_i64 as u64));
    let large = metric("d", 0, 8, MetricValue::Long(u64::MAX));
    let none = Metric { name: Some("e".to_owned()), ..Metric::default() };
    let data = message(Some(0), vec![null, nan, long, large, none]);
    assert_eq!(
        mapped(&map(), "spBv1.0/g/NDATA/n", &data),
        ["g/n c -3 1970-01-01T00:00:00Z", "g/n d 18446744073709552000 1970-01-01T00:00:00Z"]
    );
}

#[test]
fn foreign_topics_and_payloads_are_refused_and_commands_skipped() {
    let refused = |topic: &str, payload: &[u8]| apply(&map(), topic, payload).unwrap_err().to_string();
    assert_eq!(refused("spBv1.0/g/XDATA/n", b""), "rule 2: \"XDATA\" is not a Sparkplug message type");
    assert_eq!(
        refused("spBv1.0/g/NDAT\u{e9}/n", b""),
        "rule 2: \"NDAT\u{e9}\" is not a Sparkplug message type"
    );
    let levels = "rule 2: the source does not have the levels of a Sparkplug topic";
    for topic in ["spBv1.0/g/NDATA/n/d", "spBv1.0/g/DDATA/n", "spBv1.0/g/DDATA/n/d/e"] {
        assert_eq!(refused(topic, b""), levels, "{topic}");
    }
    assert!(refused("spBv1.0/g/NDATA/n", b"{}").starts_with("rule 2: not a Sparkplug B payload: "));
    let unnamed = message(Some(0), vec![metric("", 0, 0, MetricValue::Double(1.0))]);
    assert_eq!(refused("spBv1.0/g/NDATA/n", &unnamed), "rule 2: a metric has no name and no alias");
    let far = message(Some(u64::MAX), vec![]);
    assert_eq!(
        refused("spBv1.0/g/NBIRTH/n", &far),
        "rule 2: time: 18446744073709551615 ms is after the year 9999"
    );
    for topic in ["spBv1.0/g/NCMD/n", "spBv1.0/g/DCMD/n/d", "spBv1.0/STATE/host"] {
        assert_eq!(mapped(&map(), topic, b"text"), [""; 0]);
    }
}

#[test]
fn metrics_of_payloads_and_births_are_limited() {
    let map = map();
    let many = |count: usize| [0x12, 0].repeat(count);
    assert!(Payload::parse(&many(MAX_VALUES)).is_ok());
    assert_eq!(Payload::parse(&many(MAX_VALUES + 1)), Err(Reason::TooManyValues));
    let metrics = |count: usize| -> Vec<_> {
        (0..count).map(|at| metric(&format!("m{at}"), 0, 12, MetricValue::Text(String::new()))).collect()
    };
    // A birth counts as one more than its metrics.
    let half = message(Some(1), metrics(MAX_NODE_METRICS / 2 - 1));
    for device in ["a", "b"] {
        apply(&map, &format!("spBv1.0/g/DBIRTH/n/{device}"), &half).unwrap();
    }
    let error = apply(&map, "spBv1.0/g/DBIRTH/n/c", &message(Some(1), vec![])).unwrap_err();
    assert_eq!(error.reason, Reason::TooManyMetrics);
    assert!(apply(&map, "spBv1.0/g/DBIRTH/n/a", &half).is_ok(), "a repeated birth replaces its metrics");
    let long = message(Some(1), vec![metric(&"x".repeat(129), 0, 12, MetricValue::Text(String::new()))]);
    assert!(matches!(apply(&map, "spBv1.0/g/NBIRTH/n", &long).unwrap_err().reason, Reason::Invalid(_)));
}

#[test]
fn the_node_that_was_used_least_recently_is_forgotten() {
    let known = |map: &Map, node: &str| {
        let data = message(Some(1), vec![metric("", 1, 0, MetricValue::Double(1.0))]);
        apply(map, &format!("spBv1.0/g/NDATA/{node}"), &data).is_ok()
    };
    let map = map();
    let birth = message(Some(1), vec![metric("m", 1, 10, MetricValue::Double(1.0))]);
    for node in 0..MAX_NODES {
        apply(&map, &format!("spBv1.0/g/NBIRTH/n{node}"), &birth).unwrap();
    }
    assert!(known(&map, "n0"), "now n1 is the least recent one");
    apply(&map, "spBv1.0/g/NBIRTH/new", &birth).unwrap();
    assert_eq!(["n0", "n1", "n2", "new"].map(|node| known(&map, node)), [true, false, true, true]);

    let mut nodes = EdgeNodes::default();
    let metrics = (1..MAX_NODE_METRICS).map(|at| metric(&format!("m{at}"), 0, 10, MetricValue::Double(1.0)));
    let payload = Payload { timestamp: None, metrics: metrics.collect() };
    for node in 0..=MAX_METRICS / MAX_NODE_METRICS {
        nodes.announce(&node.to_string(), "", &payload).unwrap();
    }
    assert!(nodes.get("0").is_none() && nodes.get("1").is_some());
}

#[test]
fn a_letter_has_null_in_place_of_the_values_that_became_readings() {
    let map = map();
    let metrics = vec![
        metric("good", 1, 10, MetricValue::Double(21.5)),
        metric("good", 0, 10, MetricValue::Double(22.5)),
    ];
    let (topic, sent) = ("spBv1.0/plant/NBIRTH/edge", birth(7, metrics));
    let mapped = apply(&map, topic, &sent).unwrap();
    let refused: Vec<_> = mapped.refused.iter().map(ToString::to_string).collect();
    assert_eq!((mapped.records.len(), refused.len()), (2, 1), "{refused:?}");
    let rest = map.remainder(Source::Topic(topic), &sent, now(), &Limits::default());
    let letter = Payload::parse(&rest).unwrap();
    let values: Vec<_> =
        letter.metrics.iter().map(|it| (it.given_name().unwrap_or(""), it.value.clone())).collect();
    let expected =
        [(BD_SEQ, Some(MetricValue::Long(7))), ("good", None), ("good", Some(MetricValue::Double(22.5)))];
    assert_eq!(values, expected);
    assert_eq!((letter.metrics[1].is_null, letter.metrics[1].alias), (Some(true), Some(1)));
    assert_eq!(letter.timestamp, Some(1_000));
}
