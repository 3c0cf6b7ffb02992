//! Peaks of a spectrum.

use schemars::JsonSchema;
use serde::Serialize;

/// The largest number of peaks in a result.
pub const MAX_PEAKS: usize = 10;

/// The smallest ratio of a peak to the median of the spectrum.
pub const MIN_RATIO: f64 = 4.0;

/// The standard deviation of the rounding errors of a transform of samples up to 1: 16 million of them lose fewer than seven
/// bits.
const ROUNDING: f64 = 100.0 * f64::EPSILON;

/// A peak of a spectrum.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Peak {
    /// The frequency in Hz, interpolated between those of the spectrum: the vertex of a parabola through the logarithms
    /// of the highest power and its neighbours.
    pub hz: f64,
    /// The power of the spectrum at the nearest frequency, not interpolated.
    pub power: f64,
}

/// The highest local maxima of the density of samples up to 1, highest first, above [`MIN_RATIO`] times the median and above
/// rounding errors. The last frequency may be one, 0 Hz not: the mean is removed. Of several equal values in a row the middle
/// one is the maximum.
pub fn highest(spectrum: &[f64], resolution: f64, rate: f64) -> Vec<Peak> {
    let floor = f64::max(MIN_RATIO * median(spectrum), MIN_RATIO * 2.0 * ROUNDING * ROUNDING / rate);
    let mut found: Vec<(usize, f64)> = Vec::new();
    let mut bin = 1;
    while bin < spectrum.len() {
        let power = spectrum[bin];
        let width = spectrum[bin..].iter().take_while(|other| **other == power).count();
        let after = bin + width;
        let is_above_next = spectrum.get(after).is_none_or(|next| *next < power);
        if spectrum[bin - 1] < power && is_above_next && power > floor {
            found.push((bin + (width - 1) / 2, power));
        }
        bin = after;
    }
    found.sort_by(|one, other| other.1.total_cmp(&one.1));
    found.truncate(MAX_PEAKS);
    let offset = |bin: usize| spectrum.get(bin - 1..=bin + 1).map_or(0.0, vertex_offset);
    let hz = |bin: usize| (bin as f64 + offset(bin)) * resolution;
    found.into_iter().map(|(bin, power)| Peak { hz: hz(bin), power }).collect()
}

/// The lower median of the powers.
pub(super) fn median(spectrum: &[f64]) -> f64 {
    let mut sorted = spectrum.to_vec();
    let half = (sorted.len() - 1) / 2;
    *sorted.select_nth_unstable_by(half, f64::total_cmp).1
}

/// The vertex of a parabola through the logarithms of three powers, in steps from the middle one; -1/2 to 1/2.
fn vertex_offset(three: &[f64]) -> f64 {
    if three.iter().any(|power| *power <= 0.0) {
        return 0.0;
    }
    let [left, middle, right] = [three[0].ln(), three[1].ln(), three[2].ln()];
    let curvature = left - 2.0 * middle + right;
    if curvature < 0.0 { (0.5 * (left - right) / curvature).clamp(-0.5, 0.5) } else { 0.0 }
}
