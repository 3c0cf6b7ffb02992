use std::num::NonZeroUsize;

use base64::{Engine, engine::general_purpose::STANDARD};
use garenne::{
    Worker, WorkerConfig,
    testing::{TestOutcome, TestWorker},
};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;

#[derive(Deserialize)]
struct Case {
    name: String,
    sample_rate: f64,
    segment: usize,
    envelope_band: Option<[f64; 2]>,
    samples: Samples,
    expected: Expected,
}

#[derive(Deserialize)]
struct Expected {
    mean: f64,
    rms: f64,
    peak: f64,
    crest_factor: f64,
    kurtosis: f64,
    resolution: f64,
    density: Vec<f64>,
    peaks: Vec<ExpectedPeak>,
    envelope: Vec<f64>,
    envelope_peaks: Vec<ExpectedPeak>,
}

#[derive(Deserialize)]
struct ExpectedPeak {
    hz: f64,
    power: f64,
}

fn proceed(_: f64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn parse(given: Json) -> Payload {
    serde_json::from_value(given).unwrap()
}

fn assert_close(ours: f64, theirs: f64, scale: f64, context: &str) {
    let allowed = 1e-6 * theirs.abs() + 1e-12 * scale;
    assert!((ours - theirs).abs() <= allowed, "{context}: {ours} is not {theirs}");
}

#[test]
fn spectra_match_scipy() {
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../../tests/references/spectrum.json")).unwrap();
    assert_eq!(cases.len(), 7);
    for Case { name, sample_rate, segment, envelope_band, samples, expected } in cases {
        let welch = Welch::new(segment, sample_rate);
        let signal = Arc::new(Signal::from(samples.as_slice().to_vec()));
        let density = welch.estimate(signal, &mut Parts::InPlace(&mut proceed), 0.0..1.0).now_or_never();
        let density = density.unwrap().unwrap();
        let highest = expected.density.iter().copied().fold(0.0, f64::max);
        assert_eq!(density.len(), expected.density.len(), "{name}");
        for (index, (ours, theirs)) in density.iter().zip(&expected.density).enumerate() {
            assert_close(*ours, *theirs, highest, &format!("{name}: density {index}"));
        }
        let envelope = envelope::envelope(samples.as_slice(), sample_rate, envelope_band);
        for (index, (ours, theirs)) in envelope.iter().step_by(16).zip(&expected.envelope).enumerate() {
            assert_close(*ours, *theirs, expected.peak * 1e3, &format!("{name}: envelope {index}"));
        }
        let payload =
            Payload { sample_rate, samples, segment: Some(segment), envelope_band, ..Payload::default() };
        let answer = analyze(&payload, &mut proceed).unwrap();
        let alike = |ours: f64, theirs: f64, field: &str| {
            assert_close(ours, theirs, expected.peak, &format!("{name}: {field}"));
        };
        alike(answer.shape.mean, expected.mean, "mean");
        alike(answer.shape.rms, expected.rms, "rms");
        alike(answer.shape.peak, expected.peak, "peak");
        assert_close(answer.shape.crest_factor.unwrap(), expected.crest_factor, 0.0, &name);
        assert_close(answer.shape.kurtosis.unwrap(), expected.kurtosis, 0.0, &name);
        assert_close(answer.resolution, expected.resolution, 0.0, &name);
        for (ours, theirs) in
            [(&answer.peaks, &expected.peaks), (&answer.envelope_peaks, &expected.envelope_peaks)]
        {
            assert_eq!(ours.len(), theirs.len(), "{name}");
            for (ours, theirs) in ours.iter().zip(theirs) {
                assert_close(ours.hz, theirs.hz, 0.0, &format!("{name}: hz"));
                assert_close(ours.power, theirs.power, 0.0, &format!("{name}: power"));
            }
        }
        // Parseval: the bands together contain the mean square of the deviations from the segments' means.
        let whole: f64 = answer.bands.iter().map(|band| band.energy).sum();
        let total: f64 = expected.density.iter().sum::<f64>() * expected.resolution;
        assert_close(whole, total, 0.0, &format!("{name}: bands"));
    }
}

#[test]
fn a_defect_of_a_bearing_ring_is_identified() {
    let bearing =
        Bearing { balls: 9, ball_diameter: 7.94, pitch_diameter: 39.04, contact_angle: 0.0, shaft_hz: 29.95 };
    let rate = 12_000.0;
    // The frequencies given by the Bearing Data Center of Case Western Reserve University.
    for ((name, hz), factor) in bearing.frequencies().into_iter().zip([3.5848, 5.4152, 2.3567, 0.3983]) {
        assert!((hz / 29.95 - factor).abs() < 2e-3, "{name}: {}", hz / 29.95);
    }
    for (name, hz) in bearing.frequencies().into_iter().take(2) {
        let mut state = 1_u64;
        let mut noise = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 11) as f64 / (1_u64 << 53) as f64 - 0.5
        };
        let samples = (0..24_000).map(|index| {
            let since = (f64::from(index) / rate * hz).fract() / hz;
            (-900.0 * since).exp() * (3_100.0 * since * std::f64::consts::TAU).sin() + 0.4 * noise()
        });
        let samples: Vec<f64> = samples.collect();
        let payload = Payload {
            sample_rate: rate,
            samples: samples.into(),
            bearing: Some(bearing),
            segment: Some(8_192),
            ..Payload::default()
        };
        let answer = analyze(&payload, &mut proceed).unwrap();
        let strongest = answer.defects.iter().max_by(|one, other| one.power.total_cmp(&other.power)).unwrap();
        assert_eq!(strongest.name, name);
        assert!(strongest.ratio.unwrap() > 100.0, "{strongest:?}");
        assert!((answer.envelope_peaks[0].hz - hz).abs() < 0.5, "{:?}", answer.envelope_peaks);
    }
}

#[test]
fn the_result_has_the_documented_fields() {
    let wave: Vec<f64> = (0..64).map(|index| f64::from(index % 4 - 1)).collect();
    let payload = json!({"device": "pump-3", "sample_rate": 64, "samples": wave, "segment": 32, "bands": [[0, 8], [8, 33]],
        "bearing": {"balls": 8, "ball_diameter": 1, "pitch_diameter": 4, "shaft_hz": 2}});
    let answer = serde_json::to_value(analyze(&parse(payload), &mut proceed).unwrap()).unwrap();
    for (field, value) in [
        ("device", json!("pump-3")),
        ("count", json!(64)),
        ("mean", json!(0.5)),
        ("peak", json!(2.0)),
        ("resolution", json!(2.0)),
    ] {
        assert_eq!(answer[field], value, "{field}");
    }
    let names = |value: &Json| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(
        names(&answer),
        [
            "bands",
            "count",
            "crest_factor",
            "defects",
            "device",
            "envelope_peaks",
            "kurtosis",
            "mean",
            "peak",
            "peaks",
            "resolution",
            "rms"
        ]
    );
    assert_eq!(names(&answer["peaks"][0]), ["hz", "power"]);
    assert_eq!(names(&answer["bands"][0]), ["energy", "from", "to"]);
    assert_eq!(names(&answer["defects"][0]), ["hz", "name", "power", "ratio"]);
    assert_eq!(answer["peaks"][0]["hz"], json!(16.0));
}

fn noise(count: usize) -> Vec<f64> {
    let mut state = 1_u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 11) as f64 / (1_u64 << 53) as f64 - 0.5
    };
    (0..count).map(next).collect()
}

#[test]
fn an_envelope_in_parts_is_that_of_the_whole_signal() {
    for (count, band) in [(65_600, None), (70_560, Some([5.0, 300.0])), (131_072, Some([0.0, 600.0]))] {
        let samples = noise(count);
        let whole = envelope::envelope(&samples, 1_000.0, band);
        let signal = Arc::new(Signal::from(samples));
        let mut parts = Parts::InPlace(&mut proceed);
        let in_parts = envelope::envelope_in_parts(&signal, count, 1_000.0, band, &mut parts, 0.0..1.0);
        let in_parts = in_parts.now_or_never().unwrap().unwrap();
        assert_eq!(in_parts.len(), count);
        let mut read = vec![0.0; count - 1];
        in_parts.read(1, &mut read);
        for (index, (one, other)) in read.iter().zip(&whole[1..]).enumerate() {
            assert!((one - other).abs() < 1e-12, "{count} {band:?}: sample {index}: {one} is not {other}");
        }
    }
}

/// The result must not depend on how many workers helped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_number_of_workers_gives_the_same_bits() {
    let floats = noise(150_000).into_iter().flat_map(|sample| (sample as f32).to_le_bytes());
    let samples = STANDARD.encode(floats.collect::<Vec<u8>>());
    for band in [json!(null), json!([100, 400])] {
        let body = json!({ "sample_rate": 1_000, "samples": samples, "envelope_band": band }).to_string();
        assert!(body.len() > HELPED_FROM);
        let mut results = Vec::new();
        for workers in [1, 2, 4, 4] {
            let worker = TestWorker::new(register(Worker::builder(WorkerConfig::default()))).unwrap();
            let worker = worker.workers(NonZeroUsize::new(workers).unwrap());
            let TestOutcome::Done(output) = worker.run("spectrum.analyze", body.clone()).await else {
                panic!("the samples are valid");
            };
            results.push(output.json.get().to_owned());
        }
        assert!(results.iter().all(|result| *result == results[0]), "{results:?}");
        let payload = serde_json::from_str(&body).unwrap();
        let alone = analyze(&payload, &mut proceed).unwrap();
        assert_eq!(serde_json::to_string(&alone).unwrap(), results[0]);
    }
}

#[test]
fn the_transform_omits_at_most_one_percent_of_the_samples() {
    assert_eq!(envelope::transform_length(65_521), 65_521);
    assert_eq!(envelope::transform_length(1_000_000), 1_000_000);
    assert_eq!(envelope::transform_length(1 << 20), 1 << 20);
    for count in (65_537..MAX_SAMPLES).step_by(99_991) {
        let kept = envelope::transform_length(count);
        assert!(kept <= count && kept * 100 >= count * 99, "{count}: {kept}");
    }
}

#[test]
fn zero_and_constant_signals_have_results() {
    let of = |value: f64| {
        let payload = Payload { sample_rate: 100.0, samples: vec![value; 100].into(), ..Payload::default() };
        analyze(&payload, &mut proceed).unwrap()
    };
    let silence = of(0.0);
    assert_eq!((silence.shape.rms, silence.shape.crest_factor, silence.shape.kurtosis), (0.0, None, None));
    assert!(silence.peaks.is_empty() && silence.envelope_peaks.is_empty());
    let constant = of(-2.5);
    assert_eq!(
        (constant.shape.rms, constant.shape.mean, constant.shape.crest_factor, constant.shape.kurtosis),
        (2.5, -2.5, Some(1.0), None)
    );
}

/// The frequencies of the peaks of a signal, and of those of its envelope.
fn peaks_of(rate: f64, count: u32, signal: impl Fn(f64) -> f64) -> (Vec<f64>, Vec<f64>) {
    let samples: Vec<f64> = (0..count).map(|index| signal(f64::from(index))).collect();
    let payload = Payload { sample_rate: rate, samples: samples.into(), ..Payload::default() };
    let answer = analyze(&payload, &mut proceed).unwrap();
    let hz = |peaks: Vec<Peak>| peaks.into_iter().map(|peak| peak.hz).collect();
    (hz(answer.peaks), hz(answer.envelope_peaks))
}

#[test]
fn tones_up_to_half_the_rate_are_peaks_and_rounding_is_none() {
    use std::f64::consts::PI;
    for (rate, count) in [(1_000.0, 4_096), (1e-3, 1_000), (48_000.0, 100_000), (1e9, 300)] {
        let nyquist = peaks_of(rate, count, |index| 3e4 * (PI * index).cos());
        assert_eq!(nyquist, (vec![rate / 2.0], vec![]), "{rate} {count}");
        for offset in [0.1, -9.81, 1e6, 1e-30] {
            assert_eq!(peaks_of(rate, count, |_| offset), (vec![], vec![]), "{rate} {count} {offset}");
        }
        // A tone between 0 Hz and half the rate, 140 dB above another one.
        let tones = |index: f64| (0.25 * PI * (index % 8.0)).sin() + 1e-7 * (0.75 * PI * (index % 8.0)).sin();
        let (peaks, _) = peaks_of(rate, count, tones);
        assert_eq!(peaks.len(), 2, "{rate} {count}: {peaks:?}");
        for (hz, share) in peaks.iter().zip([0.125, 0.375]) {
            assert!((hz / rate - share).abs() < 1e-3, "{rate} {count}: {peaks:?}");
        }
    }
}

#[test]
fn an_analysis_reports_progress_and_can_be_stopped() {
    let payload = Payload {
        sample_rate: 1.0,
        samples: vec![1.0; 50_000].into(),
        segment: Some(256),
        ..Payload::default()
    };
    let mut reports = Vec::new();
    analyze(&payload, &mut |done| (reports.push(done), ControlFlow::Continue(())).1).unwrap();
    assert!(
        reports.is_sorted() && reports.len() > 20 && reports.iter().all(|done| (0.0..=1.0).contains(done))
    );
    for stop_at in [1, 5, reports.len()] {
        let mut calls = 0;
        let stopped = analyze(&payload, &mut |_| {
            calls += 1;
            if calls == stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!((stopped, calls), (Err(SpectrumError::Stopped), stop_at));
    }
}

#[test]
fn errors_name_the_field_and_the_reason() {
    let ok = || Payload { sample_rate: 100.0, samples: vec![1.0; 100].into(), ..Payload::default() };
    let bearing =
        Bearing { balls: 9, ball_diameter: 1.0, pitch_diameter: 5.0, contact_angle: 0.0, shaft_hz: 30.0 };
    let mut bad = vec![1.0; 100];
    bad[7] = f64::NAN;
    for (payload, message) in [
        (Payload { sample_rate: 0.0, ..ok() }, "sample_rate is 0; expected 1e-9 to 1e12 samples per second"),
        (
            Payload { sample_rate: f64::NAN, ..ok() },
            "sample_rate is NaN; expected 1e-9 to 1e12 samples per second",
        ),
        (
            Payload { device: Some("d".repeat(200_000)), ..ok() },
            "device has 200000 bytes; at most 128 are allowed",
        ),
        (Payload { samples: vec![1.0; 15].into(), ..ok() }, "15 samples; expected 16 to 16777216"),
        (Payload { samples: bad.into(), ..ok() }, "sample 7 is NaN; expected a magnitude of at most 1e100"),
        (Payload { segment: Some(101), ..ok() }, "segment is 101; expected 16 to 100, the number of samples"),
        (
            Payload { bands: Some(vec![[5.0, 5.0]]), ..ok() },
            "band is [5, 5]; expected two ascending frequencies of 0 Hz or more",
        ),
        (
            Payload { envelope_band: Some([-1.0, 5.0]), ..ok() },
            "band is [-1, 5]; expected two ascending frequencies of 0 Hz or more",
        ),
        (Payload { bands: Some(vec![[0.0, 1.0]; 257]), ..ok() }, "257 bands; at most 256 are allowed"),
        (
            Payload { bearing: Some(Bearing { balls: 2, ..bearing }), ..ok() },
            "bearing: balls: expected 3 to 200",
        ),
        (
            Payload { bearing: Some(Bearing { ball_diameter: 5.0, ..bearing }), ..ok() },
            "bearing: ball_diameter: expected less than pitch_diameter",
        ),
        (
            Payload { bearing: Some(Bearing { contact_angle: 90.0, ..bearing }), ..ok() },
            "bearing: contact_angle: expected 0 to less than 90 degrees",
        ),
    ] {
        assert_eq!(analyze(&payload, &mut proceed).unwrap_err().to_string(), message);
    }
    let parse_error = |samples: Json| serde_json::from_value::<Samples>(samples).unwrap_err().to_string();
    assert_eq!(parse_error(json!("AAA=A")), "samples: not base64: Invalid symbol 61, offset 3.");
    assert_eq!(
        parse_error(json!("AAAAAAA=")),
        "samples: 5 bytes; expected a multiple of 4, the size of a 32-bit float"
    );
    assert_eq!(parse_error(json!(["1"])), "invalid type: string \"1\", expected f64");
    assert_eq!(
        parse_error(json!(1)),
        "invalid type: integer `1`, expected an array of numbers, or base64 of little-endian 32-bit floats"
    );
}

fn extreme_value() -> impl Strategy<Value = f64> {
    prop_oneof![
        6 => -1.0..1.0_f64,
        1 => prop::sample::select(vec![0.0, 1e100, -1e100, 5e-324, f64::MIN_POSITIVE, 1e101, f64::MAX, f64::NAN, f64::INFINITY]),
        1 => prop::num::f64::NORMAL,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn every_valid_signal_gets_a_finite_result(
        samples in prop_oneof![
            prop::collection::vec(-1.0..1.0_f64, 0..300),
            prop::collection::vec(extreme_value(), 0..40),
            prop::collection::vec(prop::sample::select(vec![0.0, 1e-310, 1e-160]), 16..40),
        ],
        sample_rate in prop_oneof![4 => 1.0..1e5_f64, 1 => extreme_value()],
        segment in prop::option::weighted(0.3, 0..400_usize),
        envelope_band in prop::option::weighted(0.3, [0.0..1e4_f64, 0.0..1e5_f64]),
        bearing in prop::option::weighted(0.3, (0..30_u32, [-1.0..50.0_f64, -1.0..100.0, 0.0..100.0, 0.0..1e4])),
    ) {
        let bearing = bearing.map(|(balls, [ball_diameter, pitch_diameter, contact_angle, shaft_hz])| Bearing {
            balls, ball_diameter, pitch_diameter, contact_angle, shaft_hz,
        });
        let payload = Payload { sample_rate, samples: samples.into(), segment, envelope_band, bearing, ..Payload::default() };
        if let Ok(answer) = analyze(&payload, &mut proceed) {
            let json = serde_json::to_value(&answer).unwrap();
            for field in ["rms", "peak", "mean"] {
                prop_assert!(json[field].is_number(), "{}: {}", field, json);
            }
            prop_assert!(json["bands"].as_array().unwrap().iter().all(|band| band["energy"].is_number()), "{}", json);
            prop_assert!(json["peaks"].as_array().unwrap().iter().all(|peak| peak["hz"].is_number()), "{}", json);
        }
    }
}
