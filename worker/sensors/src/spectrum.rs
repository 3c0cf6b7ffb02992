//! `spectrum.analyze`: what a stretch of vibration says about the machine.
//!
//! A pure function of the samples, long enough to be asked how far it is: between segments it
//! reports progress and may be stopped. Welch's estimate and the envelope are SciPy's `welch`
//! (Hann window, half overlap, mean removed, density) and `hilbert`, and tested against them.

use std::ops::ControlFlow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub mod bearing;
pub mod envelope;
pub mod peaks;
pub mod samples;
pub mod shape;
pub mod task;
pub mod welch;

pub use bearing::{Bearing, Defect};
pub use peaks::Peak;
pub use samples::Samples;
use welch::Welch;

/// Fewest samples that have a spectrum worth the name.
pub const FEWEST_SAMPLES: usize = 16;

/// Most samples at once.
pub const MOST_SAMPLES: usize = 1 << 24;

/// Largest magnitude of a sample: its square, summed, must stay a double.
pub const LARGEST_SAMPLE: f64 = 1e100;

/// Most frequency bands that can be asked for.
pub const MOST_BANDS: usize = 256;

/// The task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Payload {
    /// Samples per second.
    #[schemars(range(min = 1e-9, max = 1e12))]
    pub sample_rate: f64,
    /// The samples: numbers, or base64 of little-endian 32-bit floats.
    pub samples: Samples,
    /// Samples in one segment of Welch's estimate; by default the power of two that gives some
    /// sixteen segments, from 256 to 16,384. Longer segments tell closer frequencies apart, more
    /// of them calm the noise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<usize>,
    /// Bands to sum the energy of, in Hz, the upper end not included; octaves by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bands: Option<Vec<[f64; 2]>>,
    /// The band, in Hz, whose envelope is taken: that of a resonance. All of it by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envelope_band: Option<[f64; 2]>,
    /// The bearing, to look for its defects in the envelope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bearing: Option<Bearing>,
    /// Which device measured; copied to the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

/// Why there is no spectrum.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// Not a rate at which anything is sampled.
    #[error("sample_rate {0} is not between 1e-9 and 1e12 samples per second")]
    SampleRate(f64),
    /// Too few or too many samples.
    #[error("{0} samples; {FEWEST_SAMPLES} to {MOST_SAMPLES} are allowed")]
    Count(usize),
    /// A sample that cannot be computed with.
    #[error("sample {index} is {value}; its magnitude may be at most {LARGEST_SAMPLE:e}")]
    Sample {
        /// Its place.
        index: usize,
        /// What it is.
        value: f64,
    },
    /// A segment that does not fit.
    #[error("segment {segment} is not between {FEWEST_SAMPLES} and the {samples} samples")]
    Segment {
        /// What was asked for.
        segment: usize,
        /// How many samples there are.
        samples: usize,
    },
    /// A band that is none.
    #[error("band [{0}, {1}] is not from a frequency of 0 Hz or more to a higher one")]
    Band(f64, f64),
    /// Too many bands.
    #[error("{0} bands; {MOST_BANDS} are allowed")]
    Bands(usize),
    /// A bearing that cannot exist.
    #[error("bearing: {0}")]
    Bearing(&'static str),
    /// Stopped on the way: not the input's fault.
    #[error("stopped before it was done")]
    Stopped,
}

/// What the samples say. Amplitudes are in the samples' unit, powers in its square per Hz.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Answer {
    /// Which device measured, where the task said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// How many samples there were.
    pub count: usize,
    /// Mean.
    pub mean: f64,
    /// Root mean square.
    pub rms: f64,
    /// Largest magnitude.
    pub peak: f64,
    /// Peak over RMS; null for silence.
    pub crest_factor: Option<f64>,
    /// Fourth standardized moment, 3 for normal noise (Pearson's, biased); null when the samples
    /// do not vary.
    pub kurtosis: Option<f64>,
    /// Hz from one frequency of the spectrum to the next.
    pub resolution: f64,
    /// The highest peaks of the spectrum, highest first, at most ten.
    pub peaks: Vec<Peak>,
    /// Energy by band.
    pub bands: Vec<Band>,
    /// The highest peaks of the envelope's spectrum.
    pub envelope_peaks: Vec<Peak>,
    /// What the envelope has at the bearing's defect frequencies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub defects: Vec<Defect>,
}

/// The energy of a band: the mean square of what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Band {
    /// Lower end in Hz, included.
    pub from: f64,
    /// Upper end in Hz, not included.
    pub to: f64,
    /// Mean square, in the square of the samples' unit.
    pub energy: f64,
}

/// Analyzes the samples. `watch` is told how much is done, from 0 to 1, and may break it off.
///
/// # Errors
/// An input that has no spectrum, by name; [`Refusal::Stopped`].
pub fn analyze(payload: &Payload, watch: &mut dyn FnMut(f64) -> ControlFlow<()>) -> Result<Answer, Refusal> {
    let samples = payload.samples.as_slice();
    let rate = payload.sample_rate;
    let (segment, bands) = payload.check()?;
    let shape = shape::of(samples);
    // In units of the peak no square overflows or vanishes.
    let unit = if shape.peak > 0.0 { shape.peak } else { 1.0 };
    let scaled: Vec<f64> = samples.iter().map(|sample| sample / unit).collect();

    let mut progress = |from: f64, to: f64, part: f64| match watch(from + (to - from) * part) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Refusal::Stopped),
    };
    let welch = Welch::new(segment, rate);
    let spectrum = welch.estimate(&scaled, &mut |part| progress(0.0, 0.3, part))?;
    let kept = envelope::transformed(scaled.len()).max(segment);
    let envelope = envelope::envelope(&scaled[..kept], rate, payload.envelope_band);
    progress(0.0, 0.7, 1.0)?;
    let envelope = welch.estimate(&envelope, &mut |part| progress(0.7, 1.0, part))?;

    let power = unit * unit;
    let resolution = welch.resolution();
    let scaled_peaks = |spectrum: &[f64]| {
        let mut found = peaks::highest(spectrum, resolution);
        found.iter_mut().for_each(|peak| peak.power *= power);
        found
    };
    let defects = payload.bearing.map(|bearing| bearing.look_for(&envelope, resolution, power));
    Ok(Answer {
        device: payload.device.clone(),
        count: samples.len(),
        mean: shape.mean,
        rms: shape.rms,
        peak: shape.peak,
        crest_factor: shape.crest_factor,
        kurtosis: shape.kurtosis,
        resolution,
        peaks: scaled_peaks(&spectrum),
        bands: bands
            .into_iter()
            .map(|[from, to]| Band { from, to, energy: power * energy(&spectrum, resolution, from, to) })
            .collect(),
        envelope_peaks: scaled_peaks(&envelope),
        defects: defects.unwrap_or_default(),
    })
}

impl Payload {
    /// The segment's length and the bands, once everything has been found in order.
    fn check(&self) -> Result<(usize, Vec<[f64; 2]>), Refusal> {
        let samples = self.samples.as_slice();
        if !(1e-9..=1e12).contains(&self.sample_rate) {
            return Err(Refusal::SampleRate(self.sample_rate));
        }
        if !(FEWEST_SAMPLES..=MOST_SAMPLES).contains(&samples.len()) {
            return Err(Refusal::Count(samples.len()));
        }
        let is_fit = |sample: &f64| sample.abs() <= LARGEST_SAMPLE;
        if let Some(index) = samples.iter().position(|sample| !is_fit(sample)) {
            return Err(Refusal::Sample { index, value: samples[index] });
        }
        let segment = self.segment.unwrap_or_else(|| default_segment(samples.len()));
        if !(FEWEST_SAMPLES..=samples.len()).contains(&segment) {
            return Err(Refusal::Segment { segment, samples: samples.len() });
        }
        let bands = self.bands.clone().unwrap_or_else(|| octaves(self.sample_rate));
        if bands.len() > MOST_BANDS {
            return Err(Refusal::Bands(bands.len()));
        }
        let is_band = |[from, to]: &[f64; 2]| *from >= 0.0 && from < to && to.is_finite();
        match bands.iter().chain(&self.envelope_band).find(|band| !is_band(band)) {
            Some([from, to]) => return Err(Refusal::Band(*from, *to)),
            None => self.bearing.map_or(Ok(()), |bearing| bearing.check())?,
        }
        Ok((segment, bands))
    }
}

/// A power of two, so that segments are transformed quickly; some sixteen of them with overlap.
fn default_segment(samples: usize) -> usize {
    let eighth = (samples / 8).max(1);
    (1 << eighth.ilog2()).clamp(256, 16_384).min(samples)
}

/// Octaves down from half the sampling rate, ten of them, the last one down to zero.
fn octaves(rate: f64) -> Vec<[f64; 2]> {
    // The topmost includes half the rate itself.
    let end = |octave: i32| rate / 2.0_f64.powi(octave);
    let octave = |octave| match octave {
        1 => [end(2), end(1).next_up()],
        10 => [0.0, end(10)],
        _ => [end(octave + 1), end(octave)],
    };
    (1..=10).rev().map(octave).collect()
}

fn energy(spectrum: &[f64], resolution: f64, from: f64, to: f64) -> f64 {
    let frequencies = spectrum.iter().zip(0..);
    let inside = frequencies.filter(|(_, place)| (from..to).contains(&(f64::from(*place) * resolution)));
    inside.fold(0.0, |sum, (power, _)| sum + power) * resolution
}

#[cfg(test)]
mod tests;
