use garenne_protocol::sensor::Unit;
use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    common::v1::{AnyValue, ArrayValue, KeyValue, any_value::Value},
    metrics::v1::{
        AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
        ResourceMetrics, ScopeMetrics, Sum, metric::Data, number_data_point,
    },
    resource::v1::Resource,
};
use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::payload::RECORD;

mod bad_fields;

const TIME: u64 = 1_763_600_000_000_000_000;

fn now() -> Timestamp {
    Timestamp::from_micros(1_763_600_000_000_000).unwrap()
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.into()))
}

fn point(value: f64, attributes: Vec<KeyValue>) -> NumberDataPoint {
    NumberDataPoint {
        attributes,
        time_unix_nano: TIME,
        value: Some(number_data_point::Value::AsDouble(value)),
        ..NumberDataPoint::default()
    }
}

fn gauge(name: &str, unit: &str, points: Vec<NumberDataPoint>) -> Metric {
    let data = Some(Data::Gauge(Gauge { data_points: points }));
    Metric { name: name.into(), unit: unit.into(), data, ..Metric::default() }
}

fn sum(name: &str, temporality: AggregationTemporality, value: i64) -> Metric {
    let value = Some(number_data_point::Value::AsInt(value));
    let data_points = vec![NumberDataPoint { value, ..point(0.0, vec![]) }];
    let aggregation_temporality = temporality.into();
    let sum = Sum { data_points, aggregation_temporality, is_monotonic: true };
    Metric { name: name.into(), unit: "{request}".into(), data: Some(Data::Sum(sum)), ..Metric::default() }
}

fn request(attributes: Vec<KeyValue>, metrics: Vec<Metric>) -> ExportMetricsServiceRequest {
    let resource = Some(Resource { attributes, ..Resource::default() });
    let scope_metrics = vec![ScopeMetrics { metrics, ..ScopeMetrics::default() }];
    let resource_metrics = vec![ResourceMetrics { resource, scope_metrics, ..ResourceMetrics::default() }];
    ExportMetricsServiceRequest { resource_metrics }
}

/// The readings and the rejected points, which are the same in both encodings.
fn converted(request: &ExportMetricsServiceRequest) -> (Vec<String>, Rejected) {
    let limits = Limits { max_ahead: Some(std::time::Duration::from_secs(600)), ..Limits::default() };
    let records = |encoding: OtlpEncoding, body: &[u8]| encoding.records(body, now(), &limits).unwrap();
    let (found, rejected) = records(OtlpEncoding::Protobuf, &request.encode_to_vec());
    let json = serde_json::to_vec(request).unwrap();
    assert_eq!(records(OtlpEncoding::Json, &json), (found.clone(), rejected.clone()));
    assert!(found.iter().all(|record| record.id.is_none() && !record.time_assumed));
    let shown = |record: &Record| {
        let reading = &record.reading;
        let unit = reading.unit.map_or("-", Unit::symbol);
        format!("{} {} {} {unit} {}", reading.device, reading.metric, reading.value, reading.time)
    };
    (found.iter().map(shown).collect(), rejected)
}

#[test]
fn gauges_and_sums_become_readings() {
    let attributes = vec![text("service.name", "shop"), text("host.name", "h1"), text("os.type", "linux")];
    let metrics = vec![
        gauge(
            "room.temperature",
            "Cel",
            vec![point(21.5, vec![]), point(19.0, vec![text("device.id", "roof")])],
        ),
        gauge(
            "cpu",
            "1",
            vec![point(
                0.5,
                vec![attribute("state", Value::BoolValue(true)), attribute("cpu", Value::IntValue(0))],
            )],
        ),
        sum("requests", AggregationTemporality::Cumulative, 12),
        sum("requests", AggregationTemporality::Delta, 3),
    ];
    let (readings, rejected) = converted(&request(attributes, metrics));
    let time = "2025-11-20T00:53:20Z";
    assert_eq!(
        readings,
        [
            format!("h1 room.temperature 21.5 Cel {time}"),
            format!("roof room.temperature 19 Cel {time}"),
            format!("h1 cpu,cpu=0,state=true 0.5 / {time}"),
            format!("h1 requests 12 - {time}"),
            format!("h1 requests,temporality=delta 3 - {time}"),
        ]
    );
    assert!(rejected.is_empty());
}

#[test]
fn a_cumulative_monotonic_sum_is_a_counter_with_a_start_time() {
    use AggregationTemporality::{Cumulative, Delta};
    for (temporality, is_monotonic, start, expected) in [
        (Cumulative, true, TIME - 5_000_000_000, Some(Some("2025-11-20T00:53:15Z"))),
        (Cumulative, true, 0, Some(None)),
        (Cumulative, false, TIME - 5_000_000_000, None),
        (Delta, true, TIME - 5_000_000_000, None),
    ] {
        let mut metric = sum("requests", temporality, 12);
        let Some(Data::Sum(sum)) = &mut metric.data else { unreachable!() };
        sum.is_monotonic = is_monotonic;
        sum.data_points[0].start_time_unix_nano = start;
        let request = request(vec![text("device.id", "d")], vec![metric]);
        converted(&request);
        let body = request.encode_to_vec();
        let (records, _) = OtlpEncoding::Protobuf.records(&body, now(), &Limits::default()).unwrap();
        let counter = records[0].reading.counter.as_deref();
        let start = counter.map(|counter| counter.start.map(|start| start.to_string()));
        assert_eq!(start, expected.map(|start| start.map(str::to_owned)));
    }
}

#[test]
fn data_points_that_are_no_readings_are_rejected_with_the_reason() {
    let histogram = Histogram {
        data_points: vec![
            HistogramDataPoint { bucket_counts: vec![1, 2], ..HistogramDataPoint::default() };
            3
        ],
        aggregation_temporality: 2,
    };
    let histogram = |name: &str| Metric {
        name: name.into(),
        data: Some(Data::Histogram(histogram.clone())),
        ..Metric::default()
    };
    let device = || vec![text("device.id", "d")];
    let array = || attribute("list", Value::ArrayValue(ArrayValue::default()));
    let no_time = NumberDataPoint { time_unix_nano: 0, ..point(1.0, vec![]) };
    let ahead = NumberDataPoint { time_unix_nano: TIME + 700_000_000_000, ..point(1.0, vec![]) };
    for (metric, count, reason) in [
        (histogram("latency"), 3, "metric \"latency\": a histogram has no single value"),
        (
            gauge("t", "", vec![NumberDataPoint { value: None, ..point(0.0, vec![]) }]),
            1,
            "metric \"t\": a point has no value",
        ),
        (gauge("t", "", vec![no_time]), 1, "metric \"t\": a point has no time_unix_nano"),
        (
            gauge("t", "", vec![ahead]),
            1,
            "metric \"t\": time_unix_nano: 1763600700000000000 as nanoseconds is 2025-11-20T01:05:00Z, more than 10m ahead of the local clock, \
             2025-11-20T00:53:20Z",
        ),
        (gauge(" ", "", vec![point(1.0, vec![])]), 1, "metric \" \": it has no name"),
        (
            gauge("t", "", vec![point(1.0, vec![array()])]),
            1,
            "metric \"t\": attribute \"list\": expected a text, a number or a boolean",
        ),
        (
            gauge("t", "", vec![point(1.0, vec![text("a", &"x".repeat(5000))])]),
            1,
            "metric \"t\": name and attributes have 5004 bytes; 4096 are allowed",
        ),
        (
            gauge("t", "", vec![point(1.0, vec![text("host.name", "a"), text("host.name", "b")])]),
            1,
            "metric \"t\": the attribute \"host.name\" is given twice",
        ),
        (
            sum("t", AggregationTemporality::Unspecified, 1),
            1,
            "metric \"t\": the sum has no aggregation temporality",
        ),
        (
            gauge("t", "", vec![point(1.0, vec![]), point(2.0, vec![])]),
            1,
            "metric \"t\": device \"d\" has two values of it at one time, in other scopes or resources",
        ),
    ] {
        let (_, rejected) = converted(&request(device(), vec![metric]));
        assert_eq!(rejected.message(), format!("{count} data points are not stored: {reason}"));
        assert_eq!(rejected.points, count);
    }
    let infinite =
        request(device(), vec![gauge("t", "", vec![point(f64::INFINITY, vec![])])]).encode_to_vec();
    let (_, rejected) = OtlpEncoding::Protobuf.records(&infinite, now(), &Limits::default()).unwrap();
    assert!(rejected.message().ends_with("a value is not finite"), "{}", rejected.message());
    let wrong = converted(&request(device(), vec![gauge("temperature", "C", vec![point(1.0, vec![])])])).1;
    assert!(wrong.message().contains("\"C\" is the coulomb"), "{}", wrong.message());
    let (_, nameless) = converted(&request(vec![], vec![gauge("t", "", vec![point(1.0, vec![])])]));
    assert!(
        nameless.message().ends_with("no attribute device.id, host.name, service.instance.id, service.name")
    );
    let many = (0..10).map(|n| histogram(&format!("h{n}"))).collect();
    let (_, rejected) = converted(&request(device(), many));
    assert!(rejected.points == 30 && rejected.message().ends_with("; and others"), "{}", rejected.message());
}

#[test]
fn a_gap_and_a_repeated_point_are_left_out() {
    let gap = NumberDataPoint { flags: 1, value: None, ..point(0.0, vec![]) };
    let metrics = vec![gauge("t", "", vec![point(1.0, vec![]), gap, point(1.0, vec![])])];
    let (readings, rejected) = converted(&request(vec![text("device.id", "d")], metrics));
    assert_eq!((readings.len(), rejected.is_empty()), (1, true));
}

#[test]
fn the_json_of_other_encoders_is_read() {
    let body = r#"{"resourceMetrics":[{"resource":{"attributes":[{"key":"device.id","value":{"stringValue":"d"}},
        {"key":"list","value":{"arrayValue":{"values":[{"intValue":"1"}]}}}]},"schemaUrl":"x",
        "scopeMetrics":[{"scope":{"name":"s"},"metrics":[{"name":"a","gauge":{"dataPoints":[
        {"timeUnixNano":"1763600000000000000","asInt":"7"},
        {"timeUnixNano":1763600001000000000,"asInt":8},
        {"timeUnixNano":"1763600002000000000","asDouble":"9.5"},
        {"timeUnixNano":"1763600003000000000","asDouble":"NaN"}]}},
        {"name":"b","histogram":{"dataPoints":[{"count":"3","bucketCounts":["1","2"]}],"aggregationTemporality":2}}]}]}]}"#;
    let (records, rejected) = OtlpEncoding::Json.records(body.as_bytes(), now(), &Limits::default()).unwrap();
    let values: Vec<f64> = records.iter().map(|record| record.reading.value).collect();
    assert_eq!(values, [7.0, 8.0, 9.5]);
    assert_eq!(rejected.points, 2);
    let error =
        |body: &str| OtlpEncoding::Json.records(body.as_bytes(), now(), &Limits::default()).unwrap_err();
    assert!(error("{").to_string().starts_with("body: no metrics of OTLP: EOF while parsing"));
    let long = format!(r#"{{"resourceMetrics":"{}"}}"#, "x".repeat(10_000));
    assert!(error(&long).to_string().len() < 300, "{}", error(&long));
}

#[test]
fn json_that_is_almost_valid_costs_only_its_data_point() {
    let body = |point: &str| {
        let good = r#"{"timeUnixNano":"1763600000000000000","asDouble":21.5}"#;
        format!(
            "{{\"resourceMetrics\":[{{\"resource\":{{\"attributes\":[{{\"key\":\"host.name\",\"value\":{{\"stringValue\":\"h\"}}}}]}},\
             \"scopeMetrics\":[{{\"metrics\":[{{\"name\":\"m\",\"gauge\":{{\"dataPoints\":[{good},{point}]}}}}]}}]}}]}}"
        )
    };
    let time = "\"timeUnixNano\":\"1763600001000000000\"";
    for point in [
        format!("{{{time},\"asDouble\":NaN}}"),
        format!("{{{time},\"asDouble\":-Infinity}}"),
        format!("{{{time},\"asDouble\":1e999}}"),
        format!("{{{time},\"asDouble\":\"abc\"}}"),
        format!("{{{time},\"asDouble\":true}}"),
        format!("{{{time},\"asInt\":\"99999999999999999999\"}}"),
        "{\"timeUnixNano\":\"abc\",\"asDouble\":1}".to_owned(),
        format!(
            "{{{time},\"asDouble\":1,\"attributes\":[{{\"key\":\"host.name\",\"value\":{{\"stringValue\":\"a\\ud800\"}}}}]}}"
        ),
        format!(
            "{{{time},\"asDouble\":1,\"attributes\":[{{\"key\":\"a\",\"value\":{{\"stringValue\":\"\u{1}b\"}}}}]}}"
        ),
    ] {
        for (before, after) in [("", ""), ("", "\0")] {
            let text = format!("{before}{}{after}", body(&point));
            let (records, rejected) =
                OtlpEncoding::Json.records(text.as_bytes(), now(), &Limits::default()).unwrap();
            assert_eq!((records.len(), rejected.points), (1, 1), "{text:?}: {}", rejected.message());
        }
    }
}

#[test]
fn bodies_with_too_many_points_are_refused_before_they_are_decoded() {
    let limits = Limits { records: 2, ..Limits::default() };
    let points = (0..3).map(|n| point(f64::from(n), vec![])).collect();
    let request = request(vec![text("device.id", "d")], vec![gauge("t", "", points)]);
    let json = serde_json::to_vec(&request).unwrap();
    for (encoding, body) in [(OtlpEncoding::Protobuf, request.encode_to_vec()), (OtlpEncoding::Json, json)] {
        let refused = encoding.records(&body, now(), &limits).unwrap_err();
        assert_eq!(
            (refused.status.as_u16(), refused.to_string().as_str()),
            (413, "body: more than 2 data points")
        );
    }
    let torn = request.encode_to_vec();
    for length in 1..torn.len() {
        // A message of Protobuf may end after every field of its outermost level; here it has only one.
        let refused = OtlpEncoding::Protobuf.records(&torn[..length], now(), &limits).unwrap_err();
        assert_eq!(refused.status.as_u16(), 400, "{length}");
    }
}

/// Nested messages with `count` empty messages at the end of this path of fields.
fn nested(path: &[u8], count: usize) -> Vec<u8> {
    let (last, outer) = path.split_last().unwrap();
    let mut body: Vec<u8> = std::iter::repeat_n([(last << 3) | 2, 0], count).flatten().collect();
    for field in outer.iter().rev() {
        let mut wrapped = vec![(field << 3) | 2];
        prost::encoding::encode_varint(body.len() as u64, &mut wrapped);
        wrapped.extend_from_slice(&body);
        body = wrapped;
    }
    body
}

#[test]
fn empty_messages_weigh_what_they_need_in_memory() {
    for path in [
        &[1_u8][..],
        &[1, 1, 1],
        &[1, 2],
        &[1, 2, 2],
        &[1, 2, 2, 5, 1],
        &[1, 2, 2, 7, 1],
        &[1, 2, 2, 5, 1, 7],
    ] {
        let body = nested(path, 100_000);
        let decoded = ExportRequest::decode(body.as_slice()).unwrap();
        drop(decoded);
        let size = measure::protobuf(&body).unwrap();
        assert!(size.bytes >= 100_000 * 48, "{path:?}: {size:?}");
        assert!(measure::protobuf_weight(&body) >= size.bytes / RECORD);
    }
    // Points of a histogram are only counted.
    assert!(measure::protobuf(&nested(&[1, 2, 2, 9, 1], 100_000)).unwrap().bytes < 2000);
    assert_eq!(measure::protobuf(&nested(&[1, 2, 2, 5, 1], 7)).unwrap().points, 7);
    let json = format!("[{}]", vec!["{}"; 1000].join(","));
    assert!(measure::json_weight(json.as_bytes()) * RECORD >= 1000 * 176);
    let escaped = r#"{"\u0074imeUnixNano":1}"#.repeat(1000);
    assert!(measure::json_weight(escaped.as_bytes()) >= 1000, "every object may be a point");
}

/// serde takes a list for an object, with the fields by position. Such messages would not be counted.
#[test]
fn a_list_in_the_place_of_a_message_is_refused() {
    for (before, after) in [
        (r#"{"resourceMetrics":["#, "]}"),
        (r#"{"resourceMetrics":[{"scopeMetrics":["#, "]}]}"),
        (r#"{"resourceMetrics":[{"resource":{"attributes":["#, "]}}]}"),
        (r#"{"resourceMetrics":[{"scopeMetrics":[{"metrics":["#, "]}]}]}"),
        (r#"{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"gauge":{"dataPoints":["#, "]}}]}]}]}"),
        (r#"{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"sum":{"dataPoints":["#, "]}}]}]}]}"),
        (
            r#"{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"gauge":{"dataPoints":[{"attributes":["#,
            "]}]}}]}]}]}",
        ),
    ] {
        let records = |message: &str| {
            let body = format!("{before}{message},{message}{after}");
            OtlpEncoding::Json.records(body.as_bytes(), now(), &Limits::default())
        };
        let refused = records("[]").unwrap_err();
        assert!(refused.to_string().contains("expected an object"), "{refused}");
        assert!(records("{}").is_ok(), "{before}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_answered_and_readings_are_valid(
        body in prop::collection::vec(any::<u8>(), 0..200),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let metrics = vec![gauge("t", "Cel", vec![point(1.0, vec![text("a", "b")])])];
        let mut damaged = request(vec![text("device.id", "d")], metrics).encode_to_vec();
        for (index, byte) in flips {
            let at = index.index(damaged.len());
            damaged[at] = byte;
        }
        for body in [body, damaged] {
            for encoding in [OtlpEncoding::Protobuf, OtlpEncoding::Json] {
                encoding.weight()(&body);
                let Ok((records, _)) = encoding.records(&body, now(), &Limits::default()) else { continue };
                for record in records {
                    let json = serde_json::to_vec(&record.reading).unwrap();
                    let again = garenne_protocol::sensor::readings_from("application/json", &json, now());
                    prop_assert!(again.is_ok(), "{record:?} {again:?}");
                }
            }
        }
    }
}
