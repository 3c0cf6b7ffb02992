//! What rises out of a spectrum.

use schemars::JsonSchema;
use serde::Serialize;

/// Most peaks that are named.
pub const MOST: usize = 10;

/// How far above the spectrum's median a peak rises at least.
pub const RISE: f64 = 4.0;

/// One peak.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Peak {
    /// Its frequency, between those of the spectrum: the top of a parabola through the logarithms
    /// of the highest power and its neighbours.
    pub hz: f64,
    /// The spectrum's power there, before interpolation.
    pub power: f64,
}

/// The highest local maxima that rise out of the spectrum, highest first. The ends are none; the
/// middle of a flat top is one.
pub fn highest(spectrum: &[f64], resolution: f64) -> Vec<Peak> {
    let floor = RISE * median(spectrum);
    let mut found: Vec<(usize, f64)> = Vec::new();
    let mut place = 1;
    while place + 1 < spectrum.len() {
        let power = spectrum[place];
        let top = spectrum[place..].iter().take_while(|other| **other == power).count();
        let after = place + top;
        if after < spectrum.len() && spectrum[place - 1] < power && spectrum[after] < power && power > floor {
            found.push((place + (top - 1) / 2, power));
        }
        place = after;
    }
    found.sort_by(|one, other| other.1.total_cmp(&one.1));
    found.truncate(MOST);
    let hz = |place: usize| (place as f64 + shift(&spectrum[place - 1..=place + 1])) * resolution;
    found.into_iter().map(|(place, power)| Peak { hz: hz(place), power }).collect()
}

/// The lower median: a floor needs no interpolation.
pub(super) fn median(spectrum: &[f64]) -> f64 {
    let mut sorted = spectrum.to_vec();
    let half = (sorted.len() - 1) / 2;
    *sorted.select_nth_unstable_by(half, f64::total_cmp).1
}

/// Where the top of the parabola is, in steps from the middle of three; between -1/2 and 1/2.
fn shift(three: &[f64]) -> f64 {
    if three.iter().any(|power| *power <= 0.0) {
        return 0.0;
    }
    let [left, middle, right] = [three[0].ln(), three[1].ln(), three[2].ln()];
    let bend = left - 2.0 * middle + right;
    if bend < 0.0 { (0.5 * (left - right) / bend).clamp(-0.5, 0.5) } else { 0.0 }
}
