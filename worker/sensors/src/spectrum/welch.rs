//! Power spectral density by Welch's method (Welch 1967), as `scipy.signal.welch` computes it.

use std::f64::consts::TAU;
use std::ops::Range;
use std::sync::Arc;

use realfft::{RealFftPlanner, RealToComplex};

use super::{SpectrumError, parts::Parts, signal::Signal};

/// An estimator for segments of one length with a Hann window and half overlap.
#[derive(Clone)]
pub struct Welch {
    transform: Arc<dyn RealToComplex<f64>>,
    window: Arc<[f64]>,
    rate: f64,
}

/// Segments of one part of the estimate. The number does not depend on the workers, because it determines in which order
/// the segments are added.
const SEGMENTS: usize = 16;

impl Welch {
    /// An estimator for segments of `segment` samples at a sampling rate of `rate` per second.
    pub fn new(segment: usize, rate: f64) -> Self {
        let transform = RealFftPlanner::new().plan_fft_forward(segment);
        // The periodic form, as for SciPy's spectral estimates.
        let hann = |index: usize| 0.5 - 0.5 * (TAU * index as f64 / segment as f64).cos();
        Self { transform, window: (0..segment).map(hann).collect(), rate }
    }

    /// The distance of two frequencies, in Hz.
    pub fn resolution(&self) -> f64 {
        self.rate / self.window.len() as f64
    }

    /// The one-sided power spectral density from 0 Hz to half the sampling rate. Needs at least one segment of samples.
    pub(super) async fn estimate(
        &self,
        signal: Arc<Signal>,
        parts: &mut Parts<'_>,
        progress: Range<f64>,
    ) -> Result<Vec<f64>, SpectrumError> {
        let length = self.window.len();
        let step = length - length / 2;
        let count = (signal.len() - length) / step + 1;
        let welch = self.clone();
        let part = move |index: usize| {
            let segments = index * SEGMENTS..count.min((index + 1) * SEGMENTS);
            welch.sum(&signal, segments.map(|segment| segment * step))
        };
        let sums = parts.map(progress, count.div_ceil(SEGMENTS), part).await?;
        let mut density = vec![0.0; length / 2 + 1];
        for sum in sums {
            density.iter_mut().zip(sum).for_each(|(density, power)| *density += power);
        }
        let weight = self.rate * self.window.iter().map(|weight| weight * weight).sum::<f64>() * count as f64;
        // Each frequency includes the power of its negative one, except 0 Hz and half the rate.
        let last = density.len() - 1;
        let is_unpaired = |bin: usize| bin == 0 || (bin == last && length.is_multiple_of(2));
        for (bin, power) in density.iter_mut().enumerate() {
            *power *= if is_unpaired(bin) { 1.0 } else { 2.0 } / weight;
        }
        Ok(density)
    }

    /// The sum of the powers of the segments that begin at these samples.
    fn sum(&self, signal: &Signal, starts: impl Iterator<Item = usize>) -> Vec<f64> {
        let mut input = self.transform.make_input_vec();
        let mut output = self.transform.make_output_vec();
        let mut scratch = self.transform.make_scratch_vec();
        let mut powers = vec![0.0; output.len()];
        for start in starts {
            signal.read(start, &mut input);
            let mean = input.iter().sum::<f64>() / input.len() as f64;
            for (sample, weight) in input.iter_mut().zip(&*self.window) {
                *sample = (*sample - mean) * weight;
            }
            let transformed = self.transform.process_with_scratch(&mut input, &mut output, &mut scratch);
            debug_assert!(transformed.is_ok(), "the transform made the buffers");
            powers.iter_mut().zip(&output).for_each(|(sum, bin)| *sum += bin.norm_sqr());
        }
        powers
    }
}
