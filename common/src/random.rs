//! Random numbers.

/// A random number, or the next one of the simulation on this thread.
pub fn bits() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(bits) = crate::simulation::bits() {
        return bits;
    }
    getrandom::u64().expect("the system has random numbers")
}

/// A random number, uniform in `0.0..1.0`.
pub fn chance() -> f64 {
    // The 53 bits of a mantissa.
    (bits() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_are_uniform_between_zero_and_one() {
        let chances: Vec<_> = (0..10_000).map(|_| chance()).collect();
        assert!(chances.iter().all(|chance| (0.0..1.0).contains(chance)));
        let mean = chances.iter().sum::<f64>() / 10_000.0;
        assert!((0.45..0.55).contains(&mean), "{mean}");
    }
}
