//! The Theil–Sen slope: the median of the slopes of all pairs, with Sen's interval.
//!
//! n values make n(n-1)/2 pairs, too many to sort from some thousand on. The exact median is found
//! without: a sample of slopes brackets it, the pairs whose slope lies in the bracket are the
//! inversions between the orders of `value - slope * time` at its two ends, and only those are
//! listed (J. Matoušek, "Randomized optimal algorithm for slope selection", 1991).

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::order;

mod inversions;
use inversions::{Order, Place};

/// Up to so many values the slope is exact unasked.
pub const EXACT_UP_TO: usize = 2_048;

/// Pairs in the sample that stands for all of them beyond that. The slope is then a quantile of
/// all slopes between 49.2 and 50.8 % with a probability of 99.7 %.
pub const SAMPLE: usize = 32_768;

/// Pairs that are listed and selected from in one go.
const LISTED: u64 = 400_000;

/// Slopes that a bracket is drawn from.
const DRAWN: usize = 16_384;

/// 97.5 % quantile of the normal distribution.
const Z: f64 = 1.959_963_984_540_054;

/// The slope per second, and its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slope {
    /// The median of the slopes.
    pub median: f64,
    /// 95 % confidence interval.
    pub interval: [f64; 2],
    /// Whether every pair counted.
    pub is_exact: bool,
}

/// The slope of values over seconds in ascending order; pairs of one instant have none. None when
/// no pair has. `sorted` are the values in their own order.
pub fn slope(seconds: &[f64], values: &[f64], sorted: &[f64], exact: bool) -> Option<Slope> {
    let tied = ties(seconds.iter().copied());
    let count = values.len() as u64;
    let pairs = count * count.saturating_sub(1) / 2 - tied.iter().map(|k| k * (k - 1) / 2).sum::<u64>();
    if pairs == 0 {
        return None;
    }
    // Differences and products of values beyond this would exceed a double.
    let largest = values.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    if largest > 1e150 {
        let small =
            |values: &[f64]| values.iter().map(|value| value * 2.0_f64.powi(-600)).collect::<Vec<_>>();
        let Slope { median, interval, is_exact } = slope(seconds, &small(values), &small(sorted), exact)?;
        let large = |slope: f64| slope * 2.0_f64.powi(600);
        return Some(Slope { median: large(median), interval: interval.map(large), is_exact });
    }
    let half_width = Z * sigma(count, &tied, &ties(sorted.iter().copied()));
    let low = ((pairs as f64 - half_width) / 2.0).round_ties_even() - 1.0;
    let high = ((pairs as f64 + half_width) / 2.0).round_ties_even();
    let ranks = [low.max(0.0) as u64, (pairs - 1) / 2, pairs / 2, (high as u64).min(pairs - 1)];
    let is_exact = exact || values.len() <= EXACT_UP_TO;
    let [low, below, above, high] = if is_exact {
        Pairs::new(seconds, values, pairs).at(ranks)
    } else {
        sampled(seconds, values, pairs, ranks)
    };
    Some(Slope { median: below / 2.0 + above / 2.0, interval: [low, high], is_exact })
}

/// Lengths of the runs of equal values, of two and more, in sorted values.
fn ties(sorted: impl Iterator<Item = f64>) -> Vec<u64> {
    let mut runs = Vec::new();
    let mut last = f64::NAN;
    for value in sorted {
        match runs.last_mut() {
            Some(run) if value == last => *run += 1,
            _ => runs.push(1),
        }
        last = value;
    }
    runs.retain(|run| *run > 1);
    runs
}

/// Standard deviation of Kendall's statistic (Sen 1968, 2.6).
fn sigma(count: u64, times: &[u64], values: &[u64]) -> f64 {
    let term = |k: u64| k as f64 * (k as f64 - 1.0) * (2.0 * k as f64 + 5.0);
    let tied: f64 = times.iter().chain(values).map(|k| term(*k)).sum();
    ((term(count) - tied) / 18.0).max(0.0).sqrt()
}

/// The seed is part of the answer: the same window gives the same slope.
fn generator() -> StdRng {
    StdRng::seed_from_u64(0x6761_7265_6e6e_6521)
}

fn draw(seconds: &[f64], values: &[f64], count: usize, random: &mut StdRng) -> Vec<f64> {
    let mut slopes = Vec::with_capacity(count);
    let most = values.len() as u64;
    // Half of a draw each, scaled: with at most a million values the bias is below one in 4,000.
    let place = |half: u64| ((half * most) >> 32) as usize;
    // Instants that repeat make misses; all but a few repeating would make nothing else.
    for _ in 0..count * 16 {
        let bits = random.random::<u64>();
        let (one, other) = (place(bits >> 32), place(bits & u64::from(u32::MAX)));
        let apart = seconds[other] - seconds[one];
        if apart != 0.0 {
            slopes.push((values[other] - values[one]) / apart);
            if slopes.len() == count {
                break;
            }
        }
    }
    slopes
}

fn sampled(seconds: &[f64], values: &[f64], pairs: u64, ranks: [u64; 4]) -> [f64; 4] {
    let mut slopes: Vec<i64> =
        draw(seconds, values, SAMPLE, &mut generator()).into_iter().map(order::key).collect();
    if slopes.is_empty() {
        return Pairs::new(seconds, values, pairs).at(ranks);
    }
    let count = slopes.len();
    let [low, below, above, high] =
        ranks.map(|rank| ((rank as f64 / pairs as f64 * count as f64) as usize).min(count - 1));
    // The ends first: what lies outside of them is settled for the two in the middle.
    let mut at = |from: usize, to: usize, place: usize| {
        order::unkey(*slopes[from..to].select_nth_unstable(place - from).1)
    };
    let first = at(0, count, low);
    let last = at(low, count, high);
    [first, at(low, high + 1, below), at(below, high + 1, above), last]
}

/// All pairs of different instants, to select slopes by rank from.
struct Pairs {
    seconds: Vec<f64>,
    values: Vec<f64>,
    count: u64,
    /// Slopes closer together than this count as one: far below what a slope can be known to, and
    /// above what rounding does to the orders.
    resolution: f64,
    random: StdRng,
}

/// Slopes from `low` up to but not including `high`.
#[derive(Clone, Copy)]
struct Bracket<'o> {
    low: &'o Order,
    high: &'o Order,
}

impl Bracket<'_> {
    fn size(&self) -> u64 {
        self.high.below.saturating_sub(self.low.below)
    }

    fn holds(&self, rank: u64) -> bool {
        (self.low.below..self.high.below).contains(&rank)
    }
}

/// A rank, and its place among those asked for.
type Wanted = (u64, usize);

impl Pairs {
    fn new(seconds: &[f64], values: &[f64], count: u64) -> Self {
        let mut points: Vec<_> = seconds.iter().copied().zip(values.iter().copied()).collect();
        // Values of one instant ascend, so that no order ever inverts them: they are no pair.
        points.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1)));
        let (seconds, values): (Vec<f64>, Vec<f64>) = points.into_iter().unzip();
        let largest = values.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
        let resolution = 1e-12 * largest / (seconds[seconds.len() - 1] - seconds[0]);
        Self { seconds, values, count, resolution, random: generator() }
    }

    /// The slopes of the given ranks.
    fn at<const N: usize>(mut self, ranks: [u64; N]) -> [f64; N] {
        if self.count <= LISTED {
            let mut slopes = self.all();
            return ranks.map(|rank| *slopes.select_nth_unstable_by(rank as usize, f64::total_cmp).1);
        }
        let drawn = draw(&self.seconds, &self.values, DRAWN, &mut self.random);
        let (low, high) = (self.order(f64::NEG_INFINITY), self.order(f64::INFINITY));
        let wanted: Vec<Wanted> = ranks.into_iter().zip(0..).collect();
        let mut found = [f64::NAN; N];
        self.narrow(&wanted, Bracket { low: &low, high: &high }, drawn, &mut found);
        found
    }

    fn all(&self) -> Vec<f64> {
        let mut slopes = Vec::with_capacity(self.count as usize);
        for (place, (second, value)) in self.seconds.iter().zip(&self.values).enumerate() {
            let before = self.seconds[..place].iter().zip(&self.values[..place]);
            let apart = before.map(|(earlier, other)| (second - earlier, value - other));
            slopes.extend(apart.filter(|(time, _)| *time > 0.0).map(|(time, change)| change / time));
        }
        slopes
    }

    fn order(&self, slope: f64) -> Order {
        Order::new(&self.seconds, &self.values, slope)
    }

    fn tolerance(&self, slope: f64) -> f64 {
        self.resolution.max(1e-12 * slope.abs())
    }

    /// Finds the ranks, all within the bracket; `drawn` are slopes drawn from it.
    fn narrow(&mut self, wanted: &[Wanted], bracket: Bracket<'_>, mut drawn: Vec<f64>, found: &mut [f64]) {
        drawn.sort_unstable_by(f64::total_cmp);
        let cuts = self.cuts(wanted, bracket, &drawn);
        let orders: Vec<Order> = cuts.into_iter().map(|slope| self.order(slope)).collect();
        let inside = orders.iter().filter(|order| {
            (bracket.low.slope..bracket.high.slope).contains(&order.slope) && order.slope > bracket.low.slope
        });
        let ends: Vec<&Order> = [bracket.low].into_iter().chain(inside).chain([bracket.high]).collect();
        for pair in ends.windows(2) {
            let inner = Bracket { low: pair[0], high: pair[1] };
            let here: Vec<Wanted> = wanted.iter().copied().filter(|(rank, _)| inner.holds(*rank)).collect();
            if !here.is_empty() {
                self.finish(&here, inner, bracket.size(), found);
            }
        }
    }

    /// Where to cut a bracket: around a slope that many pairs share, as coarse sensors make it;
    /// else on either side of where the ranks are expected among the drawn, by five deviations.
    fn cuts(&self, wanted: &[Wanted], bracket: Bracket<'_>, drawn: &[f64]) -> [f64; 2] {
        let run = drawn.chunk_by(|one, other| one == other).max_by_key(|run| run.len());
        if let Some(shared) = run.filter(|run| run.len() * 10 >= drawn.len()).map(|run| run[0]) {
            return [shared - self.tolerance(shared), shared + self.tolerance(shared)];
        }
        let margin = 2.5 * (drawn.len() as f64).sqrt();
        let expected =
            |rank: u64| (rank - bracket.low.below) as f64 / bracket.size() as f64 * drawn.len() as f64;
        let places = wanted.iter().map(|(rank, _)| expected(*rank));
        let below = places.clone().fold(f64::INFINITY, f64::min) - margin;
        let above = places.fold(0.0, f64::max) + margin;
        let low = drawn.get(below.max(0.0) as usize).filter(|_| below >= 0.0).copied();
        let high = drawn.get(above.ceil() as usize).copied();
        [low.unwrap_or(f64::NEG_INFINITY), high.unwrap_or(f64::INFINITY)]
    }

    fn finish(&mut self, here: &[Wanted], inner: Bracket<'_>, outer: u64, found: &mut [f64]) {
        let (low, high) = (inner.low.slope, inner.high.slope);
        let middle = low / 2.0 + high / 2.0;
        if middle.is_finite() && high - low <= 3.0 * self.tolerance(middle) {
            here.iter().for_each(|(_, place)| found[*place] = middle);
            return;
        }
        if inner.size() <= LISTED {
            let mut slopes = self.listed(inner);
            for (rank, place) in here {
                let at = ((rank - inner.low.below) as usize).min(slopes.len().saturating_sub(1));
                found[*place] = *slopes.select_nth_unstable_by(at, f64::total_cmp).1;
            }
            return;
        }
        let drawn = self.drawn(inner);
        // Ranks far apart keep a bracket wide: then each is narrowed on its own.
        let is_wide = inner.size() * 4 > outer;
        for group in here.chunks(if is_wide { 1 } else { here.len() }) {
            self.narrow(group, inner, drawn.clone(), found);
        }
    }

    fn slope_of(&self, (one, other): Place) -> f64 {
        (self.values[other] - self.values[one]) / (self.seconds[other] - self.seconds[one])
    }

    fn listed(&self, bracket: Bracket<'_>) -> Vec<f64> {
        let mut slopes = Vec::with_capacity(bracket.size() as usize);
        bracket.low.between(bracket.high, |pairs| slopes.extend(pairs.map(|pair| self.slope_of(pair))));
        slopes
    }

    /// Slopes drawn evenly from a bracket.
    fn drawn(&mut self, bracket: Bracket<'_>) -> Vec<f64> {
        let most = bracket.size();
        let mut places: Vec<u64> = (0..DRAWN).map(|_| self.random.random_range(0..most)).collect();
        places.sort_unstable();
        places.dedup();
        let mut slopes = Vec::with_capacity(places.len());
        let mut passed = 0;
        let mut next = places.into_iter().peekable();
        bracket.low.between(bracket.high, |mut pairs| {
            let end = passed + pairs.len() as u64;
            while let Some(place) = next.next_if(|place| *place < end) {
                slopes.extend(pairs.nth((place - passed) as usize).map(|pair| self.slope_of(pair)));
                passed = place + 1;
            }
            passed = end;
        });
        slopes
    }
}

#[cfg(test)]
mod tests;
