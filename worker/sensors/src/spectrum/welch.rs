//! Power spectral density by Welch's method, as `scipy.signal.welch` estimates it.

use std::f64::consts::TAU;
use std::sync::Arc;

use realfft::{RealFftPlanner, RealToComplex};

/// Segments of one length, under a Hann window.
pub struct Welch {
    transform: Arc<dyn RealToComplex<f64>>,
    window: Vec<f64>,
    rate: f64,
}

/// How many segments are transformed between two reports.
const REPORT_EVERY: usize = 16;

impl Welch {
    /// For segments of so many samples, of so many a second.
    pub fn new(segment: usize, rate: f64) -> Self {
        let transform = RealFftPlanner::new().plan_fft_forward(segment);
        // Periodic: the window's next value would be its first.
        let hann = |place: usize| 0.5 - 0.5 * (TAU * place as f64 / segment as f64).cos();
        Self { transform, window: (0..segment).map(hann).collect(), rate }
    }

    /// Hz from one frequency to the next.
    pub fn resolution(&self) -> f64 {
        self.rate / self.window.len() as f64
    }

    /// The one-sided density, from 0 Hz up, of at least one segment of samples. `watch` is told
    /// the share that is done.
    ///
    /// # Errors
    /// What `watch` says to stop with.
    pub fn estimate<E>(
        &self,
        samples: &[f64],
        watch: &mut impl FnMut(f64) -> Result<(), E>,
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
                watch(done as f64 / count as f64)?;
            }
            let mean = segment.iter().sum::<f64>() / length as f64;
            for (slot, (sample, weight)) in input.iter_mut().zip(segment.iter().zip(&self.window)) {
                *slot = (sample - mean) * weight;
            }
            let transformed = self.transform.process_with_scratch(&mut input, &mut output, &mut scratch);
            debug_assert!(transformed.is_ok(), "the buffers are the transform's own");
            density.iter_mut().zip(&output).for_each(|(sum, bin)| *sum += bin.norm_sqr());
        }
        let weight = self.rate * self.window.iter().map(|weight| weight * weight).sum::<f64>() * count as f64;
        // Each frequency stands for its negative one too, but 0 Hz and half the rate have none.
        let last = density.len() - 1;
        let is_alone = |place: usize| place == 0 || (place == last && length.is_multiple_of(2));
        for (place, power) in density.iter_mut().enumerate() {
            *power *= if is_alone(place) { 1.0 } else { 2.0 } / weight;
        }
        Ok(density)
    }
}
