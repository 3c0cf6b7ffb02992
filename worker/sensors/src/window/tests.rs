use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;

#[derive(Deserialize)]
struct Case {
    name: String,
    seconds: Vec<f64>,
    values: Vec<Option<f64>>,
    expected: Json,
}

fn times(seconds: &[f64]) -> Vec<Timestamp> {
    seconds.iter().map(|second| Timestamp::from_unix_seconds(*second).unwrap()).collect()
}

/// Numbers may differ by 1e-9 of the larger of the reference and `scale`. Everything else must be equal.
fn compare(ours: &Json, theirs: &Json, scale: f64, path: &str) {
    match (ours, theirs) {
        (Json::Number(one), Json::Number(other)) => {
            let (one, other) = (one.as_f64().unwrap(), other.as_f64().unwrap());
            let allowed = 1e-9 * other.abs().max(scale);
            assert!((one - other).abs() <= allowed, "{path}: {one} is not {other}");
        }
        (Json::Array(ours), Json::Array(theirs)) if ours.len() == theirs.len() => {
            for (index, (one, other)) in ours.iter().zip(theirs).enumerate() {
                compare(one, other, scale, &format!("{path}[{index}]"));
            }
        }
        (Json::Object(ours), Json::Object(theirs)) => {
            for (name, other) in theirs {
                compare(&ours[name], other, scale, &format!("{path}.{name}"));
            }
        }
        _ => assert_eq!(ours, theirs, "{path}"),
    }
}

#[test]
fn statistics_match_numpy_and_scipy() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../../tests/references/window.json")).unwrap();
    assert!(cases.len() >= 19);
    for Case { name, seconds, values, expected } in cases {
        let answer = analyze(&Series { times: times(&seconds), values: values.clone() }, false).unwrap();
        assert!(answer.slope_exact, "{name}");
        // The precision of sums is limited by the largest summand.
        let largest = values.iter().flatten().fold(0.0_f64, |largest, value| largest.max(value.abs()));
        let span = seconds.iter().copied().fold(f64::NAN, f64::max)
            - seconds.iter().copied().fold(f64::NAN, f64::min);
        let ours = serde_json::to_value(&answer).unwrap();
        for (field, theirs) in expected.as_object().unwrap() {
            let scale = match field.as_str() {
                "slope" | "slope_interval" => 1e-3 * largest / span,
                "mean" | "std" | "mad" | "quantiles" => 1e-3 * largest,
                _ => 0.0,
            };
            compare(&ours[field], theirs, scale, &format!("{name}: {field}"));
        }
    }
}

#[tokio::test]
async fn the_result_has_the_documented_fields() {
    let payload: Payload = serde_json::from_value(json!({
        "device": "a", "metric": "t",
        "times": ["2026-11-20T00:00:10Z", 1_795_132_800, "2026-11-20T00:00:05Z", 1_795_132_815],
        "values": [2.0, 1.0, null, 3.5]
    }))
    .unwrap();
    assert_eq!(
        serde_json::to_value(answer(payload, None).await.unwrap()).unwrap(),
        json!({
            "unit": null, "count": 3, "missing": 1, "left_out": 0, "mean": 6.5 / 3.0, "std": 1.2583057392117916, "min": 1.0, "max": 3.5,
            "median": 2.0, "mad": 1.0,
            "quantiles": {"p01": 1.02, "p05": 1.1, "p25": 1.5, "p75": 2.75, "p95": 3.3499999999999996, "p99": 3.4699999999999998},
            "slope": 0.16666666666666666, "slope_interval": [0.1, 0.3], "slope_exact": true,
            "robust_z": null, "outliers": [], "drift": null, "anomalies": []
        })
    );
}

#[tokio::test]
async fn errors_name_the_field_and_the_reason() {
    let error = async |given: Json| {
        let mut whole = json!({"device": "a", "metric": "t"});
        whole.as_object_mut().unwrap().extend(given.as_object().unwrap().clone());
        let payload = serde_json::from_value(whole).unwrap();
        answer(payload, None).await.unwrap_err().message().to_owned()
    };
    let either = "expected either times and values, or from and to";
    assert_eq!(error(json!({})).await, either);
    assert_eq!(error(json!({"values": [1.0]})).await, either);
    assert_eq!(error(json!({"times": [1], "values": [1.0], "from": 1, "to": 2})).await, either);
    assert_eq!(
        error(json!({"from": 5, "to": 5})).await,
        "from 1970-01-01T00:00:05Z is not before to 1970-01-01T00:00:05Z"
    );
    assert_eq!(
        error(json!({"from": 4, "to": 5})).await,
        "from and to need stored readings, and this worker has no postgres_url"
    );
    assert_eq!(
        error(json!({"times": [1], "values": [1.0], "flagged": "include"})).await,
        "flagged: only allowed with from and to"
    );
    for name in ["device", "metric"] {
        let long = json!({name: "d".repeat(200_000), "times": [1], "values": [1.0]});
        assert_eq!(error(long).await, format!("{name} has 200000 bytes; at most 128 are allowed"));
    }
    let refused = |seconds: &[f64], values: &[Option<f64>]| {
        analyze(&Series { times: times(seconds), values: values.to_vec() }, false).map(|_| ())
    };
    assert_eq!(refused(&[], &[]), Err("the window has no values".into()));
    assert_eq!(refused(&[1.0], &[None]), Err("the window has no values".into()));
    assert_eq!(refused(&[1.0], &[]), Err("1 times for 0 values; expected as many".into()));
    assert_eq!(refused(&[1.0, 2.0], &[Some(1.0), Some(f64::NAN)]), Err("value 1 is not finite".into()));
}

fn extreme_value() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => -100.0..100.0_f64,
        2 => (-3..3_i32).prop_map(f64::from),
        2 => prop::sample::select(vec![0.0, -0.0, f64::MAX, f64::MIN, f64::MIN_POSITIVE, 5e-324, 1e-300, -1e300, 1e15]),
        1 => prop::num::f64::NORMAL,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn every_valid_window_gets_a_finite_result(
        points in prop::collection::vec((prop_oneof![0.0..1e3_f64, -6e10..2e11_f64], prop::option::weighted(0.9, extreme_value())), 0..60),
        pace in prop::option::of(0.001..90_000.0_f64),
    ) {
        let seconds: Vec<f64> =
            points.iter().zip(0..).map(|((second, _), index)| pace.map_or(*second, |pace| pace * f64::from(index))).collect();
        let values: Vec<Option<f64>> = points.iter().map(|(_, value)| *value).collect();
        match analyze(&Series { times: times(&seconds), values: values.clone() }, false) {
            Err(error) => prop_assert_eq!(error, "the window has no values"),
            Ok(answer) => {
                prop_assert!(answer.min <= answer.median && answer.median <= answer.max);
                prop_assert!(answer.mean.is_finite() && answer.mad >= 0.0);
                prop_assert!(answer.std.is_none_or(|std| std.is_finite() && std >= 0.0));
                let json = serde_json::to_value(&answer).unwrap();
                prop_assert!(json["mad"].is_number() && json["quantiles"]["p99"].is_number(), "{}", json);
                prop_assert!(answer.outliers.iter().all(|index| values[*index].is_some()));
            }
        }
    }
}
