//! No input makes a map panic, and what comes out is valid.

use garenne_map::{Map, Source, builtin::BUILTIN};
use garenne_protocol::sensor::{Limits, Timestamp, readings_from};
use proptest::{collection::vec, prelude::*};

/// Rules with everything that a rule can have.
const RULES: &str = r#"
    [[map]]
    topic = "a/+/#"
    routing_key = "r.+"
    has = ["/x/0"]
    has_any = ["/k", "/x"]
    equals = { "/k" = 1 }
    each = "/x"
    device = ["{./d}", "{1}", "fixed"]
    values = "."
    values_if = ["./v", "/k"]
    unit = "{./u}"
    time = ["{./t}", "{/t}"]
    time_formats = ["rfc3339", "unix-ms", "%d.%m.%Y %H:%M:%S"]
    zone = "Europe/Berlin"
    id = "{/id}-{key}"
    ignore = ["i", "/x/0/j"]
    none = ["n/a", 65535]
    enum = { ON = 1 }
    units = { C = "Cel" }
    [map.fields]
    f = { metric = "renamed.{name}", scale = 1e300, offset = -1 }
    [[map.reading]]
    metric = "{key}"
    value = ["{./v}", "{key}"]
    optional = true

    [[map]]
    device = "d"
    values = ""
    allow_empty = true
"#;

fn maps() -> Vec<Map> {
    let shipped = BUILTIN.iter().map(|map| Map::load(&format!("builtin:{}", map.name)).unwrap());
    shipped.chain([Map::parse("rules", RULES).unwrap()]).collect()
}

/// Sources that the rules of some map match, and others.
fn source() -> impl Strategy<Value = String> {
    let known = [
        "zigbee2mqtt/a",
        "zigbee2mqtt/a/availability",
        "tele/a/SENSOR",
        "tele/a/STATE",
        "a/events/rpc",
        "a/status/b",
        "homeassistant/sensor/a/state",
        "v3/a/devices/b/up",
        "application/a/device/b/event/up",
        "spBv1.0/g/NBIRTH/n",
        "spBv1.0/g/NDATA/n",
        "spBv1.0/g/NDEATH/n",
        "spBv1.0/g/DBIRTH/n/d",
        "spBv1.0/g/DDATA/n/d",
        "spBv1.0/g/DDEATH/n/d",
        "a/b/c",
        "r.x",
    ];
    prop_oneof![proptest::sample::select(known.to_vec()).prop_map(str::to_owned), ".{0,40}"]
}

/// Documents with the keys that the rules look for.
fn json() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::{Value, json};
    let keys = [
        "x",
        "k",
        "d",
        "u",
        "t",
        "v",
        "f",
        "i",
        "j",
        "id",
        "a",
        "ZbReceived",
        "params",
        "method",
        "ts",
        "src",
        "uplink_message",
        "decoded_payload",
        "received_at",
        "deviceInfo",
        "devEui",
        "rxInfo",
        "object",
        "time",
    ];
    let texts = [
        "ON",
        "n/a",
        "C",
        "noon",
        "NaN",
        "1e400",
        "2026-11-24T10:00:00Z",
        "24.11.2026 10:00:00",
        "NotifyStatus",
    ];
    let key = prop_oneof![proptest::sample::select(keys.to_vec()).prop_map(str::to_owned), ".{0,6}"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        proptest::sample::select(texts.to_vec()).prop_map(Value::from),
        ".{0,10}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 8, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            vec((key.clone(), inner), 0..8).prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Maps a payload with all maps. Each record can be sent to the gateway.
fn map_all(maps: &[Map], source: &str, payload: &[u8]) {
    let now = Timestamp::UNIX_EPOCH;
    let limits = Limits { records: 50, ..Limits::default() };
    for map in maps {
        for source in [Source::Topic(source), Source::Path(source), Source::RoutingKey(source)] {
            match map.apply(source, payload, now, &limits) {
                Ok(mapped) => {
                    assert!(mapped.records.len() <= 50 && !map.pattern(mapped.rule).is_empty());
                    for record in mapped.records {
                        let json = serde_json::to_vec(&record.reading).unwrap();
                        let parsed = readings_from("", &json, now).unwrap();
                        assert_eq!(parsed[0].reading, record.reading);
                    }
                }
                Err(unmapped) => assert!(!unmapped.to_string().contains('\n'), "{unmapped}"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_json_gives_valid_readings_or_a_reason(source in source(), document in json()) {
        map_all(&maps(), &source, document.to_string().as_bytes());
    }

    #[test]
    fn any_bytes_give_valid_readings_or_a_reason(
        source in source(),
        payloads in vec(vec(any::<u8>(), 0..64), 1..4),
    ) {
        let maps = maps();
        // The same maps, because Sparkplug births change what follows.
        for payload in payloads {
            map_all(&maps, &source, &payload);
        }
    }

    #[test]
    fn any_rule_file_is_compiled_or_refused_on_one_line(
        topic in "[a+#/.{}]{0,8}",
        template in "[{}/.~a1key]{0,12}",
        pointer in "[/.~a01]{0,8}",
        format in "[%YmdHMSzs fT:.]{0,12}",
    ) {
        let rule = format!(
            "[[map]]\ntopic = {topic:?}\ndevice = {template:?}\nvalues = {pointer:?}\ntime = {template:?}\ntime_formats = [{format:?}]\nzone = \"Z\"\n"
        );
        match Map::parse("rules", &rule) {
            Ok(map) => map_all(&[map], "a/a", br#"{"a":{"1":"1","a":[2]}}"#),
            Err(error) => prop_assert!(!error.to_string().contains('\n'), "{error}"),
        }
    }
}
