//! Detects slow drift: the two-sided tabular CUSUM (Page 1954).

use schemars::JsonSchema;
use serde::Serialize;

use super::order::{MAD_TO_SIGMA, mad, median};

/// The reference value k, in standard deviations: half the smallest shift of interest. Smaller deviations do not
/// accumulate.
pub const SLACK: f64 = 0.5;

/// The decision interval h, in standard deviations: a larger sum is a drift.
pub const DECISION_INTERVAL: f64 = 5.0;

/// How far the values have drifted from the beginning of the window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Drift {
    /// The largest cumulative sum of upward deviations, in standard deviations.
    pub up: f64,
    /// The largest cumulative sum of downward deviations, in standard deviations.
    pub down: f64,
    /// The index of the first value at which either sum exceeded 5; null if none did.
    pub since: Option<usize>,
}

/// Computes both sums. Centre and standard deviation are estimated by the median and the scaled median absolute
/// deviation of the first quarter of the values, at least 8 and at most 256 of them. None with fewer than eight
/// values, or if those do not vary.
pub fn drift(values: &[f64]) -> Option<Drift> {
    let mut baseline = values.get(..(values.len() / 4).clamp(8, 256))?.to_vec();
    baseline.sort_unstable_by(f64::total_cmp);
    let center = median(&baseline);
    let sigma = MAD_TO_SIGMA * mad(&baseline, center);
    let mut drift = Drift { up: 0.0, down: 0.0, since: None };
    let (mut up, mut down) = (0.0_f64, 0.0_f64);
    for (index, value) in values.iter().enumerate() {
        let deviation = (value - center) / sigma;
        up = (up + deviation - SLACK).max(0.0);
        down = (down - deviation - SLACK).max(0.0);
        drift.up = drift.up.max(up);
        drift.down = drift.down.max(down);
        if drift.since.is_none() && up.max(down) > DECISION_INTERVAL {
            drift.since = Some(index);
        }
    }
    Some(drift).filter(|drift| sigma > 0.0 && drift.up.is_finite() && drift.down.is_finite())
}
