//! Order statistics: quantiles, median, median absolute deviation.

/// Scales a median absolute deviation to the standard deviation of normal values: 1 / Φ⁻¹(3/4).
pub const MAD_TO_SIGMA: f64 = 1.482_602_218_505_602;

/// Values before the newest one with which [`robust_z`] compares it.
pub const ROBUST_Z_HISTORY: usize = 256;

/// An integer with the order of [`f64::total_cmp`]. Sorting integers is faster than comparing floats.
pub const fn sort_key(value: f64) -> i64 {
    flip_magnitude(value.to_bits().cast_signed())
}

/// The inverse of [`sort_key`].
pub const fn from_sort_key(key: i64) -> f64 {
    f64::from_bits(flip_magnitude(key).cast_unsigned())
}

/// Flips all bits but the sign of negative numbers. Its own inverse.
const fn flip_magnitude(bits: i64) -> i64 {
    bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed()
}

/// A sorted copy of values, in the order of [`f64::total_cmp`].
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut keys: Vec<i64> = values.iter().map(|value| sort_key(*value)).collect();
    keys.sort_unstable();
    keys.into_iter().map(from_sort_key).collect()
}

/// The rank of each value less the mean rank. Equal values share the mean of their ranks.
pub fn centered_ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<(i64, usize)> = values.iter().map(|value| sort_key(*value)).zip(0..).collect();
    order.sort_unstable();
    let mut ranks = vec![0.0; values.len()];
    let mut below = 0;
    for equal in order.chunk_by(|(_, one), (_, other)| values[*one] == values[*other]) {
        let rank = (2 * below + equal.len()) as f64 / 2.0 - values.len() as f64 / 2.0;
        equal.iter().for_each(|(_, index)| ranks[*index] = rank);
        below += equal.len();
    }
    ranks
}

/// The quantile `p`, 0 to 1, of sorted values, with linear interpolation (NumPy's default). Needs at least one
/// value.
pub fn quantile(sorted: &[f64], p: f64) -> f64 {
    let position = p * (sorted.len() - 1) as f64;
    let below = position.floor() as usize;
    let (low, high) = (sorted[below], sorted[(below + 1).min(sorted.len() - 1)]);
    let fraction = position - below as f64;
    // The difference of two huge values overflows.
    if (high - low).is_finite() {
        low + fraction * (high - low)
    } else {
        low * (1.0 - fraction) + high * fraction
    }
}

/// The median of sorted values. Needs at least one value.
pub fn median(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[half] } else { midpoint(sorted[half - 1], sorted[half]) }
}

fn midpoint(low: f64, high: f64) -> f64 {
    let sum = low + high;
    if sum.is_finite() { sum / 2.0 } else { low / 2.0 + high / 2.0 }
}

/// The median absolute deviation of sorted values from `center`, which lies within their range. Merges the
/// deviations on both sides of the centre, so that they need no sorting.
pub fn mad(sorted: &[f64], center: f64) -> f64 {
    let mut right = sorted.partition_point(|value| *value < center);
    let mut left = right;
    let mut next = || {
        let below = left.checked_sub(1).map(|index| center - sorted[index]);
        let above = sorted.get(right).map(|value| value - center);
        match (below, above) {
            (Some(below), Some(above)) if below <= above => (left -= 1, below).1,
            (Some(below), None) => (left -= 1, below).1,
            (_, Some(above)) => (right += 1, above).1,
            (None, None) => 0.0,
        }
    };
    let half = sorted.len() / 2;
    let is_odd = sorted.len() % 2 == 1;
    for _ in 0..if is_odd { half } else { half - 1 } {
        next();
    }
    let low = next();
    if is_odd { low } else { midpoint(low, next()) }
}

/// The robust z-score of the last value: its distance from the median of the [`ROBUST_Z_HISTORY`] values before it,
/// in scaled median absolute deviations. None with fewer than eight values before it, or if those do not vary.
pub fn robust_z(values: &[f64]) -> Option<f64> {
    let (last, before) = values.split_last()?;
    let mut history = before[before.len().saturating_sub(ROBUST_Z_HISTORY)..].to_vec();
    if history.len() < 8 {
        return None;
    }
    history.sort_unstable_by(f64::total_cmp);
    let center = median(&history);
    let spread = MAD_TO_SIGMA * mad(&history, center);
    Some((last - center) / spread).filter(|score| spread > 0.0 && score.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sort_keys_keep_the_order_and_convert_back() {
        let ascending =
            [f64::NEG_INFINITY, -1e300, -1.0, -5e-324, -0.0, 0.0, 5e-324, 1.0, 1e300, f64::INFINITY];
        let keys = ascending.map(sort_key);
        assert!(keys.is_sorted() && keys[4] < keys[5]);
        assert_eq!(keys.map(|key| from_sort_key(key).to_bits()), ascending.map(f64::to_bits));
        assert_eq!(sorted(&[2.0, -1.0, 0.5]), [-1.0, 0.5, 2.0]);
    }
}
