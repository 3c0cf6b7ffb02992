use garenne::{
    Worker, WorkerConfig,
    handler::{ContentType, Payload},
    testing::{TestOutcome, TestWorker},
};
use garenne_protocol::{
    sensor::{Timestamp, readings_from},
    task::{DeadReason, Kind, NewTask},
};
use proptest::prelude::*;
use serde_json::json;

use crate::reading_row::ReadingRows;

use super::*;

fn run(body: &serde_json::Value, rules: &str) -> serde_json::Value {
    let now = Timestamp::parse("2026-11-20T12:00:00Z").unwrap();
    let records = readings_from("", body.to_string().as_bytes(), now).unwrap();
    serde_json::to_value(process(&records, &Calibration::parse(rules).unwrap()).0).unwrap()
}

#[test]
fn the_result_has_the_documented_fields() {
    let pack = json!([
        {"bn":"greenhouse-1:","bt":1763640000,"n":"temperature","u":"degF","v":77},
        {"n":"humidity","u":"%RH","v":50}
    ]);
    let rules =
        r#"calibration = [{ metric = "temperature", unit = "Cel", offset = -5.0, valid = [-40, 85] }]"#;
    let mut answer = run(&pack, rules);
    for derived in answer["derived"].as_array_mut().unwrap() {
        derived["value"] = json!((derived["value"].as_f64().unwrap() * 1e6).round() / 1e6);
    }
    let time = "2025-11-20T12:00:00Z";
    assert_eq!(
        answer,
        json!({
            "readings": [
                {"device":"greenhouse-1","metric":"temperature","time":time,"value":20.0,"unit":"Cel","raw":77.0,"raw_unit":"degF","calibration":"aef98ee6","quality":[]},
                {"device":"greenhouse-1","metric":"humidity","time":time,"value":50.0,"unit":"%RH","raw":50.0,"quality":[]}
            ],
            "derived": [
                {"device":"greenhouse-1","metric":"dew_point","time":time,"value":9.255175,"unit":"Cel","raw":null,"quality":[]},
                {"device":"greenhouse-1","metric":"absolute_humidity","time":time,"value":0.008621,"unit":"kg/m3","raw":null,"quality":[]},
                {"device":"greenhouse-1","metric":"heat_index","time":time,"value":19.361111,"unit":"Cel","raw":null,"quality":[]}
            ]
        })
    );
}

/// A delivery that is repeated must store the same rows.
#[tokio::test]
async fn readings_without_a_time_have_that_of_the_tasks_version_in_every_delivery() {
    let builder = Worker::builder(WorkerConfig::default());
    let builder = register(builder, Calibration::default(), Limits::default(), Contradictions::Refused);
    let worker = TestWorker::new(builder).unwrap();
    let times = async |body: &serde_json::Value, version: &str| {
        let body = body.to_string().into_bytes();
        let task = NewTask::new(Kind::parse(Readings::KIND).unwrap(), ContentType::Json, body);
        let task = NewTask { version: version.parse().unwrap(), ..task };
        let TestOutcome::Done(output) = worker.run_task(&task).await else { panic!("not done") };
        output.rows().iter().map(|row| Timestamp::from(row.time).to_string()).collect::<Vec<_>>()
    };
    let plain = json!([{"device":"a","metric":"t","value":1}, {"device":"a","metric":"u","value":1,"time":1_763_640_000}]);
    let expected = ["2025-11-20T12:30:00.000002Z", "2025-11-20T12:00:00Z"];
    assert_eq!(times(&plain, "1763641800000000-2").await, expected);
    assert_eq!(times(&plain, "1763641800000000-2").await, expected);
    let pack = json!([{"n":"a:t","v":1,"t":-60}, {"n":"a:u","v":1}]);
    assert_eq!(times(&pack, "1763641800000000-0").await, ["2025-11-20T12:29:00Z", "2025-11-20T12:30:00Z"]);
    // A gateway gives readings its own time.
    let marked = json!({"device":"a","metric":"t","value":1,"time":"2025-11-20T12:00:00-00:00"});
    assert_eq!(times(&marked, "1763641800000000-0").await, ["2025-11-20T12:00:00Z"]);
}

fn flags(reading: serde_json::Value, rules: &str) -> serde_json::Value {
    run(&reading, rules)["readings"][0]["quality"].clone()
}

#[test]
fn implausible_values_are_flagged() {
    let at = 1_763_640_000;
    let celsius = |value: f64| json!({"device":"a","metric":"t","value":value,"unit":"Cel","time":at});
    let valid = "calibration = [{ metric = \"t\", valid = [0, 50] }]";
    assert_eq!(flags(celsius(20.0), valid), json!([]));
    assert_eq!(flags(celsius(-1.0), valid), json!(["out-of-range"]));
    assert_eq!(flags(celsius(-300.0), ""), json!(["impossible"]));
    let humid = json!({"device":"a","metric":"h","value":100.1,"unit":"%RH","time":at});
    assert_eq!(flags(humid.clone(), ""), json!(["impossible"]));
    assert_eq!(
        flags(humid, "calibration = [{ metric = \"h\", unit = \"Cel\" }]"),
        json!(["impossible", "not-calibrated"])
    );
    assert_eq!(flags(json!({"device":"a","metric":"t","value":1}), ""), json!(["time-assumed"]));
}

/// Alarms, rollups, windows and derived values leave out what is flagged so.
#[test]
fn codes_that_mean_no_value_are_flagged() {
    let reading = |metric: &str, value: f64, unit: &str| json!({"device":"a","metric":metric,"value":value,"unit":unit,"time":1_763_640_000});
    for (metric, value, unit) in [
        ("pm25", 65_535.0, "ug/m3"),
        ("co2", 65_535.0, "ppm"),
        ("illuminance", 65_535.0, "lx"),
        ("temperature", 327.67, "Cel"),
        ("temperature", -327.68, "Cel"),
        ("temperature", -127.0, "Cel"),
        ("pressure", 6_553.5, "hPa"),
        ("soil_moisture", 655.35, "/100"),
    ] {
        assert_eq!(flags(reading(metric, value, unit), ""), json!(["impossible"]), "{metric} {value}");
        let off = format!("plausible = [{{ metric = \"{metric}\", shipped = false }}]");
        assert_eq!(flags(reading(metric, value, unit), &off), json!([]), "{metric} {value}");
    }
    let boiler = reading("temperature", 85.0, "Cel");
    assert_eq!(flags(boiler.clone(), ""), json!([]));
    let ds18b20 = "plausible = [{ metric = \"temperature\", none = [85] }]";
    assert_eq!(flags(boiler, ds18b20), json!(["impossible"]));
    let humid = reading("humidity", 50.0, "%RH");
    assert_eq!(derived(json!([reading("temperature", -127.0, "Cel"), humid])), [""; 0]);
}

fn derived(pack: serde_json::Value) -> Vec<String> {
    let answer = run(&pack, "");
    let name = |one: &serde_json::Value| {
        format!("{}.{}", one["device"].as_str().unwrap(), one["metric"].as_str().unwrap())
    };
    answer["derived"].as_array().unwrap().iter().map(name).collect()
}

#[test]
fn values_are_derived_from_pairs_of_one_device_and_time() {
    let record =
        |n: &str, u: &str, t: f64, v: f64| json!({"bn":"","n":n,"u":u,"t":1_763_640_000.0 + t,"v":v});
    let all = |device: &str| {
        ["dew_point", "absolute_humidity", "heat_index"].map(|metric| format!("{device}.{metric}"))
    };
    assert_eq!(derived(json!([record("a:x", "K", 0.0, 300.0), record("a:y", "%RH", 0.0, 50.0)])), all("a"));
    // Another time, another device, or no unit.
    assert!(derived(json!([record("a:x", "Cel", 0.0, 20.0), record("a:y", "%RH", 1.0, 50.0)])).is_empty());
    assert!(derived(json!([record("a:x", "Cel", 0.0, 20.0), record("b:y", "%RH", 0.0, 50.0)])).is_empty());
    assert!(derived(json!([{"n":"a:temperature","v":20},{"n":"a:humidity","v":50}])).is_empty());
    // With two temperatures, the one named `temperature` is used, else none.
    let humidity = record("a:humidity", "%RH", 0.0, 50.0);
    let (cpu, case) = (record("a:cpu", "Cel", 0.0, 60.0), record("a:case", "Cel", 0.0, 30.0));
    assert!(derived(json!([cpu, case, humidity])).is_empty());
    assert_eq!(derived(json!([cpu, record("a:temperature", "Cel", 0.0, 20.0), case, humidity])), all("a"));
    // A metric that the device measured itself is not derived.
    let own = record("a:dew_point", "Cel", 0.0, 9.0);
    assert_eq!(derived(json!([own, record("a:t", "Cel", 0.0, 20.0), humidity])), all("a")[1..]);
    // Unusable values are ignored.
    assert!(derived(json!([record("a:t", "Cel", 0.0, -300.0), humidity])).is_empty());
    // Each time of a device has a pair of its own. Cold air has no heat index.
    let cold = [record("a:t", "Cel", 5.0, -10.0), record("a:h", "%RH", 5.0, 80.0)];
    let warm = [record("a:t", "Cel", 0.0, 20.0), record("a:h", "%RH", 0.0, 80.0)];
    let expected: Vec<_> = all("a").into_iter().chain(all("a").into_iter().take(2)).collect();
    assert_eq!(derived(json!([warm[0], cold[0], warm[1], cold[1]])), expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn every_result_is_finite(
        values in prop::collection::vec((any::<f64>(), 0..4_usize, 0..3_u8), 1..8),
        gain in prop::num::f64::NORMAL, offset in prop::num::f64::NORMAL,
    ) {
        let units = ["Cel", "degF", "%RH", "K"];
        let body: Vec<_> = values.iter().filter(|(value, ..)| value.is_finite()).map(|(value, unit, time)| json!({
            "device": "a", "metric": format!("m{unit}"), "value": value, "unit": units[*unit], "time": time
        })).collect();
        prop_assume!(!body.is_empty());
        let now = Timestamp::from_micros(0).unwrap();
        let records = readings_from("", &serde_json::to_vec(&body).unwrap(), now).unwrap();
        let rules = format!("calibration = [{{ metric = \"m0\", unit = \"K\", gain = {gain:e}, offset = {offset:e} }}]");
        let (processed, _) = process(&records, &Calibration::parse(&rules).unwrap());
        prop_assert_eq!(processed.readings.len(), records.len());
        for stored in processed.readings.iter().chain(&processed.derived) {
            prop_assert!(stored.value.is_finite(), "{:?}", stored);
        }
    }
}

/// As a request over HTTP: the first value counts, and the others are named.
#[tokio::test]
async fn another_value_for_the_same_key_in_a_task_is_refused_alone_and_the_others_are_processed() {
    let worker = |contradictions| {
        let builder = Worker::builder(WorkerConfig::default());
        let limits = Limits::default();
        TestWorker::new(register(builder, Calibration::default(), limits, contradictions)).unwrap()
    };
    let run = async |contradictions, body: &str| {
        let TestOutcome::Done(output) = worker(contradictions).run(Readings::KIND, body).await else {
            panic!("{body}")
        };
        (output.rows().iter().map(|row| row.value).collect::<Vec<_>>(), output.refused)
    };
    let reading =
        |metric: &str, value: f64| json!({"device":"d","metric":metric,"value":value,"time":1_790_000_000});
    let all = [("t", 20.0), ("t", 20.0), ("t", 21.0), ("p", 3.0), ("t", 22.0)];
    let body = json!(all.map(|(metric, value)| reading(metric, value))).to_string();
    let (rows, refused) = run(Contradictions::Refused, &body).await;
    assert_eq!(rows, [20.0, 20.0, 3.0]);
    let refused = refused.unwrap();
    let text = "value: device \"d\" has another value of metric \"t\" at this time; the first one counts";
    assert_eq!(refused.error, format!("record 2: {text}; record 4: {text}"));
    assert_eq!((refused.reason, refused.codes), (DeadReason::Conflict, vec!["duplicate"; 2]));
    let letter: serde_json::Value = serde_json::from_slice(&refused.payload).unwrap();
    assert_eq!((&letter[0]["value"], &letter[1]["value"]), (&json!(21.0), &json!(22.0)));
    assert_eq!(run(Contradictions::Processed, &body).await, (all.map(|(_, value)| value).to_vec(), None));
    // A pack's letter is a plain reading, which states its names.
    let pack = r#"[{"bn":"d/","bt":1790000000,"n":"t","v":1},{"n":"t","v":2}]"#;
    let refused = run(Contradictions::Refused, pack).await.1.unwrap();
    let expected = br#"{"device":"d","metric":"t","value":2.0,"time":"2026-09-21T14:13:20Z"}"#;
    assert_eq!((refused.payload.as_slice(), refused.content_type), (&expected[..], Some(ContentType::Json)));
}
