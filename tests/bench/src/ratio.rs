//! Ratios of paired runs.

use serde::Serialize;

/// The ratios of pairs that ran right after each other, so that other load on the machine affects both equally.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The median.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
    /// The 95 % confidence interval of the median; `None` for fewer than six pairs.
    pub interval: Option<(f64, f64)>,
    /// The number of pairs.
    pub runs: usize,
}

impl Ratio {
    /// `ours ÷ theirs` for each pair; `None` without a pair.
    #[must_use]
    pub fn of(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let mut ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
        ratios.sort_by(f64::total_cmp);
        let (runs, last) = (ratios.len(), ratios.len().checked_sub(1)?);
        let interval = rank(runs).map(|rank| (ratios[rank], ratios[last - rank]));
        Some(Self { median: median(&ratios), min: ratios[0], max: ratios[last], interval, runs })
    }
}

/// The median of sorted values; NaN if there are none.
pub(crate) fn median(sorted: &[f64]) -> f64 {
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => f64::NAN,
        (count, half) if count % 2 == 0 => f64::midpoint(sorted[half - 1], sorted[half]),
        (_, half) => sorted[half],
    }
}

/// The rank, from 0, of the order statistic that is a lower bound of the median with 97.5 % confidence. Each value is
/// below the median with probability one half, so the number of values below it has a binomial distribution.
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
        // From tables of the two-sided critical values of the sign test at 5 %.
        for (count, lower) in
            [(5, None), (6, Some(0)), (8, Some(0)), (9, Some(1)), (20, Some(5)), (100, Some(39))]
        {
            assert_eq!(rank(count), lower, "of {count}");
        }
    }

    #[test]
    fn ratios_are_formed_of_pairs_and_not_of_medians() {
        // Two pairs ran while the machine was slow; their ratio is the same.
        let theirs = [1.0, 10.0, 1.0, 10.0, 1.0, 1.0];
        let ours = theirs.map(|it| it * 2.0);
        let ratio = Ratio::of(&ours, &theirs).unwrap();
        assert_eq!((ratio.median, ratio.interval), (2.0, Some((2.0, 2.0))));
        assert_eq!(Ratio::of(&[], &[]), None);
    }

    #[test]
    fn the_median_of_an_even_number_of_values_is_the_mean_of_the_middle_two() {
        assert!((median(&[1.0, 2.0, 4.0, 8.0]) - 3.0).abs() < f64::EPSILON);
    }
}
