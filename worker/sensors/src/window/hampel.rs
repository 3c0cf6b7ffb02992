//! Detects outliers among their neighbours: the Hampel identifier.
//!
//! Uses values before and after each one, unlike [`anomaly`](super::anomaly).

use super::order::{MAD_TO_SIGMA, mad, median};

/// Neighbours on each side of a value.
pub const HALF_WIDTH: usize = 5;

/// The distance from the neighbours' median beyond which a value is an outlier, in scaled median absolute
/// deviations.
pub const THRESHOLD: f64 = 3.0;

/// Lower bound for the neighbours' deviation, as a fraction of that of all values. Without it the last digit of a
/// coarse sensor would be an outlier where all neighbours are equal.
pub const FLOOR: f64 = 0.1;

/// Values of a full window.
const WIDTH: usize = 2 * HALF_WIDTH + 1;

/// The indices of the outliers. Near both ends the window is shorter. `overall_mad` is the median absolute deviation
/// of all values. None with fewer than three values.
pub fn outliers(values: &[f64], overall_mad: f64) -> Vec<usize> {
    let mut found = Vec::new();
    if values.len() < 3 {
        return found;
    }
    let floor = THRESHOLD * MAD_TO_SIGMA * FLOOR * overall_mad;
    let is_outlier_near_end = |index: usize| {
        let end = values.len().min(index + HALF_WIDTH + 1);
        let mut window = values[index.saturating_sub(HALF_WIDTH)..end].to_vec();
        window.sort_unstable_by(f64::total_cmp);
        let center = median(&window);
        is_outlier((values[index] - center).abs(), floor, || mad(&window, center))
    };
    let Some(first) = values.first_chunk::<WIDTH>() else {
        return (0..values.len()).filter(|index| is_outlier_near_end(*index)).collect();
    };
    found.extend((0..HALF_WIDTH).filter(|index| is_outlier_near_end(*index)));
    let mut window = SortedWindow::new(*first);
    for index in HALF_WIDTH..values.len() - HALF_WIDTH {
        if index > HALF_WIDTH {
            window.replace(values[index - HALF_WIDTH - 1], values[index + HALF_WIDTH]);
        }
        if is_outlier((values[index] - window.median()).abs(), floor, || window.mad()) {
            found.push(index);
        }
    }
    found.extend((values.len() - HALF_WIDTH..values.len()).filter(|index| is_outlier_near_end(*index)));
    found
}

/// Compares with the floor first, which excludes most values without computing `deviation`.
fn is_outlier(distance: f64, floor: f64, deviation: impl FnOnce() -> f64) -> bool {
    distance > floor && distance > THRESHOLD * MAD_TO_SIGMA * deviation()
}

/// A sliding window in ascending order. Updates are branch-free over all values: the branches of an insertion would
/// be unpredictable, and mispredictions cost more than the extra work.
struct SortedWindow([f64; WIDTH]);

impl SortedWindow {
    fn new(mut values: [f64; WIDTH]) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        Self(values)
    }

    /// Replaces one value by another.
    fn replace(&mut self, leaving: f64, entering: f64) {
        let position: usize = self.0.iter().map(|value| usize::from(*value < leaving)).sum();
        // The remaining values between two sentinels.
        let mut others = [f64::INFINITY; WIDTH + 1];
        others[0] = f64::NEG_INFINITY;
        for at in 0..WIDTH - 1 {
            others[at + 1] = if at < position { self.0[at] } else { self.0[at + 1] };
        }
        for at in 0..WIDTH {
            self.0[at] = entering.max(others[at]).min(others[at + 1]);
        }
    }

    fn median(&self) -> f64 {
        self.0[HALF_WIDTH]
    }

    /// The median absolute deviation: the smallest radius around the centre that covers more than half of the
    /// values. Those are consecutive in ascending order.
    fn mad(&self) -> f64 {
        let center = self.median();
        let radius = |low: usize| (center - self.0[low]).max(self.0[low + HALF_WIDTH] - center);
        (0..=HALF_WIDTH).map(radius).fold(f64::INFINITY, f64::min)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_sliding_window_keeps_its_values_sorted(
            values in prop::collection::vec(prop_oneof![-3.0..3.0, (-3..3_i8).prop_map(f64::from)], WIDTH..60)
        ) {
            let mut window = SortedWindow::new(*values.first_chunk().unwrap());
            for end in WIDTH..=values.len() {
                if end > WIDTH {
                    window.replace(values[end - WIDTH - 1], values[end - 1]);
                }
                let mut sorted = values[end - WIDTH..end].to_vec();
                sorted.sort_unstable_by(f64::total_cmp);
                prop_assert_eq!(&window.0[..], &sorted[..]);
                prop_assert_eq!(window.median(), median(&sorted));
                prop_assert_eq!(window.mad(), mad(&sorted, window.median()));
            }
        }
    }
}
