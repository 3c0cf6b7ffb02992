//! Mean and standard deviation with compensated summation and scaling against overflow.

/// A power of two that scales very large or very small values to about 1, so that sums of squares neither overflow
/// nor underflow. Scaling by a power of two is exact.
fn scale(values: &[f64]) -> f64 {
    let largest = values.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    if (1e-100..1e100).contains(&largest) || largest == 0.0 {
        return 1.0;
    }
    let exponent = (largest.log2().floor() as i32).clamp(-1_000, 1_000);
    2.0_f64.powi(-exponent)
}

/// Sum with compensation of rounding errors (Neumaier 1974).
fn sum(values: impl Iterator<Item = f64>) -> f64 {
    let (total, error) = values.fold((0.0_f64, 0.0_f64), |(total, error), value| {
        let next = total + value;
        let rounding =
            if total.abs() >= value.abs() { (total - next) + value } else { (value - next) + total };
        (next, error + rounding)
    });
    total + error
}

/// The arithmetic mean. Needs at least one value.
pub fn mean(values: &[f64]) -> f64 {
    let scale = scale(values);
    sum(values.iter().map(|value| value * scale)) / values.len() as f64 / scale
}

/// The sample standard deviation (n-1). None with fewer than two values, or if it overflows a double.
pub fn std(values: &[f64]) -> Option<f64> {
    if values.len() < 2 {
        return None;
    }
    let scale = scale(values);
    let mean = sum(values.iter().map(|value| value * scale)) / values.len() as f64;
    let squares = sum(values.iter().map(|value| (value * scale - mean).powi(2)));
    Some((squares / (values.len() - 1) as f64).sqrt() / scale).filter(|deviation| deviation.is_finite())
}
