//! Defect frequencies of a rolling bearing, and their power in an envelope spectrum.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::peaks::median;

/// The geometry of a rolling bearing with a rotating inner ring and a fixed outer ring.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bearing {
    /// The number of balls or rollers in a row, 3 to 200.
    pub balls: u32,
    /// The diameter of a ball, in any unit.
    pub ball_diameter: f64,
    /// The diameter of the circle through the centres of the balls, in the same unit; larger than `ball_diameter`.
    pub pitch_diameter: f64,
    /// The contact angle in degrees, from 0 to less than 90.
    #[serde(default)]
    pub contact_angle: f64,
    /// The rotation frequency of the shaft in Hz.
    pub shaft_hz: f64,
}

/// The power of the envelope spectrum at a defect frequency and its first two harmonics.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Defect {
    /// The defect: `bpfo` outer ring, `bpfi` inner ring, `bsf` ball, `ftf` cage.
    pub name: &'static str,
    /// The defect frequency in Hz.
    pub hz: f64,
    /// The sum of the highest powers near the frequency and its harmonics.
    pub power: f64,
    /// The ratio of `power` to three times the median of the spectrum, about 1 without a defect; null if the median is
    /// zero.
    pub ratio: Option<f64>,
}

/// Multiples of a defect frequency whose power is added.
const MULTIPLES: u32 = 3;

/// The relative distance from the computed frequency that is searched: balls slip slightly.
const SLIP: f64 = 0.01;

impl Bearing {
    /// The four defect frequencies in Hz: ball pass frequency of the outer ring (`bpfo`) and the inner ring (`bpfi`),
    /// ball spin frequency (`bsf`) and fundamental train frequency of the cage (`ftf`).
    pub fn frequencies(&self) -> [(&'static str, f64); 4] {
        let ratio = self.ball_diameter / self.pitch_diameter * self.contact_angle.to_radians().cos();
        let (balls, shaft) = (f64::from(self.balls), self.shaft_hz);
        [
            ("bpfo", balls * shaft / 2.0 * (1.0 - ratio)),
            ("bpfi", balls * shaft / 2.0 * (1.0 + ratio)),
            ("bsf", self.pitch_diameter * shaft / (2.0 * self.ball_diameter) * (1.0 - ratio * ratio)),
            ("ftf", shaft / 2.0 * (1.0 - ratio)),
        ]
    }

    /// An error names the field and the allowed values.
    pub(super) fn validate(&self) -> Result<(), String> {
        let positive = |number: f64| number.is_finite() && number > 0.0;
        for (is_valid, problem) in [
            ((3..=200).contains(&self.balls), "balls: expected 3 to 200"),
            (
                positive(self.ball_diameter) && positive(self.pitch_diameter),
                "ball_diameter and pitch_diameter: expected positive numbers",
            ),
            (self.ball_diameter < self.pitch_diameter, "ball_diameter: expected less than pitch_diameter"),
            ((0.0..90.0).contains(&self.contact_angle), "contact_angle: expected 0 to less than 90 degrees"),
            (positive(self.shaft_hz), "shaft_hz: expected a positive number"),
        ] {
            if !is_valid {
                return Err(format!("bearing: {problem}"));
            }
        }
        Ok(())
    }

    /// Measures the defects in an envelope spectrum with frequencies `resolution` Hz apart. `power_unit` scales the
    /// powers of the result.
    pub(super) fn defects(&self, envelope: &[f64], resolution: f64, power_unit: f64) -> Vec<Defect> {
        let highest_near = |hz: f64| {
            let margin = (SLIP * hz).max(resolution);
            // 0 Hz is the mean of the envelope.
            let from = (((hz - margin) / resolution).ceil().max(1.0) as usize).min(envelope.len());
            let to = ((((hz + margin) / resolution).floor() + 1.0) as usize).clamp(from, envelope.len());
            envelope[from..to].iter().copied().fold(0.0, f64::max)
        };
        let floor = f64::from(MULTIPLES) * median(envelope);
        let defect = |(name, hz): (&'static str, f64)| {
            let sum: f64 = (1..=MULTIPLES).map(|multiple| highest_near(hz * f64::from(multiple))).sum();
            let ratio = (floor > 0.0).then(|| sum / floor).filter(|ratio| ratio.is_finite());
            Defect { name, hz, power: sum * power_unit, ratio }
        };
        self.frequencies().into_iter().map(defect).collect()
    }
}
