use proptest::prelude::{ProptestConfig, prop, prop_assert_eq, proptest};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::*;

const HOUR: f64 = 3_600.0;

/// A room: daily rhythm, weather that wanders, a sensor's noise and resolution.
fn room(seed: u64, pace: f64, count: usize) -> (Vec<f64>, Vec<f64>) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut weather = 0.0;
    let seconds: Vec<f64> = (0..count).map(|place| place as f64 * pace).collect();
    let keep = (-pace / (12.0 * HOUR)).exp();
    let values = seconds.iter().map(|second| {
        weather = keep * weather + (1.0 - keep * keep).sqrt() * (random.random_range(-1.0..1.0) * 1.7);
        let rhythm = 4.0 * (second / DAY * std::f64::consts::TAU).sin();
        ((20.0 + rhythm + weather + random.random_range(-0.3..0.3)) * 100.0).round() / 100.0
    });
    let values = values.collect();
    (seconds, values)
}

type Fault = fn(&mut [f64], &mut StdRng);

const FAULTS: [(&str, Fault); 6] = [
    ("spike", |values, _| values[..2].iter_mut().for_each(|value| *value += 25.0)),
    ("step", |values, _| values.iter_mut().for_each(|value| *value -= 15.0)),
    ("stuck", |values, _| values.fill(values[0])),
    ("drift", |values, _| {
        let count = values.len() as f64;
        values.iter_mut().zip(0..).for_each(|(value, place)| *value += 20.0 * f64::from(place) / count);
    }),
    ("noise", |values, random| {
        values.iter_mut().for_each(|value| *value += random.random_range(-12.0..12.0));
    }),
    ("zero", |values, _| values.fill(0.0)),
];

#[test]
fn injected_faults_are_found_and_little_else() {
    let mut alarms_without_cause = 0;
    let mut weeks = 0.0;
    for (pace, count) in [(HOUR, 24 * 56), (300.0, 288 * 42), (60.0, 1_440 * 14)] {
        for seed in 0..3 {
            for (name, fault) in FAULTS {
                let (seconds, mut values) = room(seed, pace, count);
                let mut random = StdRng::seed_from_u64(seed + 100);
                let start = random.random_range(count / 2..count * 3 / 4);
                let end = start + (2.0 * DAY / pace) as usize;
                fault(&mut values[start..end], &mut random);
                let found = find(&seconds, &values);
                // What comes back to normal may be noticed too.
                let until = end + (DAY / pace) as usize;
                let (with, without): (Vec<_>, Vec<_>) =
                    found.into_iter().partition(|found| found.last >= start && found.first <= until);
                assert!(!with.is_empty(), "{name} every {pace} s, seed {seed}: not found");
                alarms_without_cause += without.len();
                weeks += count as f64 * pace / WEEK;
            }
        }
    }
    assert!(f64::from(alarms_without_cause as u32) < weeks, "{alarms_without_cause} in {weeks} weeks");
}

const WEEK: f64 = 7.0 * DAY;

#[test]
fn nothing_is_found_where_nothing_happens() {
    let flat = vec![5.0; 2_000];
    let seconds: Vec<f64> = (0..2_000).map(|place| f64::from(place) * HOUR).collect();
    assert_eq!(find(&seconds, &flat), []);
    let wave: Vec<f64> = seconds.iter().map(|second| (second / DAY * std::f64::consts::TAU).sin()).collect();
    assert_eq!(find(&seconds, &wave), []);
    assert_eq!(find(&[], &[]), []);
    assert_eq!(find(&[0.0; 500], &vec![1.0; 500]), []);
}

#[test]
fn unit_and_origin_do_not_matter() {
    let (seconds, mut values) = room(1, HOUR, 24 * 40);
    values[700] += 30.0;
    let found = find(&seconds, &values);
    let fahrenheit: Vec<f64> = values.iter().map(|value| value * 1.8 + 32.0).collect();
    let places = |found: &[Found]| {
        found.iter().map(|found| (found.first, found.last, found.signal)).collect::<Vec<_>>()
    };
    assert!(found.iter().any(|found| (found.first..=found.last).contains(&700)));
    assert_eq!(places(&find(&seconds, &fahrenheit)), places(&found));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// The future changes nothing: the series cut anywhere gives what it gave up to there.
    #[test]
    fn no_look_ahead(seed in 0_u64..1_000, cut in 100_usize..1_000, faults in prop::collection::vec((100_usize..1_000, -40.0..40.0_f64), 0..6)) {
        let (seconds, mut values) = room(seed, HOUR, 1_000);
        for (place, shift) in faults {
            values[place..(place + 5).min(1_000)].iter_mut().for_each(|value| *value += shift);
        }
        let upto = |found: Vec<Found>| found.into_iter().filter(|found| found.first < cut).map(|found| found.first).collect::<Vec<_>>();
        prop_assert_eq!(upto(find(&seconds[..cut], &values[..cut])), upto(find(&seconds, &values)));
    }
}
