//! The envelope of a signal: the magnitude of its analytic signal, as `scipy.signal.hilbert`'s.

use realfft::RealFftPlanner;
use realfft::num_complex::Complex;

/// Up to so many samples the envelope is that of exactly these.
pub const EXACT_UP_TO: usize = 1 << 16;

/// How many of so many samples are transformed: above [`EXACT_UP_TO`] the most whose prime factors
/// are 11 or less, which leaves out less than one in a hundred. A million samples more or less one
/// take ten times as long where their count is prime.
pub fn transformed(count: usize) -> usize {
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
        0..=EXACT_UP_TO => count,
        _ => (EXACT_UP_TO..=count).rev().find(is_smooth).unwrap_or(count),
    }
}

/// The envelope of a band of the samples, in Hz with both ends; of all of them without one.
///
/// The Hilbert transform turns every frequency by a quarter, and 0 Hz and half the rate to nothing;
/// done on the one-sided spectrum that is two real transforms instead of two complex ones.
pub fn envelope(samples: &[f64], rate: f64, band: Option<[f64; 2]>) -> Vec<f64> {
    let count = samples.len();
    let mut planner = RealFftPlanner::new();
    let (forward, inverse) = (planner.plan_fft_forward(count), planner.plan_fft_inverse(count));
    let mut spectrum = forward.make_output_vec();
    let transformed = forward.process(&mut samples.to_vec(), &mut spectrum);
    debug_assert!(transformed.is_ok(), "the buffers are as long as the transform");
    if let Some([from, to]) = band {
        let frequency = |place: usize| place as f64 * rate / count as f64;
        for (place, bin) in spectrum.iter_mut().enumerate() {
            if !(from..=to).contains(&frequency(place)) {
                *bin = Complex::ZERO;
            }
        }
    }
    let back = |mut spectrum: Vec<Complex<f64>>| {
        let mut signal = inverse.make_output_vec();
        // Rounding may leave an imaginary part where a real signal has none; it counts for nothing.
        let transformed = inverse.process(&mut spectrum, &mut signal);
        debug_assert!(transformed.is_ok(), "the ends of the spectrum are real");
        signal.iter_mut().for_each(|sample| *sample /= count as f64);
        signal
    };
    let last = spectrum.len() - 1;
    let is_end = |place: usize| place == 0 || (place == last && count.is_multiple_of(2));
    let turned = spectrum.iter().enumerate().map(|(place, bin)| match is_end(place) {
        true => Complex::ZERO,
        false => Complex::new(bin.im, -bin.re),
    });
    let imaginary = back(turned.collect());
    let real = if band.is_some() { back(spectrum) } else { samples.to_vec() };
    real.iter().zip(&imaginary).map(|(real, imaginary)| real.hypot(*imaginary)).collect()
}
