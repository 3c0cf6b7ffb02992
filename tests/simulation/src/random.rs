//! The only source of chance of a history.

use std::{ops::RangeInclusive, time::Duration};

/// A SplitMix64 generator: the same numbers from the same seed on every machine and in every version.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True `per_mille` times in a thousand.
    pub fn chance(&mut self, per_mille: u16) -> bool {
        per_mille > 0 && self.below(1000) < per_mille.into()
    }

    /// A duration of the range, in whole microseconds.
    pub fn between(&mut self, range: &RangeInclusive<Duration>) -> Duration {
        let span = range.end().saturating_sub(*range.start()).as_micros() as u64;
        *range.start() + Duration::from_micros(self.below(span + 1))
    }

    /// One of the items.
    ///
    /// # Panics
    /// If there are none.
    pub fn choose<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_from_the_seed_and_stay_in_bounds() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.below(10)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
        assert!((0..10).all(|n| numbers(1).contains(&n)));
        // The published first output of SplitMix64 for the seed 0.
        assert_eq!(Random::new(0).next_u64(), 0xe220_a839_7b1d_cdaf);
        let range = Duration::from_millis(1)..=Duration::from_millis(2);
        let mut random = Random::new(3);
        assert!((0..100).all(|_| range.contains(&random.between(&range))));
    }
}
