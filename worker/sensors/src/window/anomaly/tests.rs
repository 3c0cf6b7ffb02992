use proptest::prelude::{ProptestConfig, prop, prop_assert_eq, proptest};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::{blocks::DAY, *};

const HOUR: f64 = 3_600.0;

/// A room temperature: a daily cycle, slowly varying weather, sensor noise and resolution.
fn room(seed: u64, interval: f64, count: usize) -> (Vec<f64>, Vec<f64>) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut weather = 0.0;
    let seconds: Vec<f64> = (0..count).map(|index| index as f64 * interval).collect();
    let keep = (-interval / (12.0 * HOUR)).exp();
    let values = seconds.iter().map(|second| {
        weather = keep * weather + (1.0 - keep * keep).sqrt() * (random.random_range(-1.0..1.0) * 1.7);
        let cycle = 4.0 * (second / DAY * std::f64::consts::TAU).sin();
        ((20.0 + cycle + weather + random.random_range(-0.3..0.3)) * 100.0).round() / 100.0
    });
    let values = values.collect();
    (seconds, values)
}

/// An anomaly by index.
#[derive(Debug, PartialEq)]
struct AnomalyRange {
    first: usize,
    last: usize,
    signal: Signal,
}

fn detect(seconds: &[f64], values: &[f64]) -> Vec<AnomalyRange> {
    let time = |index| Timestamp::from_micros(index as i64).unwrap();
    let index = |time: Timestamp| time.as_micros() as usize;
    let range = |found: Anomaly| AnomalyRange {
        first: index(found.start),
        last: index(found.end),
        signal: found.signal,
    };
    super::detect(seconds, values, time).into_iter().map(range).collect()
}

type Fault = fn(&mut [f64], &mut StdRng);

const FAULTS: [(&str, Fault); 6] = [
    ("spike", |values, _| values[..2].iter_mut().for_each(|value| *value += 25.0)),
    ("step", |values, _| values.iter_mut().for_each(|value| *value -= 15.0)),
    ("stuck", |values, _| values.fill(values[0])),
    ("drift", |values, _| {
        let count = values.len() as f64;
        values.iter_mut().zip(0..).for_each(|(value, index)| *value += 20.0 * f64::from(index) / count);
    }),
    ("noise", |values, random| {
        values.iter_mut().for_each(|value| *value += random.random_range(-12.0..12.0));
    }),
    ("zero", |values, _| values.fill(0.0)),
];

#[test]
fn injected_faults_are_detected_with_few_false_alarms() {
    let mut false_alarms = 0;
    let mut weeks = 0.0;
    for (interval, count) in [(HOUR, 24 * 56), (300.0, 288 * 42), (60.0, 1_440 * 14)] {
        for seed in 0..3 {
            for (name, fault) in FAULTS {
                let (seconds, mut values) = room(seed, interval, count);
                let mut random = StdRng::seed_from_u64(seed + 100);
                let start = random.random_range(count / 2..count * 3 / 4);
                let end = start + (2.0 * DAY / interval) as usize;
                fault(&mut values[start..end], &mut random);
                let found = detect(&seconds, &values);
                // The return to normal may be detected, too.
                let until = end + (DAY / interval) as usize;
                let (detected, others): (Vec<_>, Vec<_>) =
                    found.into_iter().partition(|found| found.last >= start && found.first <= until);
                assert!(!detected.is_empty(), "{name} every {interval} s, seed {seed}: not detected");
                false_alarms += others.len();
                weeks += count as f64 * interval / WEEK;
            }
        }
    }
    assert!(f64::from(false_alarms as u32) < weeks, "{false_alarms} in {weeks} weeks");
}

const WEEK: f64 = 7.0 * DAY;

#[test]
fn constant_and_periodic_series_have_no_anomalies() {
    let flat = vec![5.0; 2_000];
    let seconds: Vec<f64> = (0..2_000).map(|index| f64::from(index) * HOUR).collect();
    assert_eq!(detect(&seconds, &flat), []);
    let wave: Vec<f64> = seconds.iter().map(|second| (second / DAY * std::f64::consts::TAU).sin()).collect();
    assert_eq!(detect(&seconds, &wave), []);
    assert_eq!(detect(&[], &[]), []);
    assert_eq!(detect(&[0.0; 500], &vec![1.0; 500]), []);
}

#[test]
fn anomalies_do_not_depend_on_unit_and_origin() {
    let (seconds, mut values) = room(1, HOUR, 24 * 40);
    values[700] += 30.0;
    let found = detect(&seconds, &values);
    let fahrenheit: Vec<f64> = values.iter().map(|value| value * 1.8 + 32.0).collect();
    let ranges = |found: &[AnomalyRange]| {
        found.iter().map(|found| (found.first, found.last, found.signal)).collect::<Vec<_>>()
    };
    assert!(found.iter().any(|found| (found.first..=found.last).contains(&700)));
    assert_eq!(ranges(&detect(&seconds, &fahrenheit)), ranges(&found));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A prefix of a series has the same anomalies as the whole series up to its end.
    #[test]
    fn later_values_do_not_change_earlier_anomalies(seed in 0_u64..1_000, cut in 100_usize..1_000, faults in prop::collection::vec((100_usize..1_000, -40.0..40.0_f64), 0..6)) {
        let (seconds, mut values) = room(seed, HOUR, 1_000);
        for (index, shift) in faults {
            values[index..(index + 5).min(1_000)].iter_mut().for_each(|value| *value += shift);
        }
        let upto = |found: Vec<AnomalyRange>| found.into_iter().filter(|found| found.first < cut).map(|found| found.first).collect::<Vec<_>>();
        prop_assert_eq!(upto(detect(&seconds[..cut], &values[..cut])), upto(detect(&seconds, &values)));
    }
}
