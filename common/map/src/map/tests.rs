use garenne_protocol::sensor::Reading;

use super::*;

mod limits;
mod loading;
mod no_value;
mod partial;

fn now() -> Timestamp {
    Timestamp::parse("2026-11-24T12:00:00Z").unwrap()
}

fn map(rules: &str) -> Map {
    Map::parse("rules.toml", rules).unwrap()
}

fn apply(rules: &str, topic: &str, payload: &str) -> Result<Mapped, Unmapped> {
    map(rules).apply(Source::Topic(topic), payload.as_bytes(), now(), &Limits::default())
}

/// `device metric value unit time`, with `?` behind a time that is not from the payload.
fn shown(records: &[Record]) -> Vec<String> {
    let show = |record: &Record| {
        let Reading { device, metric, value, unit, time, .. } = &record.reading;
        let unit = unit.map_or("-", |unit| unit.symbol());
        let assumed = if record.time_assumed { "?" } else { "" };
        format!("{device} {metric} {value} {unit} {time}{assumed}")
    };
    records.iter().map(show).collect()
}

fn readings(rules: &str, topic: &str, payload: &str) -> Vec<String> {
    shown(&apply(rules, topic, payload).unwrap().records)
}

fn reason(rules: &str, topic: &str, payload: &str) -> String {
    apply(rules, topic, payload).unwrap_err().to_string()
}

fn refusals(rules: &str, topic: &str, payload: &str) -> Vec<String> {
    apply(rules, topic, payload).unwrap().refused.iter().map(ToString::to_string).collect()
}

fn invalid(rules: &str) -> String {
    Map::parse("rules.toml", rules).unwrap_err().to_string()
}

#[test]
fn a_bare_number_or_word_is_a_reading() {
    let rules = r#"
        [[map]]
        topic = "plant/+/+"
        device = "{1}"
        metric = "{2}"
        enum = { ON = 1, OFF = 0 }
        none = ["unavailable"]
        scale = 2
        offset = 0.5
    "#;
    assert_eq!(readings(rules, "plant/boiler/t", "21.5"), ["boiler t 43.5 - 2026-11-24T12:00:00Z?"]);
    assert_eq!(readings(rules, "plant/boiler/t", "\"-1\""), ["boiler t -1.5 - 2026-11-24T12:00:00Z?"]);
    assert_eq!(readings(rules, "plant/boiler/t", "ON"), ["boiler t 2.5 - 2026-11-24T12:00:00Z?"]);
    assert_eq!(readings(rules, "plant/boiler/t", "false"), ["boiler t 0.5 - 2026-11-24T12:00:00Z?"]);
    assert_eq!(reason(rules, "plant/boiler/t", "on"), "rule 1: value of t: \"on\" is not a number");
    assert_eq!(reason(rules, "plant/boiler/t", "NaN"), "rule 1: value of t: \"NaN\" is not a number");
    assert_eq!(reason(rules, "plant/boiler/t", "1e999"), "rule 1: value of t: \"1e999\" is not a number");
    assert_eq!(reason(rules, "plant/boiler/t", "{}"), "rule 1: value of t: an object is not a number");
    assert_eq!(reason(rules, "plant/boiler/t", "unavailable"), "rule 1: no value is a number");
    assert_eq!(reason(rules, "plant/boiler/t", "  "), "rule 1: no value is a number");
    assert_eq!(reason(rules, "plant/boiler", "1"), "no rule matches");
}

#[test]
fn numbers_below_a_pointer_are_readings() {
    let rules = r#"
        [[map]]
        topic = "d/+"
        device = "{1}"
        values = "/data"
        metric = "x.{name}"
        time = "{/ts}"
        time_formats = ["unix-ms"]
        ignore = ["debug", "/data/c/skip"]
        enum = { ON = 1 }
        [map.fields]
        temp = { metric = "temperature", unit = "Cel", scale = 0.1, offset = -1 }
        "/data/c/temp" = { unit = "K" }
        text = {}
    "#;
    let payload = r#"{"ts": 1763600000250, "data": {"temp": 215, "on": true, "mode": "ON", "word": "eco", "none": null,
        "debug": {"a": 1}, "list": [1, {"b": 2}], "c": {"temp": 300, "skip": 1}, "text": "7"}}"#;
    assert_eq!(
        readings(rules, "d/1", payload),
        [
            "1 temperature 20.5 Cel 2025-11-20T00:53:20.25Z",
            "1 x.on 1 - 2025-11-20T00:53:20.25Z",
            "1 x.mode 1 - 2025-11-20T00:53:20.25Z",
            "1 x.list.0 1 - 2025-11-20T00:53:20.25Z",
            "1 x.list.1.b 2 - 2025-11-20T00:53:20.25Z",
            "1 x.c.temp 300 K 2025-11-20T00:53:20.25Z",
            "1 x.text 7 - 2025-11-20T00:53:20.25Z",
        ]
    );
    let skipped = |payload: &str| {
        let mut skipped = Vec::new();
        let mut note = |what: &str, why: &str| skipped.push(format!("{what}: {why}"));
        let source = Source::Topic("d/1");
        map(rules).explain(source, payload.as_bytes(), now(), &Limits::default(), &mut note).unwrap();
        skipped
    };
    assert_eq!(
        skipped(payload),
        ["word: a text that is not in `enum`", "none: no value", "debug: ignored", "c.skip: ignored"]
    );
    for (payload, expected) in [
        ("{\"ts\": 1}", "rule 1: values: /data is missing"),
        ("{\"ts\": 1, \"data\": 5}", "rule 1: values: /data is 5, expected an object or an array"),
        ("{\"data\": {\"a\": 1}}", "rule 1: time: /ts is missing"),
        ("{\"ts\": true, \"data\": {\"a\": 1}}", "rule 1: time: true is not a Unix time"),
        ("{\"ts\": 1, \"data\": {\"a\": \"x\"}}", "rule 1: no value is a number"),
        ("{\"ts\": 1, \"data\": {\"temp\": \"x\"}}", "rule 1: value of temp: \"x\" is not a number"),
        ("{\"ts\": 1, \"data\"", "rule 1: not JSON: EOF while parsing an object at line 1 column 16"),
        (
            "{\"ts\": 1, \"data\": {\"\\u0007\": 1}}",
            "rule 1: record 0: metric: \"x.\\u{7}\": contains a control character",
        ),
    ] {
        assert_eq!(reason(rules, "d/1", payload), expected, "{payload}");
    }
}

#[test]
fn elements_of_an_array_and_members_of_an_object_have_their_own_device_and_time() {
    let rules = r#"
        [[map]]
        topic = "array"
        each = "/points"
        device = ["{./name}", "dev-{key}"]
        metric = "level"
        value = "{./v}"
        unit = "{./u}"
        units = { Celsius = "Cel", none = "" }
        time = "{./t}"

        [[map]]
        topic = "object"
        each = ""
        device = "{key}"
        values = "."
        ignore = ["id"]

        [[map]]
        topic = "list"
        each = ""
        device = "a"
        metric = "m{key}"
    "#;
    let payload = r#"{"points": [{"name": "a", "v": 1, "u": "Celsius", "t": 0}, {"v": "2", "u": "none", "t": "1970-01-01T00:00:01Z"},
        {"v": 3, "t": 2}]}"#;
    assert_eq!(
        readings(rules, "array", payload),
        [
            "a level 1 Cel 1970-01-01T00:00:00Z",
            "dev-1 level 2 - 1970-01-01T00:00:01Z",
            "dev-2 level 3 - 1970-01-01T00:00:02Z",
        ]
    );
    assert_eq!(
        readings(rules, "object", r#"{"k1": {"a": 1, "id": 5}, "k2": {"a": 2}}"#),
        ["k1 a 1 - 2026-11-24T12:00:00Z?", "k2 a 2 - 2026-11-24T12:00:00Z?"]
    );
    assert_eq!(
        readings(rules, "list", "[1, 2]"),
        ["a m0 1 - 2026-11-24T12:00:00Z?", "a m1 2 - 2026-11-24T12:00:00Z?"]
    );
    assert_eq!(
        reason(rules, "object", r#"{"k1": 1}"#),
        "rule 2: values: the element is 1, expected an object or an array"
    );
    let unknown = r#"{"points": [{"v": 1, "u": "celsius", "t": 0}]}"#;
    assert!(
        reason(rules, "array", unknown)
            .starts_with("rule 1: record 0: unit: \"celsius\" is not a SenML unit; the nearest")
    );
}

#[test]
fn the_first_rule_whose_pattern_and_conditions_match_counts() {
    let rules = r#"
        [[map]]
        topic = "s/+/skip"
        skip = true

        [[map]]
        topic = "s/+/rpc"
        has = ["/params"]
        equals = { "/method" = "Notify", "/v" = 2, "/ok" = true }
        device = "{1}"
        metric = "m"
        value = "{/params}"

        [[map]]
        topic = "s/#"
        device = "rest"
        metric = "m"
        value = 7

        [[map]]
        device = "default"
        metric = "m"
    "#;
    let rule = |topic: &str, payload: &str| {
        apply(rules, topic, payload).map(|mapped| (mapped.rule, mapped.records.len()))
    };
    assert_eq!(rule("s/1/skip", "{"), Ok((1, 0)));
    assert_eq!(rule("s/1/rpc", r#"{"method": "Notify", "v": 2, "ok": true, "params": 1}"#), Ok((2, 1)));
    assert_eq!(rule("s/1/rpc", r#"{"method": "Notify", "v": 2.0, "ok": true, "params": 1}"#), Ok((2, 1)));
    assert_eq!(rule("s/1/rpc", r#"{"method": "Notify", "v": 3, "ok": true, "params": 1}"#), Ok((3, 1)));
    assert_eq!(rule("s/1/rpc", r#"{"method": "Notify", "v": 2, "ok": true}"#), Ok((3, 1)));
    assert_eq!(readings(rules, "s/1", "{}"), ["rest m 7 - 2026-11-24T12:00:00Z?"]);
    assert_eq!(readings(rules, "other", "1"), ["default m 1 - 2026-11-24T12:00:00Z?"]);
    assert_eq!(map(rules).pattern(2), "topic \"s/+/rpc\"");
    assert_eq!(map(rules).pattern(4), "every source");
}

#[test]
fn paths_and_routing_keys_match_their_own_patterns_and_topics_with_dots() {
    let rules = map(r#"
        [[map]]
        topic = "a/+/c.d"
        path = "/in/+"
        routing_key = "k.+"
        device = "{1}"
        metric = "m"
    "#);
    let device = |source| {
        let mapped = rules.apply(source, b"1", now(), &Limits::default()).ok()?;
        Some(mapped.records[0].reading.device.to_string())
    };
    assert_eq!(device(Source::Topic("a/x.y/c.d")).as_deref(), Some("x.y"));
    assert_eq!(device(Source::Path("/in/x")).as_deref(), Some("x"));
    assert_eq!(device(Source::RoutingKey("k.x")).as_deref(), Some("x"));
    assert_eq!(device(Source::RoutingKey("a.x.c.d")).as_deref(), Some("x"));
    for source in [Source::Topic("k.x"), Source::Path("a/x/c.d"), Source::RoutingKey("a/x/c.d")] {
        assert_eq!(device(source), None, "{source}");
    }
}

#[test]
fn an_id_of_the_payload_gives_each_reading_an_id_that_a_repeat_has_too() {
    let rules = r#"
        [[map]]
        topic = "t"
        device = "d"
        id = "{/seq}"
        values = ""
        ignore = ["seq"]
    "#;
    let ids = |payload: &str| -> Vec<_> {
        apply(rules, "t", payload).unwrap().records.into_iter().map(|record| record.id).collect()
    };
    let first = ids(r#"{"seq": 5, "a": 1, "b": 2}"#);
    assert_eq!(first, ids(r#"{"b": 3, "seq": "5", "a": 1}"#).into_iter().rev().collect::<Vec<_>>());
    assert_ne!(first[0], first[1]);
    assert_ne!(first, ids(r#"{"seq": 6, "a": 1, "b": 2}"#));
    assert_eq!(first[0].as_ref().unwrap().len(), 36);
    assert_eq!(ids(r#"{"a": 1}"#), [None]);
}

#[test]
fn readings_that_the_rule_names_may_be_optional() {
    let rules = r#"
        [[map]]
        topic = "t"
        device = "d"
        time = "{/t}"
        time_or_now = true
        [[map.reading]]
        metric = "a"
        value = "{/a}"
        unit = "V"
        [[map.reading]]
        metric = "b"
        value = ["{/b}", "{/c}"]
        scale = 10
        optional = true
    "#;
    assert_eq!(
        readings(rules, "t", r#"{"a": 1, "c": 2, "t": 0}"#),
        ["d a 1 V 1970-01-01T00:00:00Z", "d b 20 - 1970-01-01T00:00:00Z"]
    );
    assert_eq!(readings(rules, "t", r#"{"a": 1, "b": "x", "t": "noon"}"#), ["d a 1 V 2026-11-24T12:00:00Z?"]);
    assert_eq!(readings(rules, "t", r#"{"b": 1}"#), ["d b 10 - 2026-11-24T12:00:00Z?"]);
    assert_eq!(refusals(rules, "t", r#"{"b": 1}"#), ["record 0: a: value: /a is missing"]);
    assert_eq!(reason(rules, "t", r#"{"c": null}"#), "rule 1: value: /a is missing");
}

#[test]
fn times_ahead_and_values_beyond_a_double_are_refused() {
    let rules = r#"
        [[map]]
        device = "d"
        metric = "m"
        value = "{/v}"
        scale = 1e300
        time = "{/t}"
    "#;
    let limits = Limits { max_ahead: Some(std::time::Duration::from_secs(60)), ..Limits::default() };
    let refused = |payload: &str| {
        let source = Source::Path("/");
        map(rules).apply(source, payload.as_bytes(), now(), &limits).unwrap_err().to_string()
    };
    let ahead = refused(r#"{"v": 1, "t": "2026-11-24T12:01:01Z"}"#);
    assert!(ahead.contains("is more than 1m ahead of the local clock"), "{ahead}");
    assert!(refused(r#"{"v": 1e10, "t": 0}"#).ends_with("is not finite after scale and offset"));
}

#[test]
fn a_time_before_min_time_is_refused_with_the_unit_that_was_probably_meant() {
    let rules = |formats: &str| {
        format!(
            "[[map]]\ndevice = \"d\"\nmetric = \"m\"\nvalue = \"{{/v}}\"\ntime = \"{{/t}}\"\n\
             time_formats = [{formats}]\n"
        )
    };
    let limits = Limits::of_times(std::time::Duration::ZERO, Timestamp::DEFAULT_MIN);
    for (format, time, hint) in [
        ("\"unix-ms\"", "1711190482", "; did you mean seconds?"),
        ("\"unix-ns\"", "1711190482000", "; did you mean milliseconds?"),
        ("\"unix\"", "0", "; is the sender's clock set?"),
        ("\"rfc3339\"", "\"1989-12-31T23:59:59Z\"", ""),
    ] {
        let payload = format!(r#"{{"v":1,"t":{time}}}"#);
        let refused =
            map(&rules(format)).apply(Source::Path("/"), payload.as_bytes(), now(), &limits).unwrap_err();
        let text = refused.to_string();
        assert!(
            text.contains(" is before min_time (1990-01-01T00:00:00Z)") && text.ends_with(hint),
            "{text}"
        );
    }
}

#[test]
fn reasons_have_codes() {
    assert_eq!(apply("[[map]]\ntopic = \"a\"\nskip = true", "b", "").unwrap_err().reason.code(), "no-rule");
    assert_eq!(Reason::UnknownAlias { alias: 1, node: String::new() }.code(), "unknown-alias");
}

#[test]
fn a_map_says_which_values_are_those_of_counters() {
    let rules = |lines: &str| format!("[[map]]\ntopic = \"m/+\"\ndevice = \"{{1}}\"\nvalues = \"\"\n{lines}");
    let counters = |lines: &str| {
        let mapped = apply(&rules(lines), "m/d", r#"{"pulses":40,"power":2}"#).unwrap();
        let counter = |record: &Record| {
            record.reading.counter.as_deref().map(|sent| (sent.wraps_at, sent.max_per_hour))
        };
        mapped.records.iter().map(counter).collect::<Vec<_>>()
    };
    let pulses = "[map.fields.pulses]\nscale = 0.5\ncounter = true\nwraps_at = 65536\nmax_per_hour = 12";
    assert_eq!(counters(pulses), [Some((Some(32_768.0), Some(12.0))), None]);
    assert_eq!(counters("counter = true\n[map.fields.power]\ncounter = false"), [Some((None, None)), None]);
    assert_eq!(counters(""), [None, None]);
    for (lines, problem) in [
        ("wraps_at = 5", "wraps_at and max_per_hour: only allowed with counter = true"),
        ("counter = true\nwraps_at = 0", "wraps_at: 0; expected a finite number above 0"),
        ("counter = true\nmax_per_hour = -1", "max_per_hour: -1; expected a finite number above 0"),
        ("counter = true\noffset = 1", "counter: only a scale above 0 is allowed, without offset"),
        ("counter = true\nscale = -1", "counter: only a scale above 0 is allowed, without offset"),
    ] {
        let error = invalid(&rules(lines));
        assert!(error.ends_with(problem), "{error}");
    }
}
