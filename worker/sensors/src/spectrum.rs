//! `spectrum.analyze`: power spectrum, envelope spectrum and bearing defects of a vibration signal.
//!
//! A pure function of the samples. It may take seconds, so it consists of parts, between which it reports progress and
//! can be stopped. Idle workers of the lane run parts of a long signal; the result does not depend on them. The power spectral density and the envelope are defined and tested as SciPy's `welch` (Hann window, half
//! overlap, mean removed, density) and `hilbert`.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use futures_util::FutureExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use garenne::{TaskContext, TaskError, TaskOptions, WorkerBuilder, json_payload};

use crate::name_length::check_length;

pub mod bearing;
pub mod envelope;
mod four_step;
mod parts;
pub mod peaks;
pub mod samples;
pub mod shape;
mod signal;
pub mod welch;

pub use bearing::{Bearing, Defect};
use parts::Parts;
pub use peaks::Peak;
pub use samples::Samples;
pub use shape::Shape;
use signal::Signal;
use welch::Welch;

/// The smallest number of samples.
pub const MIN_SAMPLES: usize = 16;

/// The largest number of samples.
pub const MAX_SAMPLES: usize = 1 << 24;

/// The largest magnitude of a sample. Sums of squares of larger ones would overflow a double.
pub const MAX_SAMPLE_MAGNITUDE: f64 = 1e100;

/// The largest number of frequency bands.
pub const MAX_BANDS: usize = 256;

/// Time limit of a task. Sixteen million samples take a few seconds.
const DEADLINE: Duration = Duration::from_secs(300);

/// The size of a payload, in bytes, from which on idle workers help: about 100,000 samples as base64, which take some
/// ten milliseconds. Calling a helper takes less than a tenth of a millisecond.
const HELPED_FROM: usize = 512 * 1024;

/// The largest number of helpers. The concurrency of the lane limits it as well.
const MAX_HELPERS: u32 = 7;

/// The payload.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Payload {
    /// The sampling rate, in samples per second.
    #[schemars(range(min = 1e-9, max = 1e12))]
    pub sample_rate: f64,
    /// The samples: numbers, or base64 of little-endian 32-bit floats. 16 to 16,777,216.
    pub samples: Samples,
    /// The number of samples in a segment of Welch's estimate. By default the power of two that gives about sixteen
    /// segments, from 256 to 16,384. Longer segments separate closer frequencies; more segments reduce the variance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<usize>,
    /// The bands whose energy is computed, in Hz, without the upper end; octaves by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bands: Option<Vec<[f64; 2]>>,
    /// The band whose envelope is computed, in Hz, usually that of a resonance. All frequencies by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envelope_band: Option<[f64; 2]>,
    /// The bearing whose defect frequencies are searched for in the envelope spectrum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bearing: Option<Bearing>,
    /// The device that measured; copied to the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub device: Option<String>,
}

json_payload!(Payload, "spectrum.analyze");

/// Samples that cannot be analyzed, or an analysis that was stopped.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SpectrumError {
    /// A field of the payload is invalid. States the field, its value and the allowed values.
    #[error("{0}")]
    Invalid(String),
    /// The caller stopped the analysis.
    #[error("stopped before the analysis was complete")]
    Stopped,
}

/// The result. Amplitudes are in the unit of the samples, powers in its square per Hz.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Answer {
    /// The device of the payload, if given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The number of samples.
    pub count: usize,
    /// The statistics that do not depend on the order of the samples.
    #[serde(flatten)]
    pub shape: Shape,
    /// The distance of two frequencies of the spectrum, in Hz.
    pub resolution: f64,
    /// The highest peaks of the spectrum, highest first, at most ten.
    pub peaks: Vec<Peak>,
    /// The energy of each band.
    pub bands: Vec<Band>,
    /// The highest peaks of the envelope spectrum, highest first, at most ten.
    pub envelope_peaks: Vec<Peak>,
    /// The power of the envelope spectrum at the bearing's defect frequencies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub defects: Vec<Defect>,
}

/// The energy of a frequency band.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Band {
    /// The lower end in Hz, inclusive.
    pub from: f64,
    /// The upper end in Hz, exclusive.
    pub to: f64,
    /// The mean square of the frequencies in the band, in the square of the unit of the samples.
    pub energy: f64,
}

/// Registers the kind: long, CPU-bound, helped by idle workers, and stopped between parts when it is cancelled.
pub fn register(builder: WorkerBuilder) -> WorkerBuilder {
    let options = TaskOptions::long().deadline(DEADLINE).cpu_bound().helpers(HELPED_FROM, MAX_HELPERS);
    builder.handle_with(answer, options)
}

async fn answer(cx: TaskContext, payload: Payload) -> Result<Answer, TaskError> {
    analyze_in_parts(&payload, &mut Parts::OnWorkers(&cx)).await.map_err(|error| match error {
        SpectrumError::Stopped => TaskError::interrupted(),
        error => TaskError::invalid(error),
    })
}

/// Analyzes the samples. Calls `on_progress` with the completed fraction, 0 to 1; it can stop the analysis
/// ([`SpectrumError::Stopped`]).
pub fn analyze(
    payload: &Payload,
    on_progress: &mut (dyn FnMut(f64) -> ControlFlow<()> + Send),
) -> Result<Answer, SpectrumError> {
    let analysis = analyze_in_parts(payload, &mut Parts::InPlace(on_progress)).now_or_never();
    analysis.expect("parts that run in place wait for nothing")
}

async fn analyze_in_parts(payload: &Payload, parts: &mut Parts<'_>) -> Result<Answer, SpectrumError> {
    let samples = payload.samples.as_slice();
    let rate = payload.sample_rate;
    let (segment, bands) = payload.validate().map_err(SpectrumError::Invalid)?;
    let shape = Shape::of(samples);
    // Relative to the peak, no square overflows or underflows.
    let unit = if shape.peak > 0.0 { shape.peak } else { 1.0 };
    let scaled: Vec<f64> = samples.iter().map(|sample| sample / unit).collect();
    let scaled = Arc::new(Signal::from(scaled));

    let welch = Welch::new(segment, rate);
    let spectrum = welch.estimate(Arc::clone(&scaled), parts, 0.0..0.2).await?;
    let length = envelope::transform_length(scaled.len()).max(segment);
    let band = payload.envelope_band;
    let envelope = envelope::envelope_in_parts(&scaled, length, rate, band, parts, 0.2..0.8).await?;
    let envelope = welch.estimate(Arc::new(envelope), parts, 0.8..1.0).await?;

    let power = unit * unit;
    let resolution = welch.resolution();
    let scaled_peaks = |spectrum: &[f64]| {
        let mut found = peaks::highest(spectrum, resolution, rate);
        found.iter_mut().for_each(|peak| peak.power *= power);
        found
    };
    let defects = payload.bearing.map(|bearing| bearing.defects(&envelope, resolution, power));
    Ok(Answer {
        device: payload.device.clone(),
        count: samples.len(),
        shape,
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
    /// Checks all fields. Returns the length of a segment and the bands, with defaults applied.
    fn validate(&self) -> Result<(usize, Vec<[f64; 2]>), String> {
        check_length("device", self.device.as_deref().unwrap_or_default())?;
        let (samples, rate) = (self.samples.as_slice(), self.sample_rate);
        let count = samples.len();
        if !(1e-9..=1e12).contains(&rate) {
            return Err(format!("sample_rate is {rate}; expected 1e-9 to 1e12 samples per second"));
        }
        if !(MIN_SAMPLES..=MAX_SAMPLES).contains(&count) {
            return Err(format!("{count} samples; expected {MIN_SAMPLES} to {MAX_SAMPLES}"));
        }
        let is_valid = |sample: &f64| sample.abs() <= MAX_SAMPLE_MAGNITUDE;
        if let Some(index) = samples.iter().position(|sample| !is_valid(sample)) {
            return Err(format!(
                "sample {index} is {}; expected a magnitude of at most {MAX_SAMPLE_MAGNITUDE:e}",
                samples[index]
            ));
        }
        let segment = self.segment.unwrap_or_else(|| default_segment(count));
        if !(MIN_SAMPLES..=count).contains(&segment) {
            return Err(format!(
                "segment is {segment}; expected {MIN_SAMPLES} to {count}, the number of samples"
            ));
        }
        let bands = self.bands.clone().unwrap_or_else(|| octaves(rate));
        if bands.len() > MAX_BANDS {
            return Err(format!("{} bands; at most {MAX_BANDS} are allowed", bands.len()));
        }
        let is_band = |[from, to]: &[f64; 2]| *from >= 0.0 && from < to && to.is_finite();
        if let Some([from, to]) = bands.iter().chain(&self.envelope_band).find(|band| !is_band(band)) {
            return Err(format!(
                "band is [{from}, {to}]; expected two ascending frequencies of 0 Hz or more"
            ));
        }
        self.bearing.map_or(Ok(()), |bearing| bearing.validate())?;
        Ok((segment, bands))
    }
}

/// A power of two, for a fast transform, that gives about sixteen overlapping segments.
fn default_segment(samples: usize) -> usize {
    let eighth = (samples / 8).max(1);
    (1 << eighth.ilog2()).clamp(256, 16_384).min(samples)
}

/// Ten octaves down from half the sampling rate. The lowest one extends to 0 Hz.
fn octaves(rate: f64) -> Vec<[f64; 2]> {
    // The highest octave includes half the rate.
    let end = |octave: i32| rate / 2.0_f64.powi(octave);
    let octave = |octave| match octave {
        1 => [end(2), end(1).next_up()],
        10 => [0.0, end(10)],
        _ => [end(octave + 1), end(octave)],
    };
    (1..=10).rev().map(octave).collect()
}

/// The integral of the density over a band.
fn energy(spectrum: &[f64], resolution: f64, from: f64, to: f64) -> f64 {
    let frequencies = spectrum.iter().zip(0..);
    let inside = frequencies.filter(|(_, bin)| (from..to).contains(&(f64::from(*bin) * resolution)));
    inside.fold(0.0, |sum, (power, _)| sum + power) * resolution
}

#[cfg(test)]
mod tests;
