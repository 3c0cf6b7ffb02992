//! The cost of mapping a payload of 8 metrics, from its bytes to readings, against parsing the same bytes with serde_json.
//!
//! `./dev bench map [--json FILE] [--rounds N]`
//!
//! `…/mapped-to-parsed` is the ratio of the two times. Flat is a payload of Zigbee2MQTT with the shipped map, nested one of
//! a meter with two levels of objects.

// The pool's bench has the same stopwatch and rounds.
#[path = "../../pool/benches/pool/harness.rs"]
mod harness;

use std::{hint::black_box, io};

use garenne_bench::{Rows, number};
use garenne_map::{Map, Source};
use garenne_protocol::sensor::{Limits, Timestamp};
use harness::{Contestant, Watch, compete};

/// Payloads of one measured run.
const PAYLOADS: u64 = 50_000;

const NESTED: &str = r#"{"ts":1763600000250,"meter":{"phase":{"voltage":230.1,"current":1.25,"frequency":50.02},
    "power":{"active":287.6,"reactive":12.5,"factor":0.97},"energy":{"import":1234.56,"export":0.0}}}"#;

const NESTED_RULES: &str = r#"
    [[map]]
    topic        = "site/+/meter"
    device       = "{1}"
    values       = "/meter"
    time         = "{/ts}"
    time_formats = ["unix-ms"]

    [map.fields]
    voltage   = { unit = "V" }
    current   = { unit = "A" }
    frequency = { unit = "Hz" }
    active    = { unit = "W" }
    reactive  = { unit = "var" }
    import    = { unit = "kWh" }
    export    = { unit = "kWh" }
"#;

const FLAT: &str = r#"{"temperature":21.53,"humidity":55.2,"pressure":1013.4,"battery":97,"voltage":2985,"linkquality":120,
    "contact":true,"power_outage_count":3,"last_seen":"2026-11-24T12:00:00+01:00"}"#;

fn mapped(name: &str, map: Map, topic: &'static str, payload: &'static str) -> Contestant {
    let now = Timestamp::from_unix_seconds(1.79e9).expect("a time");
    let limits = Limits::default();
    let run = move || {
        let watch = Watch::start();
        for _ in 0..PAYLOADS {
            let payload = black_box(payload).as_bytes();
            let mapped = map.apply(Source::Topic(black_box(topic)), payload, now, &limits).expect("a rule");
            assert_eq!(mapped.records.len(), 8);
        }
        watch.stop()
    };
    Contestant::new(name, PAYLOADS, run)
}

fn parsed(name: &str, payload: &'static str) -> Contestant {
    let run = move || {
        let watch = Watch::start();
        for _ in 0..PAYLOADS {
            let value: serde_json::Value =
                serde_json::from_slice(black_box(payload).as_bytes()).expect("JSON");
            black_box(value);
        }
        watch.stop()
    };
    Contestant::new(name, PAYLOADS, run)
}

fn main() -> io::Result<()> {
    let rounds = number("--rounds", 10).map_err(io::Error::other)?;
    let mut rows = Rows::default();
    let nested = Map::parse("nested", NESTED_RULES).map_err(io::Error::other)?;
    let flat = Map::load("builtin:zigbee2mqtt").map_err(io::Error::other)?;
    let contestants = vec![
        mapped("map/nested/mapped", nested, "site/meter-1/meter", NESTED),
        parsed("map/nested/parsed", NESTED),
        mapped("map/flat/mapped", flat, "zigbee2mqtt/kitchen", FLAT),
        parsed("map/flat/parsed", FLAT),
    ];
    compete(contestants, rounds, "", &mut rows);
    for form in ["nested", "flat"] {
        let [mapped, parsed] = ["mapped", "parsed"].map(|way| format!("map/{form}/{way}"));
        rows.compare(format!("map/{form}/mapped-to-parsed"), &mapped, &parsed);
    }
    rows.publish()
}
