//! The Theil–Sen slope: the median of the slopes of all pairs of points, with Sen's confidence interval (P. K. Sen,
//! "Estimates of the regression coefficient based on Kendall's tau", 1968).
//!
//! n values have n(n-1)/2 pairs, too many to list for more than a few thousand values. The exact median is found by
//! randomized selection (J. Matoušek, "Randomized optimal algorithm for slope selection", 1991): a sample of slopes
//! gives a bracket around the median, the pairs with a slope in the bracket are the inversions between the orders of
//! `value - slope * time` at both ends, and only those are listed.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::order;

mod inversions;
use inversions::{PointPair, SlopeOrder};

/// Windows with at most this many values get the exact slope without `exact`.
pub const MAX_EXACT_VALUES: usize = 2_048;

/// Sampled pairs for larger windows. The slope is then between the 49.2 % and the 50.8 % quantile of all slopes
/// with a probability of 99.7 %.
pub const SAMPLED_PAIRS: usize = 32_768;

/// Limit for the number of pairs that are listed at once.
const MAX_LISTED_PAIRS: u64 = 400_000;

/// Sampled slopes from which a narrower bracket is chosen.
const BRACKET_SAMPLE: usize = 16_384;

/// The 97.5 % quantile of the standard normal distribution.
const Z: f64 = 1.959_963_984_540_054;

/// The slope per second and its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slope {
    /// The median of the slopes of all pairs.
    pub median: f64,
    /// The 95 % confidence interval.
    pub interval: [f64; 2],
    /// Whether it is computed from all pairs and not from a sample.
    pub is_exact: bool,
}

/// The slope of values over seconds. `seconds` are ascending, `sorted` are the values in ascending order. Pairs of
/// the same time have no slope; None if all are. `exact` uses all pairs regardless of their number.
pub fn slope(seconds: &[f64], values: &[f64], sorted: &[f64], exact: bool) -> Option<Slope> {
    let tied = ties(seconds);
    let count = values.len() as u64;
    let pairs = count * count.saturating_sub(1) / 2 - tied.iter().map(|k| k * (k - 1) / 2).sum::<u64>();
    if pairs == 0 {
        return None;
    }
    // Differences and products of larger values would overflow.
    let largest = values.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    if largest > 1e150 {
        let small =
            |values: &[f64]| values.iter().map(|value| value * 2.0_f64.powi(-600)).collect::<Vec<_>>();
        let Slope { median, interval, is_exact } = slope(seconds, &small(values), &small(sorted), exact)?;
        let large = |slope: f64| slope * 2.0_f64.powi(600);
        return Some(Slope { median: large(median), interval: interval.map(large), is_exact });
    }
    let half_width = Z * sigma(count, &tied, &ties(sorted));
    let low = ((pairs as f64 - half_width) / 2.0).round_ties_even() - 1.0;
    let high = ((pairs as f64 + half_width) / 2.0).round_ties_even();
    let ranks = [low.max(0.0) as u64, (pairs - 1) / 2, pairs / 2, (high as u64).min(pairs - 1)];
    let is_exact = exact || values.len() <= MAX_EXACT_VALUES;
    let [low, below, above, high] = if is_exact {
        SlopeSelector::new(seconds, values, pairs).select(ranks)
    } else {
        estimate_ranks(seconds, values, pairs, ranks)
    };
    Some(Slope { median: below / 2.0 + above / 2.0, interval: [low, high], is_exact })
}

/// The lengths of the runs of two or more equal values in sorted values.
fn ties(sorted: &[f64]) -> Vec<u64> {
    let runs = sorted.chunk_by(|one, other| one == other).map(|run| run.len() as u64);
    runs.filter(|length| *length > 1).collect()
}

/// The standard deviation of Kendall's statistic (Sen 1968, equation 2.6). `times` and `values` are the lengths of
/// their ties.
fn sigma(count: u64, times: &[u64], values: &[u64]) -> f64 {
    let term = |k: u64| k as f64 * (k as f64 - 1.0) * (2.0 * k as f64 + 5.0);
    let tied: f64 = times.iter().chain(values).map(|k| term(*k)).sum();
    ((term(count) - tied) / 18.0).max(0.0).sqrt()
}

/// A generator with a fixed seed, so that the same window always gives the same slope.
fn generator() -> StdRng {
    StdRng::seed_from_u64(0x6761_7265_6e6e_6521)
}

/// Slopes of `count` random pairs; fewer if most pairs are of the same time.
fn sample_slopes(seconds: &[f64], values: &[f64], count: usize, random: &mut StdRng) -> Vec<f64> {
    let mut slopes = Vec::with_capacity(count);
    let length = values.len() as u64;
    // One random number gives both indices. With at most a million values the bias is below 1 in 4,000.
    let index = |half: u64| ((half * length) >> 32) as usize;
    // Pairs of the same time are skipped. The bound ends the loop if there are few others.
    for _ in 0..count * 16 {
        let bits = random.random::<u64>();
        let (one, other) = (index(bits >> 32), index(bits & u64::from(u32::MAX)));
        let interval = seconds[other] - seconds[one];
        if interval != 0.0 {
            slopes.push((values[other] - values[one]) / interval);
            if slopes.len() == count {
                break;
            }
        }
    }
    slopes
}

/// Estimates the slopes of the given ranks from a sample of pairs.
fn estimate_ranks(seconds: &[f64], values: &[f64], pairs: u64, ranks: [u64; 4]) -> [f64; 4] {
    let mut slopes: Vec<i64> = sample_slopes(seconds, values, SAMPLED_PAIRS, &mut generator())
        .into_iter()
        .map(order::sort_key)
        .collect();
    if slopes.is_empty() {
        return SlopeSelector::new(seconds, values, pairs).select(ranks);
    }
    let count = slopes.len();
    let [low, below, above, high] =
        ranks.map(|rank| ((rank as f64 / pairs as f64 * count as f64) as usize).min(count - 1));
    // Each selection partitions the slopes, so that the next one searches a part of them.
    let mut select = |from: usize, to: usize, rank: usize| {
        order::from_sort_key(*slopes[from..to].select_nth_unstable(rank - from).1)
    };
    let first = select(0, count, low);
    let last = select(low, count, high);
    [first, select(low, high + 1, below), select(below, high + 1, above), last]
}

/// Selects slopes by rank among all pairs of different times.
struct SlopeSelector {
    seconds: Vec<f64>,
    values: Vec<f64>,
    /// The number of pairs.
    count: u64,
    /// Slopes that differ by less are not separated. Far below the precision of any measured slope, and above the
    /// rounding errors of the orders.
    resolution: f64,
    random: StdRng,
}

/// The slopes from `low` (inclusive) to `high` (exclusive).
#[derive(Clone, Copy)]
struct Bracket<'o> {
    low: &'o SlopeOrder,
    high: &'o SlopeOrder,
}

impl Bracket<'_> {
    /// The number of pairs in the bracket.
    fn size(&self) -> u64 {
        self.high.below.saturating_sub(self.low.below)
    }

    fn contains(&self, rank: u64) -> bool {
        (self.low.below..self.high.below).contains(&rank)
    }
}

/// A rank, and its index in the result.
type RankQuery = (u64, usize);

impl SlopeSelector {
    fn new(seconds: &[f64], values: &[f64], count: u64) -> Self {
        let mut points: Vec<_> = seconds.iter().copied().zip(values.iter().copied()).collect();
        // Points of the same time are sorted by value. No order inverts them, so they never count as pairs.
        points.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1)));
        let (seconds, values): (Vec<f64>, Vec<f64>) = points.into_iter().unzip();
        let largest = values.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
        let resolution = 1e-12 * largest / (seconds[seconds.len() - 1] - seconds[0]);
        Self { seconds, values, count, resolution, random: generator() }
    }

    /// The slopes of the given ranks, counted from 0.
    fn select<const N: usize>(mut self, ranks: [u64; N]) -> [f64; N] {
        if self.count <= MAX_LISTED_PAIRS {
            let mut slopes = self.all_slopes();
            return ranks.map(|rank| *slopes.select_nth_unstable_by(rank as usize, f64::total_cmp).1);
        }
        let sample = sample_slopes(&self.seconds, &self.values, BRACKET_SAMPLE, &mut self.random);
        let (low, high) = (self.order(f64::NEG_INFINITY), self.order(f64::INFINITY));
        let wanted: Vec<RankQuery> = ranks.into_iter().zip(0..).collect();
        let mut found = [f64::NAN; N];
        self.narrow(&wanted, Bracket { low: &low, high: &high }, sample, &mut found);
        found
    }

    fn all_slopes(&self) -> Vec<f64> {
        let mut slopes = Vec::with_capacity(self.count as usize);
        for (index, (second, value)) in self.seconds.iter().zip(&self.values).enumerate() {
            let before = self.seconds[..index].iter().zip(&self.values[..index]);
            let differences = before.map(|(earlier, other)| (second - earlier, value - other));
            slopes.extend(differences.filter(|(time, _)| *time > 0.0).map(|(time, change)| change / time));
        }
        slopes
    }

    fn order(&self, slope: f64) -> SlopeOrder {
        SlopeOrder::new(&self.seconds, &self.values, slope)
    }

    /// Slopes closer to `slope` than this are not separated from it.
    fn tolerance(&self, slope: f64) -> f64 {
        self.resolution.max(1e-12 * slope.abs())
    }

    /// Finds the slopes of ranks within the bracket by cutting it. `sample` are slopes sampled from the bracket.
    fn narrow(
        &mut self,
        wanted: &[RankQuery],
        bracket: Bracket<'_>,
        mut sample: Vec<f64>,
        found: &mut [f64],
    ) {
        sample.sort_unstable_by(f64::total_cmp);
        let cuts = self.cuts(wanted, bracket, &sample);
        let orders: Vec<SlopeOrder> = cuts.into_iter().map(|slope| self.order(slope)).collect();
        let inside = orders.iter().filter(|order| {
            (bracket.low.slope..bracket.high.slope).contains(&order.slope) && order.slope > bracket.low.slope
        });
        let ends: Vec<&SlopeOrder> = [bracket.low].into_iter().chain(inside).chain([bracket.high]).collect();
        for pair in ends.windows(2) {
            let inner = Bracket { low: pair[0], high: pair[1] };
            let here: Vec<RankQuery> =
                wanted.iter().copied().filter(|(rank, _)| inner.contains(*rank)).collect();
            if !here.is_empty() {
                self.finish(&here, inner, bracket.size(), found);
            }
        }
    }

    /// The slopes at which to cut a bracket: around a slope that many pairs share, which coarse sensors produce;
    /// else five standard deviations below and above the expected positions of the ranks in the sample.
    fn cuts(&self, wanted: &[RankQuery], bracket: Bracket<'_>, sample: &[f64]) -> [f64; 2] {
        let run = sample.chunk_by(|one, other| one == other).max_by_key(|run| run.len());
        if let Some(shared) = run.filter(|run| run.len() * 10 >= sample.len()).map(|run| run[0]) {
            return [shared - self.tolerance(shared), shared + self.tolerance(shared)];
        }
        let margin = 2.5 * (sample.len() as f64).sqrt();
        let expected =
            |rank: u64| (rank - bracket.low.below) as f64 / bracket.size() as f64 * sample.len() as f64;
        let positions = wanted.iter().map(|(rank, _)| expected(*rank));
        let below = positions.clone().fold(f64::INFINITY, f64::min) - margin;
        let above = positions.fold(0.0, f64::max) + margin;
        let low = sample.get(below.max(0.0) as usize).filter(|_| below >= 0.0).copied();
        let high = sample.get(above.ceil() as usize).copied();
        [low.unwrap_or(f64::NEG_INFINITY), high.unwrap_or(f64::INFINITY)]
    }

    /// Finds the slopes of ranks within `inner`, which was cut from a bracket of `outer` pairs.
    fn finish(&mut self, here: &[RankQuery], inner: Bracket<'_>, outer: u64, found: &mut [f64]) {
        let (low, high) = (inner.low.slope, inner.high.slope);
        let middle = low / 2.0 + high / 2.0;
        if middle.is_finite() && high - low <= 3.0 * self.tolerance(middle) {
            here.iter().for_each(|(_, index)| found[*index] = middle);
            return;
        }
        if inner.size() <= MAX_LISTED_PAIRS {
            let mut slopes = self.list(inner);
            for (rank, index) in here {
                let at = ((rank - inner.low.below) as usize).min(slopes.len().saturating_sub(1));
                found[*index] = *slopes.select_nth_unstable_by(at, f64::total_cmp).1;
            }
            return;
        }
        let sample = self.sample(inner);
        // Ranks that are far apart keep a bracket wide, so each is narrowed on its own.
        let is_wide = inner.size() * 4 > outer;
        for group in here.chunks(if is_wide { 1 } else { here.len() }) {
            self.narrow(group, inner, sample.clone(), found);
        }
    }

    fn slope_of(&self, (one, other): PointPair) -> f64 {
        (self.values[other] - self.values[one]) / (self.seconds[other] - self.seconds[one])
    }

    /// All slopes in a bracket.
    fn list(&self, bracket: Bracket<'_>) -> Vec<f64> {
        let mut slopes = Vec::with_capacity(bracket.size() as usize);
        bracket.low.between(bracket.high, |pairs| slopes.extend(pairs.map(|pair| self.slope_of(pair))));
        slopes
    }

    /// Slopes of pairs sampled uniformly from a bracket.
    fn sample(&mut self, bracket: Bracket<'_>) -> Vec<f64> {
        let size = bracket.size();
        let mut positions: Vec<u64> =
            (0..BRACKET_SAMPLE).map(|_| self.random.random_range(0..size)).collect();
        positions.sort_unstable();
        positions.dedup();
        let mut slopes = Vec::with_capacity(positions.len());
        let mut passed = 0;
        let mut next = positions.into_iter().peekable();
        bracket.low.between(bracket.high, |mut pairs| {
            let end = passed + pairs.len() as u64;
            while let Some(position) = next.next_if(|position| *position < end) {
                slopes.extend(pairs.nth((position - passed) as usize).map(|pair| self.slope_of(pair)));
                passed = position + 1;
            }
            passed = end;
        });
        slopes
    }
}

#[cfg(test)]
mod tests;
