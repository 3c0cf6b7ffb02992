//! Where a rolling bearing's defects show, from its geometry.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Refusal;
use super::peaks::median;

/// A rolling bearing whose inner ring turns and whose outer ring stands still.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bearing {
    /// Balls or rollers in one row, 3 to 200.
    pub balls: u32,
    /// Diameter of a ball, in any unit.
    pub ball_diameter: f64,
    /// Diameter of the circle through the balls' centres, in the same unit.
    pub pitch_diameter: f64,
    /// Angle of contact in degrees, from 0 to less than 90.
    #[serde(default)]
    pub contact_angle: f64,
    /// Turns of the shaft per second.
    pub shaft_hz: f64,
}

/// What the envelope's spectrum has at a defect's frequency and its next two multiples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Defect {
    /// Which one: `bpfo` outer ring, `bpfi` inner ring, `bsf` ball, `ftf` cage.
    pub name: &'static str,
    /// Its frequency.
    pub hz: f64,
    /// The highest powers near the frequency and its multiples, added.
    pub power: f64,
    /// The same over three times the spectrum's median: about 1 where there is nothing; null when
    /// the median is zero.
    pub ratio: Option<f64>,
}

/// Multiples looked at.
const MULTIPLES: u32 = 3;

/// Balls slide a little: a defect may be this share of its frequency away.
const SLIP: f64 = 0.01;

impl Bearing {
    /// The four frequencies by name: balls passing the outer and the inner ring, spin of a ball,
    /// turn of the cage.
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

    pub(super) fn check(&self) -> Result<(), Refusal> {
        let positive = |number: f64| number.is_finite() && number > 0.0;
        if !(3..=200).contains(&self.balls) {
            return Err(Refusal::Bearing("balls: 3 to 200 are allowed"));
        }
        if !positive(self.ball_diameter) || !positive(self.pitch_diameter) {
            return Err(Refusal::Bearing("ball_diameter and pitch_diameter must be positive"));
        }
        if self.ball_diameter >= self.pitch_diameter {
            return Err(Refusal::Bearing("ball_diameter must be less than pitch_diameter"));
        }
        if !(0.0..90.0).contains(&self.contact_angle) {
            return Err(Refusal::Bearing("contact_angle must be from 0 to less than 90 degrees"));
        }
        if !positive(self.shaft_hz) {
            return Err(Refusal::Bearing("shaft_hz must be positive"));
        }
        Ok(())
    }

    pub(super) fn look_for(&self, envelope: &[f64], resolution: f64, power: f64) -> Vec<Defect> {
        let near = |hz: f64| {
            let margin = (SLIP * hz).max(resolution);
            // 0 Hz is the envelope's mean, never a defect.
            let from = (((hz - margin) / resolution).ceil().max(1.0) as usize).min(envelope.len());
            let to = ((((hz + margin) / resolution).floor() + 1.0) as usize).clamp(from, envelope.len());
            envelope[from..to].iter().copied().fold(0.0, f64::max)
        };
        let floor = f64::from(MULTIPLES) * median(envelope);
        let defect = |(name, hz): (&'static str, f64)| {
            let sum: f64 = (1..=MULTIPLES).map(|multiple| near(hz * f64::from(multiple))).sum();
            let ratio = (floor > 0.0).then(|| sum / floor).filter(|ratio| ratio.is_finite());
            Defect { name, hz, power: sum * power, ratio }
        };
        self.frequencies().into_iter().map(defect).collect()
    }
}
