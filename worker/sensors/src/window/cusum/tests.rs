use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;

/// Standard normal values (Box and Muller 1958).
fn normal(random: &mut StdRng) -> f64 {
    let radius = (-2.0 * (1.0 - random.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.random::<f64>()).cos()
}

/// Values of which half are beyond ±1 and some are a thousand times as large; they have no variance (Cauchy).
fn heavy_tailed(random: &mut StdRng) -> f64 {
    (std::f64::consts::PI * (random.random::<f64>() - 0.5)).tan()
}

/// Values of standard deviation 1, of which each resembles the one before it by the factor `correlation`.
fn autoregressive(random: &mut StdRng, count: usize, correlation: f64) -> Vec<f64> {
    let innovation = (1.0 - correlation * correlation).sqrt();
    let mut last = normal(random);
    let mut next = || {
        last = correlation * last + innovation * normal(random);
        last
    };
    (0..count).map(|_| next()).collect()
}

/// The part of windows in which a drift is found. The same seed gives the same windows.
fn rate(windows: usize, mut window: impl FnMut(&mut StdRng) -> Vec<f64>) -> f64 {
    let mut random = StdRng::seed_from_u64(20_261_124);
    let found =
        (0..windows).filter(|_| drift(&window(&mut random)).is_some_and(|drift| drift.since.is_some()));
    found.count() as f64 / windows as f64
}

/// The largest rate that chance leaves if the true rate is `expected`, in 999 of 1,000 tests.
fn upper_bound(expected: f64, windows: usize) -> f64 {
    expected + 3.1 * (expected * (1.0 - expected) / windows as f64).sqrt()
}

#[test]
fn values_without_drift_raise_at_most_one_false_alarm_in_a_hundred_windows() {
    for (count, windows) in [(16, 2_000), (32, 2_000), (100, 2_000), (500, 500), (2_000, 200), (10_000, 50)] {
        let normal_rate = rate(windows, |random| (0..count).map(|_| normal(random)).collect());
        let heavy_rate = rate(windows / 2, |random| (0..count).map(|_| heavy_tailed(random)).collect());
        assert!(normal_rate <= upper_bound(0.01, windows), "{count} normal values: {normal_rate}");
        assert!(heavy_rate <= upper_bound(0.01, windows / 2), "{count} heavy-tailed values: {heavy_rate}");
    }
}

/// The rates that docs/sensor-data.md states.
#[test]
fn autocorrelated_values_raise_few_more_false_alarms() {
    for (correlation, count, windows, stated) in [
        (0.5, 32, 1_000, 0.05),
        (0.5, 100, 1_000, 0.02),
        (0.5, 500, 400, 0.012),
        (0.5, 2_000, 100, 0.012),
        (0.8, 100, 500, 0.065),
        (0.8, 500, 400, 0.015),
    ] {
        let found = rate(windows, |random| autoregressive(random, count, correlation));
        assert!(found <= upper_bound(stated, windows), "{count} values, correlation {correlation}: {found}");
    }
}

/// The power that docs/sensor-data.md states.
#[test]
fn nine_of_ten_steps_and_steady_drifts_of_the_stated_size_are_found() {
    for (count, windows) in [(32, 400), (100, 400), (500, 200), (2_000, 60), (10_000, 20)] {
        let root = (count as f64).sqrt();
        let part = |index: usize| index as f64 / count as f64;
        let step = |index: usize| if index < count / 2 { 0.0 } else { 10.0 / root };
        let slope = |index: usize| 18.0 / root * part(index);
        let step_rate =
            rate(windows, |random| (0..count).map(|index| normal(random) + step(index)).collect());
        let slope_rate =
            rate(windows, |random| (0..count).map(|index| normal(random) + slope(index)).collect());
        let least = 1.0 - upper_bound(0.1, windows);
        assert!(step_rate >= least, "a step among {count} values: {step_rate}");
        assert!(slope_rate >= least, "a steady drift of {count} values: {slope_rate}");
    }
}

fn since(values: impl IntoIterator<Item = f64>) -> Option<usize> {
    drift(&values.into_iter().collect::<Vec<_>>()).unwrap().since
}

#[test]
fn since_is_where_the_level_changes() {
    let mut random = StdRng::seed_from_u64(1);
    let step = |index: usize| if index < 200 { 20.0 } else { 25.0 };
    assert_eq!(since((0..300).map(|index| step(index) + normal(&mut random))), Some(200));
    assert_eq!(since((0..300).map(step)), Some(200));
    // The first of several changes, also where a later one is larger or leads back.
    let stairs = |index: usize| f64::from([0_u8, 1, 5, 2][index / 100]);
    assert_eq!(since((0..400).map(|index| stairs(index) + 0.2 * normal(&mut random))), Some(100));
    // A steady drift is found near its beginning, not in its middle.
    let bend = |index: usize| if index < 1_000 { 0.0 } else { (index as f64 - 1_000.0) / 200.0 };
    let found = since((0..2_000).map(|index| bend(index) + normal(&mut random))).unwrap();
    assert!((950..1_250).contains(&found), "{found}");
}

#[test]
fn coarse_and_noiseless_values_drift_too() {
    assert_eq!(since((0..24).map(|index| if index < 16 { 20.0 } else { 20.1 })), Some(16));
    assert!(since((0..16).map(f64::from)).is_some());
    assert!(since((0..100).map(|index| f64::from(index / 20))).is_some());
    assert!(since((0..50).map(|index| -1e300 * f64::from(index))).is_some());
}

#[test]
fn the_larger_sum_is_that_of_the_direction() {
    let rise = drift(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).unwrap();
    // Ranks -3.5 to 3.5: the sum of the lower half over the root of the sum of squares.
    assert_eq!(rise, Drift { up: 8.0 / 42.0_f64.sqrt(), down: 0.0, since: None });
    let fall = drift(&[8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]).unwrap();
    assert_eq!(fall, Drift { up: 0.0, down: rise.up, since: None });
}

#[test]
fn few_and_equal_values_are_not_judged() {
    assert_eq!(drift(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]), None);
    assert_eq!(drift(&[7.5; 100]), None);
    assert_eq!(drift(&[0.0, -0.0].repeat(10)), None);
    assert_eq!(drift(&[]), None);
}
