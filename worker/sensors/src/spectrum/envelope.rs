//! The envelope of a signal: the magnitude of its analytic signal, as from `scipy.signal.hilbert`.

use realfft::RealFftPlanner;
use realfft::num_complex::Complex;

/// Signals with at most this many samples are transformed as a whole.
pub const MAX_EXACT_SAMPLES: usize = 1 << 16;

/// The number of samples that are transformed: above [`MAX_EXACT_SAMPLES`] the largest number without a prime factor
/// above 11, which omits less than 1 % of the samples. The transform of a prime number of samples takes ten times as
/// long.
pub fn transform_length(count: usize) -> usize {
    let is_smooth = |count: &usize| {
        let rest = [2, 3, 5, 7, 11].into_iter().fold(*count, |mut rest, prime| {
            while rest.is_multiple_of(prime) {
                rest /= prime;
            }
            rest
        });
        rest == 1
    };
    match count {
        0..=MAX_EXACT_SAMPLES => count,
        _ => (MAX_EXACT_SAMPLES..=count).rev().find(is_smooth).unwrap_or(count),
    }
}

/// The envelope of the frequencies in a band, in Hz including both ends, or of all frequencies.
///
/// The Hilbert transform shifts the phase of each frequency by -90° and removes 0 Hz and half the rate. On the
/// one-sided spectrum this takes two real transforms instead of two complex ones.
pub fn envelope(samples: &[f64], rate: f64, band: Option<[f64; 2]>) -> Vec<f64> {
    let count = samples.len();
    let mut planner = RealFftPlanner::new();
    let (forward, inverse) = (planner.plan_fft_forward(count), planner.plan_fft_inverse(count));
    let mut spectrum = forward.make_output_vec();
    let transformed = forward.process(&mut samples.to_vec(), &mut spectrum);
    debug_assert!(transformed.is_ok(), "the buffers are as long as the transform");
    if let Some([from, to]) = band {
        let frequency = |bin: usize| bin as f64 * rate / count as f64;
        for (bin, amplitude) in spectrum.iter_mut().enumerate() {
            if !(from..=to).contains(&frequency(bin)) {
                *amplitude = Complex::ZERO;
            }
        }
    }
    let inverse_transform = |mut spectrum: Vec<Complex<f64>>| {
        let mut signal = inverse.make_output_vec();
        // The transform ignores an imaginary part at the ends of the spectrum and reports it as an error.
        let transformed = inverse.process(&mut spectrum, &mut signal);
        debug_assert!(transformed.is_ok(), "the ends of the spectrum are real");
        signal.iter_mut().for_each(|sample| *sample /= count as f64);
        signal
    };
    let last = spectrum.len() - 1;
    let is_unpaired = |bin: usize| bin == 0 || (bin == last && count.is_multiple_of(2));
    let shifted = spectrum.iter().enumerate().map(|(bin, amplitude)| match is_unpaired(bin) {
        true => Complex::ZERO,
        false => Complex::new(amplitude.im, -amplitude.re),
    });
    let imaginary = inverse_transform(shifted.collect());
    let real = if band.is_some() { inverse_transform(spectrum) } else { samples.to_vec() };
    real.iter().zip(&imaginary).map(|(real, imaginary)| real.hypot(*imaginary)).collect()
}
