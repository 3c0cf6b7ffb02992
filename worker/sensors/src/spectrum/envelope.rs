//! The envelope of a signal: the magnitude of its analytic signal, as from `scipy.signal.hilbert`.

use std::{f64::consts::TAU, ops::Range, sync::Arc};

use realfft::RealFftPlanner;
use realfft::num_complex::Complex;
use rustfft::FftDirection;

use super::{
    SpectrumError,
    four_step::{FourStep, Grid, block, blocks, rotations, rows_of},
    parts::Parts,
    signal::Signal,
};

/// Signals with at most this many samples are transformed as a whole.
pub const MAX_EXACT_SAMPLES: usize = 1 << 16;

/// The number of samples that are transformed: above [`MAX_EXACT_SAMPLES`] the largest even number without a prime
/// factor above 11, which omits less than 1 % of the samples. The transform of a prime number of samples takes ten times
/// as long.
pub fn transform_length(count: usize) -> usize {
    match count {
        0..=MAX_EXACT_SAMPLES => count,
        _ => (MAX_EXACT_SAMPLES..=count).rev().find(|count| is_smooth(*count)).unwrap_or(count),
    }
}

/// Whether the number is even and has no prime factor above 11.
fn is_smooth(count: usize) -> bool {
    let rest = [2, 3, 5, 7, 11].into_iter().fold(count, |mut rest, prime| {
        while rest.is_multiple_of(prime) {
            rest /= prime;
        }
        rest
    });
    rest == 1 && count.is_multiple_of(2)
}

/// The envelope of the first `length` samples: see [`envelope`]. Long signals are transformed in parts.
pub(super) async fn envelope_in_parts(
    samples: &Arc<Signal>,
    length: usize,
    rate: f64,
    band: Option<[f64; 2]>,
    parts: &mut Parts<'_>,
    progress: Range<f64>,
) -> Result<Signal, SpectrumError> {
    if length <= MAX_EXACT_SAMPLES || !is_smooth(length) {
        return Ok(envelope(&samples.first_chunk()[..length], rate, band).into());
    }
    let at = |part: f64| progress.start + (progress.end - progress.start) * part;
    let pairs = length / 2;
    let (rows, columns) = (rows_of(pairs), pairs / rows_of(pairs));
    let pair = |samples: &[f64], index: usize| Complex::new(samples[2 * index], samples[2 * index + 1]);
    let loaded = Arc::clone(samples);
    let load = move |range: Range<usize>, part: &mut [Complex<f64>]| {
        for row in 0..rows {
            for (index, column) in range.clone().enumerate() {
                part[index * rows + row] = pair(loaded.first_chunk(), row * columns + column);
            }
        }
    };
    let forward = FourStep::new(rows, columns, FftDirection::Forward);
    let pairs = Arc::new(forward.run(parts, at(0.0)..at(0.35), load).await?);
    let inverse = FourStep::new(columns, rows, FftDirection::Inverse);
    let is_kept = move |bin: usize| {
        band.is_none_or(|[from, to]| (from..=to).contains(&(bin as f64 * rate / length as f64)))
    };
    let shifted = move |bin: usize, amplitude: Complex<f64>| {
        let is_unpaired = bin == 0 || bin == length / 2;
        if is_unpaired || !is_kept(bin) { Complex::ZERO } else { Complex::new(amplitude.im, -amplitude.re) }
    };
    let imaginary = inverse.run(parts, at(0.35)..at(0.6), filter(Arc::clone(&pairs), shifted)).await?;
    let mut real = None;
    if band.is_some() {
        let kept = move |bin, amplitude| if is_kept(bin) { amplitude } else { Complex::ZERO };
        real = Some(inverse.run(parts, at(0.6)..at(0.9), filter(pairs, kept)).await?);
    }
    let samples = Arc::clone(samples);
    let part = move |index| {
        let start = 2 * columns * block(index, rows).start;
        let imaginary = samples_of(&imaginary, index);
        let real = real.as_ref().map(|real| samples_of(real, index));
        let real = real.as_deref().unwrap_or(&samples.first_chunk()[start..start + imaginary.len()]);
        real.iter().zip(&imaginary).map(|(real, imaginary)| real.hypot(*imaginary)).collect()
    };
    Ok(Signal::new(parts.map(at(0.9)..at(1.0), blocks(rows), part).await?))
}

/// Loads the spectrum of a real signal after `change`, for the inverse transform. `change` receives a bin and its
/// amplitude.
///
/// The samples were transformed as pairs, the even ones as real parts and the odd ones as imaginary parts. The spectrum
/// of the signal follows from a bin of the pairs and its mirrored one (Press et al., Numerical Recipes, section 12.3).
fn filter(
    pairs: Arc<Grid>,
    change: impl Fn(usize, Complex<f64>) -> Complex<f64> + Send + Sync + 'static,
) -> impl Fn(Range<usize>, &mut [Complex<f64>]) + Send + Sync + 'static {
    move |range, part| {
        let (rows, columns) = (pairs.rows(), pairs.columns());
        let half = rows * columns;
        let turn = -TAU / (2 * half) as f64;
        for (row, values) in range.zip(part.chunks_exact_mut(columns)) {
            let (bins, mirrored) = (pairs.row(row), pairs.row((rows - row) % rows));
            let roots = rotations(turn * row as f64, turn * rows as f64, columns);
            for ((column, value), root) in values.iter_mut().enumerate().zip(roots) {
                let mirror = if row == 0 { (columns - column) % columns } else { columns - 1 - column };
                let (one, other) = (bins[column], mirrored[mirror].conj());
                let (even, odd) = ((one + other) * 0.5, (one - other) * Complex::new(0.0, -0.5) * root);
                let bin = row + rows * column;
                let (one, other) = (change(bin, even + odd), change(half - bin, (even - odd).conj()).conj());
                *value = (one + other) * 0.5 + (one - other) * Complex::new(0.0, 0.5) * root.conj();
            }
        }
    }
}

/// The samples in a block of columns of an inverse transform of pairs.
fn samples_of(grid: &Grid, index: usize) -> Vec<f64> {
    let range = block(index, grid.columns());
    let mut samples = vec![0.0; range.len() * 2 * grid.rows()];
    let scale = 1.0 / (grid.rows() * grid.columns()) as f64;
    for row in 0..grid.rows() {
        for (column, pair) in grid.row(row)[range.clone()].iter().enumerate() {
            let at = 2 * (column * grid.rows() + row);
            (samples[at], samples[at + 1]) = (pair.re * scale, pair.im * scale);
        }
    }
    samples
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
