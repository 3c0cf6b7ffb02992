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

/// Values of a whole neighbourhood.
const NEAR: usize = 2 * HALF_WIDTH + 1;

/// Which values stand out. Near an end the neighbourhood is what there is of it. `overall` is the
/// median absolute deviation of all values.
pub fn outliers(values: &[f64], overall: f64) -> Vec<usize> {
    let mut found = Vec::new();
    if values.len() < 3 {
        return found;
    }
    let floor = THRESHOLD * MAD_TO_SIGMA * FLOOR * overall;
    let at_an_end = |place: usize| {
        let end = values.len().min(place + HALF_WIDTH + 1);
        let mut near = values[place.saturating_sub(HALF_WIDTH)..end].to_vec();
        near.sort_unstable_by(f64::total_cmp);
        let center = median(&near);
        stands_out((values[place] - center).abs(), floor, || mad(&near, center))
    };
    let Some(first) = values.first_chunk::<NEAR>() else {
        return (0..values.len()).filter(|place| at_an_end(*place)).collect();
    };
    found.extend((0..HALF_WIDTH).filter(|place| at_an_end(*place)));
    let mut near = Neighbourhood::new(*first);
    for place in HALF_WIDTH..values.len() - HALF_WIDTH {
        if place > HALF_WIDTH {
            near.replace(values[place - HALF_WIDTH - 1], values[place + HALF_WIDTH]);
        }
        if stands_out((values[place] - near.median()).abs(), floor, || near.mad()) {
            found.push(place);
        }
    }
    found.extend((values.len() - HALF_WIDTH..values.len()).filter(|place| at_an_end(*place)));
    found
}

/// The floor alone settles most values, without the neighbourhood's own deviation.
fn stands_out(distance: f64, floor: f64, deviation: impl FnOnce() -> f64) -> bool {
    distance > floor && distance > THRESHOLD * MAD_TO_SIGMA * deviation()
}

/// The values around one, ascending. Every step takes all of them, without a branch: which way one
/// would go cannot be foretold, and a wrong guess costs more than the step.
struct Neighbourhood([f64; NEAR]);

impl Neighbourhood {
    fn new(mut values: [f64; NEAR]) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        Self(values)
    }

    /// One value leaves and one enters.
    fn replace(&mut self, leaving: f64, entering: f64) {
        let place: usize = self.0.iter().map(|value| usize::from(*value < leaving)).sum();
        // The others, between two ends that nothing lies beyond.
        let mut others = [f64::INFINITY; NEAR + 1];
        others[0] = f64::NEG_INFINITY;
        for at in 0..NEAR - 1 {
            others[at + 1] = if at < place { self.0[at] } else { self.0[at + 1] };
        }
        for at in 0..NEAR {
            self.0[at] = entering.max(others[at]).min(others[at + 1]);
        }
    }

    fn median(&self) -> f64 {
        self.0[HALF_WIDTH]
    }

    /// The median absolute deviation: the narrowest reach to both sides of the centre that holds
    /// more than half of the values, which are neighbours in their order.
    fn mad(&self) -> f64 {
        let center = self.median();
        let reach = |low: usize| (center - self.0[low]).max(self.0[low + HALF_WIDTH] - center);
        (0..=HALF_WIDTH).map(reach).fold(f64::INFINITY, f64::min)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_neighbourhood_is_the_sorted_values_around(
            values in prop::collection::vec(prop_oneof![-3.0..3.0, (-3..3_i8).prop_map(f64::from)], NEAR..60)
        ) {
            let mut near = Neighbourhood::new(*values.first_chunk().unwrap());
            for end in NEAR..=values.len() {
                if end > NEAR {
                    near.replace(values[end - NEAR - 1], values[end - 1]);
                }
                let mut sorted = values[end - NEAR..end].to_vec();
                sorted.sort_unstable_by(f64::total_cmp);
                prop_assert_eq!(&near.0[..], &sorted[..]);
                prop_assert_eq!(near.median(), median(&sorted));
                prop_assert_eq!(near.mad(), mad(&sorted, near.median()));
            }
        }
    }
}
