//! The stock kinds as a worker runs them, without a broker.

use garenne::testing::{TestOutcome, TestWorker};
use garenne_protocol::task::DeadReason;
use garenne_sensors::reading_row::ReadingRows;
use garenne_worker::{StockConfig, cli::stock};

fn worker() -> TestWorker {
    TestWorker::new(stock(StockConfig::default()).unwrap()).unwrap()
}

async fn done(kind: &str, body: &str) -> serde_json::Value {
    match worker().run(kind, body).await {
        TestOutcome::Done(output) => serde_json::from_str(output.json.get()).unwrap(),
        other => panic!("{kind} was not done: {other:?}"),
    }
}

#[tokio::test]
async fn a_reading_is_stored_under_its_key() {
    let body =
        r#"{"device":"d","metric":"temperature","value":20.5,"unit":"Cel","time":"2026-01-01T00:00:00Z"}"#;
    match worker().run("reading.process", body).await {
        TestOutcome::Done(output) => {
            assert_eq!(output.rows().len(), 1);
            assert_eq!((&*output.rows()[0].device, output.rows()[0].value), ("d", 20.5));
        }
        other => panic!("not done: {other:?}"),
    }
}

#[tokio::test]
async fn a_reading_too_far_in_the_future_is_a_dead_letter() {
    let at = |seconds: u64| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        format!(
            r#"[{{"device":"d","metric":"m","value":1,"time":1700000000}},{{"device":"d","metric":"m","value":1,"time":{}}}]"#,
            now + seconds
        )
    };
    match worker().run("reading.process", at(3600)).await {
        TestOutcome::Dead { reason, error } => {
            assert_eq!(reason, DeadReason::InvalidPayload);
            assert!(
                error.starts_with("record 1: time: ") && error.contains("more than 11m ahead"),
                "{error}"
            );
        }
        other => panic!("{other:?}"),
    }
    // A task that a gateway with a slightly faster clock has receipted is done.
    assert!(matches!(worker().run("reading.process", at(630)).await, TestOutcome::Done(_)));
    let any_time = StockConfig { max_clock_skew: std::time::Duration::ZERO, ..StockConfig::default() };
    let worker = TestWorker::new(stock(any_time).unwrap()).unwrap();
    assert!(matches!(worker.run("reading.process", at(3600)).await, TestOutcome::Done(_)));
    // Milliseconds that were read as microseconds, and a clock that is not set.
    for (time, hint) in [("1763640.5", ""), ("0", "; is the sender's clock set?")] {
        let body = format!(r#"{{"device":"d","metric":"m","value":1,"time":{time}}}"#);
        match worker.run("reading.process", body).await {
            TestOutcome::Dead { reason: DeadReason::InvalidPayload, error } => {
                assert!(
                    error.contains("before min_time (1990-01-01T00:00:00Z)") && error.ends_with(hint),
                    "{error}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
    // Nanoseconds and milliseconds are no seconds.
    for time in ["1763640000000", "1763640000000000000", "1e300", "-1e300"] {
        let body = format!(r#"{{"device":"d","metric":"m","value":1,"time":{time}}}"#);
        assert!(matches!(
            worker.run("reading.process", body).await,
            TestOutcome::Dead { reason: DeadReason::InvalidPayload, .. }
        ));
    }
}

#[tokio::test]
async fn a_window_is_analyzed_from_inline_values() {
    let body = r#"{"device":"d","metric":"m","times":[0,1,2,3],"values":[1,2,3,4]}"#;
    let answer = done("window.analyze", body).await;
    assert_eq!((answer["count"].as_u64(), answer["mean"].as_f64()), (Some(4), Some(2.5)));
    assert_eq!(answer["slope"].as_f64(), Some(1.0));
}

#[tokio::test]
async fn a_stored_window_without_a_store_is_refused_by_name() {
    let body = r#"{"device":"d","metric":"m","from":0,"to":10}"#;
    let TestOutcome::Dead { reason, error } = worker().run("window.analyze", body).await else {
        panic!("it is refused");
    };
    assert_eq!(reason, DeadReason::Rejected);
    assert_eq!(error, "from and to need stored readings, and this worker has no postgres_url");
}

#[tokio::test]
async fn a_spectrum_finds_its_tone() {
    let samples: Vec<f64> =
        (0..4096).map(|i| (std::f64::consts::TAU * 50.0 * f64::from(i) / 1024.0).sin()).collect();
    let body = serde_json::json!({ "sample_rate": 1024, "samples": samples }).to_string();
    let answer = done("spectrum.analyze", &body).await;
    let hz = answer["peaks"][0]["hz"].as_f64().unwrap();
    assert!((hz - 50.0).abs() < 1.0, "{hz}");
}

#[tokio::test]
async fn the_wrong_json_and_no_json_die_of_different_reasons() {
    for (kind, body, reason) in [
        ("spectrum.analyze", "{\"sample_rate\":", DeadReason::Malformed),
        ("spectrum.analyze", "{\"sample_rate\":1}", DeadReason::InvalidPayload),
        ("spectrum.analyze", "", DeadReason::Malformed),
        ("reading.process", "{\"device\":", DeadReason::Malformed),
        ("reading.process", "{\"device\":1}", DeadReason::InvalidPayload),
        ("reading.process", "", DeadReason::Malformed),
    ] {
        match worker().run(kind, body).await {
            TestOutcome::Dead { reason: found, .. } => assert_eq!(found, reason, "{body}"),
            other => panic!("{body}: {other:?}"),
        }
    }
}
