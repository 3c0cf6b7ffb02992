//! How two that ran in turns compare.

use serde::Serialize;

/// The ratios of pairs that ran right after each other, so that whatever else the machine does meets both
/// alike.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The middle one.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
    /// Where the true median lies with 95 % confidence; nothing for fewer than six pairs, which cannot tell.
    pub interval: Option<(f64, f64)>,
    /// How many pairs.
    pub runs: usize,
}

impl Ratio {
    /// `ours ÷ theirs`, pair by pair; nothing without a pair.
    #[must_use]
    pub fn of(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let mut ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
        ratios.sort_by(f64::total_cmp);
        let (runs, last) = (ratios.len(), ratios.len().checked_sub(1)?);
        let interval = rank(runs).map(|rank| (ratios[rank], ratios[last - rank]));
        Some(Self { median: median(&ratios), min: ratios[0], max: ratios[last], interval, runs })
    }
}

/// Of sorted values: the middle one, or the mean of the two in the middle. NaN without any.
pub(crate) fn median(sorted: &[f64]) -> f64 {
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => f64::NAN,
        (count, half) if count % 2 == 0 => f64::midpoint(sorted[half - 1], sorted[half]),
        (_, half) => sorted[half],
    }
}

/// Which order statistic, from 0, bounds the median from below with 97.5 % confidence: each value is below the
/// median with probability one half, so the number of them that are is binomial.
fn rank(count: usize) -> Option<usize> {
    let mut term = 0.5_f64.powi(i32::try_from(count).ok()?);
    let mut below = 0.0;
    let mut rank = None;
    for lower in 0..=count / 2 {
        below += term;
        if below > 0.025 {
            break;
        }
        rank = Some(lower);
        term *= (count - lower) as f64 / (lower + 1) as f64;
    }
    rank
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_follows_the_binomial_tables() {
        // From tables of the sign test's critical values, two-sided 5 %.
        for (count, lower) in
            [(5, None), (6, Some(0)), (8, Some(0)), (9, Some(1)), (20, Some(5)), (100, Some(39))]
        {
            assert_eq!(rank(count), lower, "of {count}");
        }
    }

    #[test]
    fn pairs_are_compared_with_each_other_and_not_with_the_crowd() {
        // Two slow hours in between: the ratio stays.
        let theirs = [1.0, 10.0, 1.0, 10.0, 1.0, 1.0];
        let ours = theirs.map(|it| it * 2.0);
        let ratio = Ratio::of(&ours, &theirs).unwrap();
        assert_eq!((ratio.median, ratio.interval), (2.0, Some((2.0, 2.0))));
        assert_eq!(Ratio::of(&[], &[]), None);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert!((median(&[1.0, 2.0, 4.0, 8.0]) - 3.0).abs() < f64::EPSILON);
    }
}
