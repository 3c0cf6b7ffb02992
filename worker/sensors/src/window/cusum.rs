//! Slow drift: the two-sided tabular CUSUM.

use schemars::JsonSchema;
use serde::Serialize;

use super::order::{MAD_TO_SIGMA, mad, median};

/// Deviations that count for nothing, in standard deviations: half the smallest shift of interest.
pub const SLACK: f64 = 0.5;

/// The sum, in standard deviations, from which on the values have drifted.
pub const DECISION: f64 = 5.0;

/// How far the values have moved away from where the window began.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Drift {
    /// Largest cumulative sum upwards, in standard deviations.
    pub up: f64,
    /// Largest cumulative sum downwards.
    pub down: f64,
    /// The first value at which either exceeded 5; null when none did.
    pub since: Option<usize>,
}

/// Centre and deviation are the median and the scaled median absolute deviation of the first
/// quarter of the values, at least 8 and at most 256 of them. None with fewer than eight values,
/// or when those do not vary.
pub fn drift(values: &[f64]) -> Option<Drift> {
    let mut start = values.get(..(values.len() / 4).clamp(8, 256))?.to_vec();
    start.sort_unstable_by(f64::total_cmp);
    let center = median(&start);
    let sigma = MAD_TO_SIGMA * mad(&start, center);
    let mut drift = Drift { up: 0.0, down: 0.0, since: None };
    let (mut up, mut down) = (0.0_f64, 0.0_f64);
    for (place, value) in values.iter().enumerate() {
        let deviation = (value - center) / sigma;
        up = (up + deviation - SLACK).max(0.0);
        down = (down - deviation - SLACK).max(0.0);
        drift.up = drift.up.max(up);
        drift.down = drift.down.max(down);
        if drift.since.is_none() && up.max(down) > DECISION {
            drift.since = Some(place);
        }
    }
    Some(drift).filter(|drift| sigma > 0.0 && drift.up.is_finite() && drift.down.is_finite())
}
