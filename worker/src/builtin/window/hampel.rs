//! Single values that stand out from their neighbours: the Hampel identifier.
//!
//! Looks both ways, as a filter of recorded data may; [`anomaly`](super::anomaly) does not.

use super::order::{MAD_TO_SIGMA, mad, median};

/// Neighbours on either side.
pub const HALF_WIDTH: usize = 5;

/// Scaled median absolute deviations from the neighbours' median, beyond which a value stands out.
pub const THRESHOLD: f64 = 3.0;

/// The least that a neighbourhood's deviation counts, as a share of the whole window's: where a
/// coarse sensor repeats itself the deviation is zero, and its last digit would stand out.
pub const FLOOR: f64 = 0.1;

/// Which values stand out. Near an end the neighbourhood is what there is of it. `overall` is the
/// median absolute deviation of all values.
pub fn outliers(values: &[f64], overall: f64) -> Vec<usize> {
    let mut found = Vec::new();
    if values.len() < 3 {
        return found;
    }
    // The neighbourhood, sorted: one value leaves and one enters from place to place.
    let mut near: Vec<f64> = Vec::with_capacity(2 * HALF_WIDTH + 2);
    let insert = |near: &mut Vec<f64>, value: f64| {
        let place = near.partition_point(|one| *one < value);
        near.insert(place, value);
    };
    values.iter().take(HALF_WIDTH).for_each(|value| insert(&mut near, *value));
    for (place, value) in values.iter().enumerate() {
        if let Some(entering) = values.get(place + HALF_WIDTH) {
            insert(&mut near, *entering);
        }
        if let Some(leaving) = place.checked_sub(HALF_WIDTH + 1).map(|at| values[at]) {
            let at = near.partition_point(|one| *one < leaving);
            near.remove(at);
        }
        let center = median(&near);
        let distance = (value - center).abs();
        // The floor alone settles most values, without the neighbourhood's own deviation.
        if distance > THRESHOLD * MAD_TO_SIGMA * FLOOR * overall
            && distance > THRESHOLD * MAD_TO_SIGMA * mad(&near, center)
        {
            found.push(place);
        }
    }
    found
}
