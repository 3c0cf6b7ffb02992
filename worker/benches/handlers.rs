//! The cost of the stock handlers on one core, without broker and sinks.
//!
//! `./dev bench handlers [--json FILE] [--rounds N]`
//!
//! A reading is one record of a SenML pack of a hundred, from the bytes of the body to calibrated and
//! derived values; times and allocations of `…/record` are those of one record.

// The pool's bench has the same stopwatch and rounds.
#[path = "../../common/pool/benches/pool/harness.rs"]
mod harness;

use std::{f64::consts::TAU, fmt::Write as _, hint::black_box, io, num::NonZeroUsize, ops::ControlFlow};

use base64::{Engine, engine::general_purpose::STANDARD};
use garenne::{
    Worker, WorkerConfig,
    testing::{TestOutcome, TestWorker},
};
use garenne_bench::{Rows, number};
use garenne_protocol::sensor::{Timestamp, readings_from};
use garenne_sensors::{
    reading::{Calibration, process},
    spectrum, window,
};
use harness::{Contestant, Watch, compete};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::runtime::Runtime;

/// Records of a pack: temperature and humidity of fifty devices, so that each pair gives derived values.
const RECORDS: u64 = 100;
/// Packs in one measured run.
const PACKS: u64 = 2_000;

fn readings(calibrated: bool) -> Contestant {
    let mut pack = String::from("[");
    for device in 0..RECORDS / 2 {
        let comma = if device == 0 { "" } else { "," };
        let name = format!("urn:dev:mac:0024befffe80{device:04x}");
        write!(
            pack,
            r#"{comma}{{"bn":"{name}_","bt":1.79e9,"n":"temperature","u":"Cel","v":{}.25}},{{"n":"humidity","u":"%RH","v":{}.5}}"#,
            15 + device % 20,
            40 + device % 50,
        )
        .expect("writing to a string");
    }
    pack.push(']');
    let rules = r#"
        [[calibration]]
        metric = "temperature"
        unit = "Cel"
        gain = 1.02
        offset = -0.3
        valid = [-40.0, 85.0]"#;
    let calibration =
        if calibrated { Calibration::parse(rules).expect("rules") } else { Calibration::default() };
    let now = Timestamp::from_unix_seconds(1.79e9).expect("a time");
    let run = move || {
        let watch = Watch::start();
        for _ in 0..PACKS {
            let records =
                readings_from("application/senml+json", black_box(pack.as_bytes()), now).expect("a pack");
            let (processed, rows) = process(&records, &calibration);
            assert_eq!(processed.derived.len() as u64, RECORDS / 2 * 3);
            black_box((processed, rows));
        }
        watch.stop()
    };
    let name = if calibrated { "calibrated" } else { "plain" };
    Contestant::new(&format!("handlers/reading.process/pack-{RECORDS}/{name}/record"), PACKS * RECORDS, run)
}

fn window(count: usize) -> Contestant {
    let mut random = StdRng::seed_from_u64(1);
    let second = |place: usize| Timestamp::from_unix_seconds(1.7e9 + 60.0 * place as f64).expect("a time");
    let times: Vec<_> = (0..count).map(second).collect();
    let value = |place: usize| 20.0 + (place as f64 / 1440.0 * TAU).sin() + random.random_range(-0.5..0.5);
    let values: Vec<_> = (0..count).map(value).map(Some).collect();
    let series = window::Series { times, values };
    let run = move || {
        let watch = Watch::start();
        black_box(window::analyze(black_box(&series), false).expect("an answer"));
        watch.stop()
    };
    Contestant::new(&format!("handlers/window.analyze/{count}"), 1, run)
}

fn spectrum(count: usize) -> Contestant {
    let mut random = StdRng::seed_from_u64(2);
    let sample = |place: usize| (place as f64 / 25_600.0 * 50.0 * TAU).sin() + random.random_range(-0.3..0.3);
    let samples: Vec<f64> = (0..count).map(sample).collect();
    let payload = serde_json::json!({ "sample_rate": 25_600, "samples": samples }).to_string();
    let payload: spectrum::Payload = serde_json::from_str(&payload).expect("a payload");
    let run = move || {
        let watch = Watch::start();
        let answer = spectrum::analyze(black_box(&payload), &mut |_| ControlFlow::Continue(()));
        black_box(answer.expect("an answer"));
        watch.stop()
    };
    Contestant::new(&format!("handlers/spectrum.analyze/{count}"), 1, run)
}

/// The kind as a lane with `workers` workers runs it, from the body to the output.
fn spread_spectrum(count: usize, workers: usize) -> Contestant {
    let mut random = StdRng::seed_from_u64(3);
    let samples = (0..count).flat_map(|_| random.random_range(-1.0_f32..1.0).to_le_bytes());
    let samples = STANDARD.encode(samples.collect::<Vec<_>>());
    let body = serde_json::json!({ "sample_rate": 25_600, "samples": samples }).to_string();
    let builder = spectrum::register(Worker::builder(WorkerConfig::default()));
    let worker = TestWorker::new(builder).expect("a worker");
    let worker = worker.workers(NonZeroUsize::new(workers).expect("at least one worker"));
    let runtime = Runtime::new().expect("a runtime");
    let run = move || {
        let body = body.clone();
        let watch = Watch::start();
        let outcome = runtime.block_on(worker.run("spectrum.analyze", black_box(body)));
        assert!(matches!(black_box(outcome), TestOutcome::Done(_)));
        watch.stop()
    };
    Contestant::new(&format!("handlers/spectrum.analyze/{count}/workers-{workers}"), 1, run)
}

fn main() -> io::Result<()> {
    let rounds = number("--rounds", 15).map_err(io::Error::other)?;
    let contestants = vec![readings(false), readings(true), window(10_000), spectrum(1_000_000)];
    let spread = [780_000, 1 << 24].into_iter().flat_map(|count| [1, 2, 4].map(|workers| (count, workers)));
    let spread = spread.map(|(count, workers)| spread_spectrum(count, workers));
    let contestants = contestants.into_iter().chain(spread).collect();
    let mut rows = Rows::default();
    compete(contestants, rounds, "", &mut rows);
    rows.publish()
}
