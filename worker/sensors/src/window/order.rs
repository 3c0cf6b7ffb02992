//! Statistics of sorted values.

/// Makes a median absolute deviation comparable to a standard deviation of normal values:
/// 1 / Φ⁻¹(3/4).
pub const MAD_TO_SIGMA: f64 = 1.482_602_218_505_602;

/// How many values before the newest it is compared with.
pub const HISTORY: usize = 256;

/// An integer in the order of [`f64::total_cmp`], which compares them without this step each time.
pub const fn key(value: f64) -> i64 {
    flip(value.to_bits().cast_signed())
}

/// The value whose [`key`] this is.
pub const fn unkey(key: i64) -> f64 {
    f64::from_bits(flip(key).cast_unsigned())
}

/// Its own inverse: of negative numbers all bits but the sign.
const fn flip(bits: i64) -> i64 {
    bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed()
}

/// Sorted copies of values.
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut keys: Vec<i64> = values.iter().map(|value| key(*value)).collect();
    keys.sort_unstable();
    keys.into_iter().map(unkey).collect()
}

/// The quantile `p` of sorted values, at least one, linear between them (NumPy's default).
pub fn quantile(sorted: &[f64], p: f64) -> f64 {
    let place = p * (sorted.len() - 1) as f64;
    let below = place.floor() as usize;
    let (low, high) = (sorted[below], sorted[(below + 1).min(sorted.len() - 1)]);
    let part = place - below as f64;
    // Halved before the difference, which of two huge values exceeds a double.
    if (high - low).is_finite() { low + part * (high - low) } else { low * (1.0 - part) + high * part }
}

/// The median of sorted values, at least one.
pub fn median(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[half] } else { middle(sorted[half - 1], sorted[half]) }
}

fn middle(low: f64, high: f64) -> f64 {
    let sum = low + high;
    if sum.is_finite() { sum / 2.0 } else { low / 2.0 + high / 2.0 }
}

/// The median of the absolute deviations of sorted values from `center`, which is among or
/// between them. Walks outwards from the centre, so that nothing has to be sorted again.
pub fn mad(sorted: &[f64], center: f64) -> f64 {
    let mut right = sorted.partition_point(|value| *value < center);
    let mut left = right;
    let mut next = || {
        let below = left.checked_sub(1).map(|place| center - sorted[place]);
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
    if is_odd { low } else { middle(low, next()) }
}

/// How far the last value is from the median of the [`HISTORY`] before it, in scaled median
/// absolute deviations. None with fewer than eight before it, or when those do not vary.
pub fn robust_z(values: &[f64]) -> Option<f64> {
    let (last, before) = values.split_last()?;
    let mut history = before[before.len().saturating_sub(HISTORY)..].to_vec();
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
    fn keys_have_the_order_of_their_values_and_lead_back_to_them() {
        let ascending =
            [f64::NEG_INFINITY, -1e300, -1.0, -5e-324, -0.0, 0.0, 5e-324, 1.0, 1e300, f64::INFINITY];
        let keys = ascending.map(key);
        assert!(keys.is_sorted() && keys[4] < keys[5]);
        assert_eq!(keys.map(|key| unkey(key).to_bits()), ascending.map(f64::to_bits));
        assert_eq!(sorted(&[2.0, -1.0, 0.5]), [-1.0, 0.5, 2.0]);
    }
}
