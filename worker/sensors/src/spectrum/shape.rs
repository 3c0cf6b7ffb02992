//! Statistics of the samples that do not depend on their order.

use schemars::JsonSchema;
use serde::Serialize;

/// Moments and the peak of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Shape {
    /// The mean.
    pub mean: f64,
    /// The root mean square.
    pub rms: f64,
    /// The largest magnitude.
    pub peak: f64,
    /// The ratio of peak to RMS; null if all samples are zero.
    pub crest_factor: Option<f64>,
    /// The fourth standardized moment (Pearson, biased), 3 for normal noise; null if the samples do not vary.
    pub kurtosis: Option<f64>,
}

impl Shape {
    /// The statistics of at least one sample. Computed relative to the peak, so that nothing overflows.
    pub fn of(samples: &[f64]) -> Self {
        let count = samples.len() as f64;
        let peak = samples.iter().fold(0.0_f64, |peak, sample| peak.max(sample.abs()));
        if peak == 0.0 {
            return Self { mean: 0.0, rms: 0.0, peak, crest_factor: None, kurtosis: None };
        }
        let mean = samples.iter().map(|sample| sample / peak).sum::<f64>() / count;
        let (mut squares, mut second, mut fourth) = (0.0, 0.0, 0.0);
        for sample in samples {
            let sample = sample / peak;
            let deviation = (sample - mean) * (sample - mean);
            squares += sample * sample;
            second += deviation;
            fourth += deviation * deviation;
        }
        let rms = (squares / count).sqrt();
        let variance = second / count;
        // A smaller deviation is the rounding error of a constant signal.
        let varies = variance.sqrt() > 1e-12 * mean.abs();
        Self {
            mean: mean * peak,
            rms: rms * peak,
            peak,
            crest_factor: Some(1.0 / rms),
            kurtosis: varies.then(|| fourth / count / (variance * variance)),
        }
    }
}
