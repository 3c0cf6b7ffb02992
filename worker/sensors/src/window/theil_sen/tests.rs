use proptest::prelude::{ProptestConfig, prop, prop_oneof, proptest};
use rand::Rng as _;

use super::*;

fn slope(seconds: &[f64], values: &[f64], exact: bool) -> Option<Slope> {
    super::slope(seconds, values, &order::sorted(values), exact)
}

/// The definition: sorts all slopes.
fn reference(seconds: &[f64], values: &[f64]) -> Option<[f64; 3]> {
    let mut slopes = Vec::new();
    for i in 0..values.len() {
        for j in 0..i {
            if seconds[i] > seconds[j] {
                slopes.push((values[i] - values[j]) / (seconds[i] - seconds[j]));
            }
        }
    }
    slopes.sort_unstable_by(f64::total_cmp);
    let pairs = slopes.len();
    if pairs == 0 {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let half = Z * sigma(values.len() as u64, &ties(seconds), &ties(&sorted));
    let low = (((pairs as f64 - half) / 2.0).round_ties_even() - 1.0).max(0.0) as usize;
    let high = (((pairs as f64 + half) / 2.0).round_ties_even() as usize).min(pairs - 1);
    Some([(slopes[(pairs - 1) / 2] + slopes[pairs / 2]) / 2.0, slopes[low], slopes[high]])
}

fn compare(seconds: &[f64], values: &[f64]) {
    let ours = slope(seconds, values, true).map(|slope| [slope.median, slope.interval[0], slope.interval[1]]);
    let theirs = reference(seconds, values);
    let (Some(ours), Some(theirs)) = (ours, theirs) else { return assert_eq!(ours, theirs) };
    let span = seconds[seconds.len() - 1] - seconds[0];
    let scale = values.iter().fold(0.0_f64, |largest, value| largest.max(value.abs())) / span;
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert!((ours - theirs).abs() <= 1e-11 * theirs.abs().max(scale), "{ours} is not {theirs}");
    }
}

#[test]
fn slopes_of_large_windows_match_the_definition() {
    let mut random = generator();
    // Slightly more pairs than are listed at once.
    let count = 900;
    assert!(count * (count - 1) / 2 > MAX_LISTED_PAIRS as i32);
    let even: Vec<f64> = (0..count).map(|index| index as f64 * 60.0).collect();
    let mut uneven: Vec<f64> = (0..count).map(|_| random.random_range(0.0..1e6_f64).floor()).collect();
    uneven.sort_unstable_by(f64::total_cmp);
    let mut crowded: Vec<f64> = (0..count).map(|_| random.random_range(0.0..50.0_f64).floor()).collect();
    crowded.sort_unstable_by(f64::total_cmp);
    for seconds in [&even, &uneven, &crowded] {
        let noise: Vec<f64> = (0..count).map(|_| random.random_range(-1.0..1.0)).collect();
        let trend: Vec<f64> =
            seconds.iter().zip(&noise).map(|(second, noise)| 1e-4 * second + noise).collect();
        // Most slopes are equal with a coarse or stuck sensor, a ramp or a step.
        let coarse: Vec<f64> = noise.iter().map(|noise| (noise * 1.2).round()).collect();
        let stuck: Vec<f64> = noise.iter().map(|noise| if *noise > 0.99 { 1.0 } else { 20.0 }).collect();
        let ramp: Vec<f64> = seconds.iter().map(|second| 0.1 * second).collect();
        let step: Vec<f64> = (0..count).map(|index| f64::from(u8::from(index * 3 > count))).collect();
        for values in [&noise, &trend, &coarse, &stuck, &ramp, &step] {
            compare(seconds, values);
        }
    }
}

#[test]
fn without_two_times_there_is_no_slope() {
    assert_eq!(slope(&[], &[], true), None);
    assert_eq!(slope(&[5.0], &[1.0], true), None);
    assert_eq!(slope(&[5.0; 3], &[1.0, 2.0, 3.0], true), None);
}

#[test]
fn the_slope_of_a_sample_is_close_to_the_exact_one() {
    let mut random = generator();
    let seconds: Vec<f64> = (0..4_000).map(f64::from).collect();
    let values: Vec<f64> =
        seconds.iter().map(|second| 3.0 * second + random.random_range(-50.0..50.0)).collect();
    let sampled = slope(&seconds, &values, false).unwrap();
    let exact = slope(&seconds, &values, true).unwrap();
    assert!(!sampled.is_exact && exact.is_exact);
    // Between the 49.2 % and the 50.8 % quantile of all slopes.
    assert!((sampled.median - exact.median).abs() < 6e-4, "{sampled:?} {exact:?}");
    assert!(
        (exact.median - 3.0).abs() < 1e-3
            && exact.interval[0] < exact.median
            && exact.median < exact.interval[1]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn slopes_of_small_windows_match_the_definition(
        points in prop::collection::vec((0..40_u32, prop_oneof![-3..3_i32, -1_000_000..1_000_000]), 0..40)
    ) {
        let mut points = points;
        points.sort_unstable_by_key(|point| point.0);
        let seconds: Vec<f64> = points.iter().map(|point| f64::from(point.0)).collect();
        let values: Vec<f64> = points.iter().map(|point| f64::from(point.1) / 8.0).collect();
        compare(&seconds, &values);
    }
}
