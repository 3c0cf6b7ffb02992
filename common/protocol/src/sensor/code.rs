//! Numbers that stand for no value.

/// The relative difference at which a number still is a code: a code that went through a 32-bit float, a scale or a
/// conversion of units.
const TOLERANCE: f64 = 1e-6;

/// Whether a number is a code such as 65535 or -127 by which a sensor says that it has no value.
pub fn is_code(number: f64, code: f64) -> bool {
    (number - code).abs() <= TOLERANCE * code.abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_stays_one_after_rounding_and_its_neighbours_are_none() {
        for (number, code, expected) in [
            (65535.0, 65535.0, true),
            (65534.0, 65535.0, false),
            (f64::from(327.67_f32), 327.67, true),
            (65535.0 * 0.1, 6553.5, true),
            (-127.0, -127.0, true),
            (-126.9375, -127.0, false),
            (85.0, 85.0, true),
            (85.0625, 85.0, false),
            (0.0, 0.0, true),
            (-0.0, 0.0, true),
            (1e-9, 0.0, false),
            (f64::NAN, 0.0, false),
        ] {
            assert_eq!(is_code(number, code), expected, "{number} {code}");
        }
    }
}
