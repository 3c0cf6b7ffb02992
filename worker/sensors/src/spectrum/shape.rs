//! What the samples are like, regardless of their order.

/// Moments and extremes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Mean.
    pub mean: f64,
    /// Root mean square.
    pub rms: f64,
    /// Largest magnitude.
    pub peak: f64,
    /// Peak over RMS; none for silence.
    pub crest_factor: Option<f64>,
    /// Fourth standardized moment; none when the samples do not vary.
    pub kurtosis: Option<f64>,
}

/// The shape of at least one sample, in units of the peak until the end: nothing overflows.
pub fn of(samples: &[f64]) -> Shape {
    let count = samples.len() as f64;
    let peak = samples.iter().fold(0.0_f64, |peak, sample| peak.max(sample.abs()));
    if peak == 0.0 {
        return Shape { mean: 0.0, rms: 0.0, peak, crest_factor: None, kurtosis: None };
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
    // Below this the deviations are what rounding made of a constant.
    let varies = variance.sqrt() > 1e-12 * mean.abs();
    Shape {
        mean: mean * peak,
        rms: rms * peak,
        peak,
        crest_factor: Some(1.0 / rms),
        kurtosis: varies.then(|| fourth / count / (variance * variance)),
    }
}
