//! The shipped maps and the payloads of `fixtures`.

use garenne_map::{Map, Mapped, Source, Unmapped, builtin::BUILTIN};
use garenne_protocol::sensor::{Limits, Reading, Timestamp};

macro_rules! fixture {
    ($name:literal) => {
        include_bytes!(concat!("fixtures/", $name, ".json"))
    };
}

fn apply(map: &str, source: Source<'_>, payload: &[u8]) -> Result<Mapped, Unmapped> {
    let map = Map::load(&format!("builtin:{map}")).unwrap();
    map.apply(source, payload, Timestamp::parse("2026-11-24T12:00:00Z").unwrap(), &Limits::default())
}

/// `device metric value unit time`, with `?` instead of a time that is not from the payload.
fn mapped(map: &str, source: Source<'_>, payload: &[u8]) -> Vec<String> {
    let records = apply(map, source, payload).unwrap().records;
    let shown = records.iter().map(|record| {
        let Reading { device, metric, value, unit, time, .. } = &record.reading;
        let unit = unit.map_or("-", |unit| unit.symbol());
        let time = if record.time_assumed { "?".to_owned() } else { time.to_string() };
        format!("{device} {metric} {value} {unit} {time}")
    });
    shown.collect()
}

fn topic(map: &str, topic: &str, payload: &[u8]) -> Vec<String> {
    mapped(map, Source::Topic(topic), payload)
}

/// The metrics of the payload that are cumulative counters.
fn counters(map: &str, name: &str, payload: &[u8]) -> Vec<String> {
    let records = apply(map, Source::Topic(name), payload).unwrap().records;
    let counters = records.iter().filter(|record| record.reading.counter.is_some());
    counters.map(|record| record.reading.metric.to_string()).collect()
}

#[test]
fn meters_of_energy_are_counters() {
    let tasmota = counters("tasmota", "tele/plug-1/SENSOR", fixture!("tasmota-sensor"));
    assert_eq!(tasmota, ["ENERGY.Total"]);
    let shelly = counters("shelly", "shellyplus1pm-a8032ab12345/events/rpc", fixture!("shelly-notify"));
    assert_eq!(shelly, ["switch:0.aenergy.total"]);
    let em = br#"{"id":0,"total_act":1.5,"total_act_ret":0,"voltage":230}"#;
    assert_eq!(counters("shelly", "shelly-1/status/em1data:0", em), ["em1data:0.total_act"]);
    assert_eq!(counters("zigbee2mqtt", "zigbee2mqtt/plug", br#"{"energy":3.2,"power":12}"#), ["energy"]);
}

/// The topics are skipped: neither a reading nor an error.
fn assert_skipped(map: &str, topics: &[&str]) {
    for name in topics {
        assert_eq!(topic(map, name, b"text"), [""; 0], "{name}");
    }
}

#[test]
fn every_shipped_map_is_valid_and_listed_by_name() {
    for map in BUILTIN {
        Map::load(&format!("builtin:{}", map.name)).unwrap();
        assert!(
            map.text.starts_with("# ") && map.text.contains("\n# https://"),
            "{} names no documentation",
            map.name
        );
    }
    assert!(BUILTIN.is_sorted_by_key(|map| map.name));
}

#[test]
fn zigbee2mqtt() {
    let time = "2026-11-24T09:15:30Z";
    assert_eq!(
        topic("zigbee2mqtt", "zigbee2mqtt/living/climate", fixture!("zigbee2mqtt-climate")),
        [
            format!("living/climate battery 91 %EL {time}"),
            format!("living/climate humidity 44.72 %RH {time}"),
            format!("living/climate linkquality 105 - {time}"),
            format!("living/climate pressure 1001.2 hPa {time}"),
            format!("living/climate temperature 27.34 Cel {time}"),
            format!("living/climate voltage 2995 - {time}"),
        ]
    );
    let time = "2025-11-24T09:15:30.123Z";
    assert_eq!(
        topic("zigbee2mqtt", "zigbee2mqtt/bulb", fixture!("zigbee2mqtt-bulb")),
        [
            format!("bulb brightness 215 - {time}"),
            format!("bulb color.x 0.46 - {time}"),
            format!("bulb color.y 0.41 - {time}"),
            format!("bulb color_temp 325 - {time}"),
            format!("bulb linkquality 87 - {time}"),
            format!("bulb state 1 - {time}"),
        ]
    );
    let key = Source::RoutingKey("zigbee2mqtt.door");
    assert_eq!(mapped("zigbee2mqtt", key, br#"{"contact":false}"#), ["door contact 0 - ?"]);
    assert_eq!(topic("zigbee2mqtt", "zigbee2mqtt/button", br#"{"action":"single"}"#), [""; 0]);
    for payload in [&b"online"[..], br#"{"state":"online"}"#] {
        assert_eq!(topic("zigbee2mqtt", "zigbee2mqtt/door/availability", payload), ["door online 1 - ?"]);
        assert_eq!(topic("zigbee2mqtt", "zigbee2mqtt/a/b/availability", payload), ["a/b online 1 - ?"]);
    }
    assert_skipped(
        "zigbee2mqtt",
        &["zigbee2mqtt/bridge/state", "zigbee2mqtt/bulb/set", "zigbee2mqtt/a/bulb/get"],
    );
    assert!(apply("zigbee2mqtt", Source::Topic("other/bulb"), b"1").is_err());
}

#[test]
fn tasmota() {
    let time = "2026-11-24T09:15:30Z";
    assert_eq!(
        topic("tasmota", "tele/plug-1/SENSOR", fixture!("tasmota-sensor")),
        [
            format!("plug-1 AM2301.Temperature 21.5 Cel {time}"),
            format!("plug-1 AM2301.Humidity 45.2 %RH {time}"),
            format!("plug-1 AM2301.DewPoint 9.1 Cel {time}"),
            format!("plug-1 BMP280.Temperature 70.1 Cel {time}"),
            format!("plug-1 BMP280.Pressure 998.3 hPa {time}"),
            format!("plug-1 ENERGY.Total 12.345 kWh {time}"),
            format!("plug-1 ENERGY.Yesterday 0.5 kWh {time}"),
            format!("plug-1 ENERGY.Today 0.2 kWh {time}"),
            format!("plug-1 ENERGY.Power.0 40 W {time}"),
            format!("plug-1 ENERGY.Power.1 2 W {time}"),
            format!("plug-1 ENERGY.Voltage 230 V {time}"),
        ]
    );
    assert_eq!(
        topic("tasmota", "tele/plug-1/STATE", fixture!("tasmota-state")),
        [
            "plug-1 UptimeSec 4805 s ?",
            "plug-1 Heap 26 - ?",
            "plug-1 LoadAvg 19 - ?",
            "plug-1 POWER 1 - ?",
            "plug-1 Wifi.Channel 6 - ?",
            "plug-1 Wifi.RSSI 80 - ?",
            "plug-1 Wifi.Signal -60 dBm ?",
            "plug-1 Wifi.LinkCount 1 - ?",
        ]
    );
    for name in ["tele/bridge/SENSOR", "tele/bridge/kitchen/SENSOR"] {
        assert_eq!(
            topic("tasmota", name, fixture!("tasmota-zigbee")),
            ["kitchen Temperature 21.5 Cel ?", "kitchen Humidity 47.25 %RH ?", "kitchen LinkQuality 70 - ?"]
        );
    }
    let unnamed = br#"{"ZbReceived":{"0x3D82":{"Device":"0x3D82","Power":1,"Endpoint":1}}}"#;
    assert_eq!(topic("tasmota", "tele/bridge/SENSOR", unnamed), ["0x3D82 Power 1 - ?"]);
    assert_eq!(topic("tasmota", "tele/plug-1/LWT", b"Online"), ["plug-1 online 1 - ?"]);
    let mercury = br#"{"BMP280":{"Pressure":750.1},"PressureUnit":"mmHg"}"#;
    assert_eq!(topic("tasmota", "tele/plug-1/SENSOR", mercury), ["plug-1 BMP280.Pressure 750.1 - ?"]);
    assert_skipped("tasmota", &["tele/plug-1/INFO1", "stat/plug-1/RESULT", "cmnd/plug-1/POWER"]);
}

#[test]
fn shelly() {
    let (device, time) = ("shellyplus1pm-a8032ab12345", "2025-11-24T09:15:30.25Z");
    assert_eq!(
        topic("shelly", "shellyplus1pm-a8032ab12345/events/rpc", fixture!("shelly-notify")),
        [
            format!("{device} switch:0.output 1 - {time}"),
            format!("{device} switch:0.apower 8.9 W {time}"),
            format!("{device} switch:0.voltage 237.5 V {time}"),
            format!("{device} switch:0.aenergy.total 6.532 - {time}"),
            format!("{device} switch:0.temperature.tC 53.3 Cel {time}"),
            format!("{device} switch:0.temperature.tF 128 degF {time}"),
        ]
    );
    assert_eq!(
        topic("shelly", "shelly-1/status/switch:0", fixture!("shelly-switch")),
        [
            "shelly-1 switch:0.output 0 - ?",
            "shelly-1 switch:0.apower 0 W ?",
            "shelly-1 switch:0.voltage 236.1 V ?",
            "shelly-1 switch:0.temperature.tC 40.5 Cel ?",
            "shelly-1 switch:0.temperature.tF 104.9 degF ?",
        ]
    );
    assert_eq!(topic("shelly", "shelly-1/online", b"true"), ["shelly-1 online 1 - ?"]);
    let event = br#"{"src":"shelly-1","method":"NotifyEvent","params":{"ts":1,"events":[{"component":"input:0","id":0,"event":"single_push"}]}}"#;
    assert_eq!(topic("shelly", "shelly-1/events/rpc", event), [""; 0]);
    let no_time = br#"{"src":"shelly-1","method":"NotifyStatus","params":{"input:0":{"id":0,"state":true}}}"#;
    let error = apply("shelly", Source::Topic("shelly-1/events/rpc"), no_time).unwrap_err();
    assert_eq!(error.to_string(), "rule 2: time: /params/ts is missing");
    assert_skipped("shelly", &["shelly-1/status/sys", "shelly-1/rpc", "shelly-1/command/switch:0"]);
}

#[test]
fn homeassistant() {
    let state = |entity: &str, payload: &[u8]| {
        topic("homeassistant", &format!("homeassistant/{entity}/state"), payload)
    };
    assert_eq!(state("sensor/living_temperature", b"21.5"), ["sensor.living_temperature state 21.5 - ?"]);
    assert_eq!(state("binary_sensor/door", b"on"), ["binary_sensor.door state 1 - ?"]);
    assert_eq!(state("sensor/living_temperature", b"unavailable"), [""; 0]);
    assert_eq!(state("weather/home", b"sunny"), [""; 0]);
    assert_skipped(
        "homeassistant",
        &["homeassistant/sensor/x/unit_of_measurement", "homeassistant/sensor/x/last_updated"],
    );
}

#[test]
fn the_things_stack() {
    let uplink = fixture!("ttn-uplink");
    let time = "2026-11-24T09:15:30.875123Z";
    let expected = [
        format!("soil-1 rssi -35 dBm {time}"),
        format!("soil-1 snr 5.2 dB {time}"),
        format!("soil-1 temperature 7.5 - {time}"),
        format!("soil-1 soil.moisture 31.25 - {time}"),
        format!("soil-1 soil.dry 0 - {time}"),
    ];
    assert_eq!(topic("ttn", "v3/farm@tenant/devices/soil-1/up", uplink), expected);
    assert_eq!(mapped("ttn", Source::Path("/v1/map/ttn"), uplink), expected);
    assert_eq!(mapped("ttn", Source::Path("/v1/map/ttn"), fixture!("ttn-join")), [""; 0]);
    assert_skipped(
        "ttn",
        &["v3/farm@tenant/devices/soil-1/join", "v3/farm@tenant/devices/soil-1/down/queued"],
    );
}

/// A fixture with these members replaced, or removed.
fn edited(fixture: &[u8], edits: &[(&str, &str)]) -> Vec<u8> {
    let mut document: serde_json::Value = serde_json::from_slice(fixture).unwrap();
    for (pointer, value) in edits {
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        let parent = document.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        match *value {
            "" => drop(parent.remove(name).unwrap()),
            value => drop(parent.insert(name.to_owned(), serde_json::from_str(value).unwrap())),
        }
    }
    document.to_string().into_bytes()
}

/// The sorted metrics of an uplink as a webhook and over MQTT, and how often values were left out.
fn metrics(map: &str, topic: &str, payload: &[u8]) -> (Vec<String>, usize) {
    let [webhook, message] = [Source::Path("/v1/map/x"), Source::Topic(topic)].map(|source| {
        let Mapped { records, unmeasured, .. } = apply(map, source, payload).unwrap();
        let mut metrics: Vec<_> = records.iter().map(|record| record.reading.metric.to_string()).collect();
        metrics.sort();
        (metrics, unmeasured)
    });
    assert_eq!(webhook, message);
    webhook
}

#[test]
fn the_things_stack_uplinks_have_only_values_that_were_measured() {
    let (uplink, topic) = (fixture!("ttn-uplink"), "v3/farm@tenant/devices/soil-1/up");
    let (payload, decoded) = ("/uplink_message/frm_payload", "/uplink_message/decoded_payload");
    let (signal, radio) = ("/uplink_message/rx_metadata", ["rssi", "snr"].as_slice());
    let zeros = (decoded, r#"{"temperature":0,"soil":{"moisture":0}}"#);
    for (edits, expected, unmeasured) in [
        ([(payload, "\"AQI=\""), zeros].as_slice(), &["rssi", "snr", "soil.moisture", "temperature"][..], 0),
        (&[(payload, ""), zeros], radio, 1),
        (&[(payload, "null"), zeros], radio, 1),
        (&[(payload, "\"\""), zeros], radio, 1),
        (&[(payload, "\"\""), (signal, "[]"), zeros], &[], 1),
        (&[(decoded, "")], radio, 1),
        (&[(decoded, "null")], radio, 1),
        (&[(decoded, "{}")], radio, 1),
        (&[(decoded, ""), (signal, "")], &[], 1),
        (&[(decoded, "{\"state\":\"ok\"}"), (signal, "")], &[], 0),
        (&[(signal, r#"[{"rssi":-35}]"#)], &["rssi", "soil.dry", "soil.moisture", "temperature"], 0),
        (&[("/simulated", "false")], &["rssi", "snr", "soil.dry", "soil.moisture", "temperature"], 0),
        (&[("/simulated", "true")], &[], 0),
    ] {
        let expected: Vec<_> = expected.iter().map(|metric| (*metric).to_owned()).collect();
        assert_eq!(metrics("ttn", topic, &edited(uplink, edits)), (expected, unmeasured), "{edits:?}");
    }
    assert_eq!(metrics("ttn", topic, fixture!("ttn-mac-only")).0, radio);
    assert_eq!(metrics("ttn", topic, fixture!("ttn-simulated")).0, [""; 0]);
}

#[test]
fn chirpstack_events_have_only_values_that_were_measured() {
    let (up, status) = (fixture!("chirpstack-up"), fixture!("chirpstack-status"));
    let (up_topic, status_topic) =
        ("application/1/device/0a/event/up", "application/1/device/0a/event/status");
    let zeros = ("/object", r#"{"temperature":0.0,"soil":{"moisture":0}}"#);
    let values = ["soil.moisture", "temperature"].as_slice();
    for (fixture, topic, edits, expected, unmeasured) in [
        (&up[..], up_topic, [zeros].as_slice(), &["rssi", "snr", "soil.moisture", "temperature"][..], 0),
        (up, up_topic, &[("/data", ""), zeros], &["rssi", "snr"], 1),
        (up, up_topic, &[("/data", "null"), zeros], &["rssi", "snr"], 1),
        (up, up_topic, &[("/data", "\"\""), zeros], &["rssi", "snr"], 1),
        (up, up_topic, &[("/object", "")], &["rssi", "snr"], 1),
        (up, up_topic, &[("/rxInfo", "")], values, 0),
        (up, up_topic, &[("/rxInfo", "[]")], values, 0),
        (up, up_topic, &[("/rxInfo", ""), ("/data", ""), zeros], &[], 1),
        (status, status_topic, &[], &["battery_level", "margin"], 0),
        (status, status_topic, &[("/margin", "")], &["battery_level"], 0),
        (status, status_topic, &[("/batteryLevel", "")], &["margin"], 0),
        (
            status,
            status_topic,
            &[("/batteryLevel", "0"), ("/batteryLevelUnavailable", "true")],
            &["margin"],
            0,
        ),
        (status, status_topic, &[("/margin", ""), ("/externalPowerSource", "true")], &[], 0),
        (fixture!("chirpstack-status-mains"), status_topic, &[], &["margin"], 0),
        (fixture!("chirpstack-join"), "application/1/device/0a/event/join", &[], &[], 0),
    ] {
        let expected: Vec<_> = expected.iter().map(|metric| (*metric).to_owned()).collect();
        assert_eq!(
            metrics("chirpstack", topic, &edited(fixture, edits)),
            (expected, unmeasured),
            "{edits:?}"
        );
    }
}

#[test]
fn chirpstack() {
    let (up, status) = (fixture!("chirpstack-up"), fixture!("chirpstack-status"));
    let (device, time) = ("0101010101010101", "2026-11-24T09:15:30.875824Z");
    let expected = [
        format!("{device} rssi -36 dBm {time}"),
        format!("{device} snr 10.5 dB {time}"),
        format!("{device} temperature 7.5 - {time}"),
        format!("{device} soil.moisture 31.25 - {time}"),
    ];
    assert_eq!(topic("chirpstack", "application/17c8/device/0101010101010101/event/up", up), expected);
    assert_eq!(mapped("chirpstack", Source::Path("/v1/map/chirpstack"), up), expected);
    let again = || apply("chirpstack", Source::Path("/v1/map/chirpstack"), up).unwrap().records;
    assert_eq!(again(), again());
    assert!(again().iter().all(|record| record.id.is_some() && !record.time_assumed));
    assert_eq!(
        mapped("chirpstack", Source::Path("/v1/map/chirpstack"), status),
        [
            format!("{device} battery_level 75.5 %EL 2026-11-24T09:20:00Z"),
            format!("{device} margin 7 dB 2026-11-24T09:20:00Z"),
        ]
    );
    assert_skipped("chirpstack", &["application/17c8/device/0101010101010101/event/join"]);
}
