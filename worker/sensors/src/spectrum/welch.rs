//! Power spectral density by Welch's method (Welch 1967), as `scipy.signal.welch` computes it.

use std::f64::consts::TAU;
use std::sync::Arc;

use realfft::{RealFftPlanner, RealToComplex};

/// An estimator for segments of one length with a Hann window and half overlap.
pub struct Welch {
    transform: Arc<dyn RealToComplex<f64>>,
    window: Vec<f64>,
    rate: f64,
}

/// Segments between two progress reports.
const REPORT_EVERY: usize = 16;

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
    /// Calls `on_progress` with the completed fraction.
    ///
    /// # Errors
    /// The error of `on_progress`, which stops the estimate.
    pub fn estimate<E>(
        &self,
        samples: &[f64],
        on_progress: &mut impl FnMut(f64) -> Result<(), E>,
    ) -> Result<Vec<f64>, E> {
        let length = self.window.len();
        let step = length - length / 2;
        let count = (samples.len() - length) / step + 1;
        let mut input = self.transform.make_input_vec();
        let mut output = self.transform.make_output_vec();
        let mut scratch = self.transform.make_scratch_vec();
        let mut density = vec![0.0; output.len()];
        for (done, segment) in samples.windows(length).step_by(step).enumerate() {
            if done.is_multiple_of(REPORT_EVERY) {
                on_progress(done as f64 / count as f64)?;
            }
            let mean = segment.iter().sum::<f64>() / length as f64;
            for (slot, (sample, weight)) in input.iter_mut().zip(segment.iter().zip(&self.window)) {
                *slot = (sample - mean) * weight;
            }
            let transformed = self.transform.process_with_scratch(&mut input, &mut output, &mut scratch);
            debug_assert!(transformed.is_ok(), "the transform made the buffers");
            density.iter_mut().zip(&output).for_each(|(sum, bin)| *sum += bin.norm_sqr());
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
}
