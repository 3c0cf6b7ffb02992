//! A large Fourier transform in parts, by the four-step method (Bailey 1990).
//!
//! The elements are a matrix. Its columns are transformed, multiplied by roots of unity, and then its rows are
//! transformed. A part is a few columns or rows, so it fits into a processor's cache, and any worker can run it. The
//! transforms of columns and rows are small, so planning them takes no time, while planning one of 16 million elements
//! takes as long as the transform itself.

use std::{f64::consts::TAU, iter, ops::Range, sync::Arc};

use realfft::num_complex::Complex;
use rustfft::{Fft, FftDirection, FftPlanner};

use super::{SpectrumError, parts::Parts};

/// Columns or rows of one part. A row of so many elements is a few cache lines.
const BLOCK: usize = 16;

/// A transform of `rows * columns` elements.
#[derive(Clone)]
pub(super) struct FourStep {
    rows: usize,
    columns: usize,
    along_columns: Arc<dyn Fft<f64>>,
    along_rows: Arc<dyn Fft<f64>>,
}

/// The result: element `row + rows * column` is in that row and column.
pub(super) struct Grid {
    rows: usize,
    columns: usize,
    /// Each has [`BLOCK`] rows, one after the other; the last one may have fewer.
    blocks: Vec<Vec<Complex<f64>>>,
}

impl Grid {
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    pub(super) fn row(&self, row: usize) -> &[Complex<f64>] {
        let start = row % BLOCK * self.columns;
        &self.blocks[row / BLOCK][start..start + self.columns]
    }
}

/// The number of parts that `count` columns or rows are.
pub(super) fn blocks(count: usize) -> usize {
    count.div_ceil(BLOCK)
}

/// The columns or rows of a part.
pub(super) fn block(index: usize, count: usize) -> Range<usize> {
    index * BLOCK..count.min((index + 1) * BLOCK)
}

/// The largest divisor of a number of elements that is not above its square root: the rows of their matrix.
pub(super) fn rows_of(elements: usize) -> usize {
    (1..=elements.isqrt()).rev().find(|rows| elements.is_multiple_of(*rows)).unwrap_or(1)
}

impl FourStep {
    pub(super) fn new(rows: usize, columns: usize, direction: FftDirection) -> Self {
        let mut planner = FftPlanner::new();
        let (along_columns, along_rows) =
            (planner.plan_fft(rows, direction), planner.plan_fft(columns, direction));
        Self { rows, columns, along_columns, along_rows }
    }

    /// Transforms the elements. `load` writes the columns of a part, one after the other: element
    /// `row * columns + column` is in that row and column. Does not normalize.
    pub(super) async fn run(
        &self,
        parts: &mut Parts<'_>,
        progress: Range<f64>,
        load: impl Fn(Range<usize>, &mut [Complex<f64>]) + Send + Sync + 'static,
    ) -> Result<Grid, SpectrumError> {
        let Self { rows, columns, .. } = *self;
        let half = (progress.start + progress.end) / 2.0;
        let transform = self.clone();
        let columns_part = move |index| {
            let range = block(index, columns);
            let mut part = vec![Complex::ZERO; range.len() * rows];
            load(range.clone(), &mut part);
            transform.along_columns.process(&mut part);
            let turn = match transform.along_columns.fft_direction() {
                FftDirection::Forward => -TAU,
                FftDirection::Inverse => TAU,
            } / (rows * columns) as f64;
            for (column, values) in range.zip(part.chunks_exact_mut(rows)) {
                let roots = rotations(0.0, turn * column as f64, rows);
                values.iter_mut().zip(roots).for_each(|(value, root)| *value *= root);
            }
            part
        };
        let transformed = parts.map(progress.start..half, blocks(columns), columns_part).await?;
        let transform = self.clone();
        let rows_part = move |index| {
            let range = block(index, rows);
            let mut part = vec![Complex::ZERO; range.len() * columns];
            let values = transformed.iter().flat_map(|block| block.chunks_exact(rows));
            for (column, values) in values.enumerate() {
                for (row, value) in values[range.clone()].iter().enumerate() {
                    part[row * columns + column] = *value;
                }
            }
            transform.along_rows.process(&mut part);
            part
        };
        let blocks = parts.map(half..progress.end, blocks(rows), rows_part).await?;
        Ok(Grid { rows, columns, blocks })
    }
}

/// The unit vectors at the angles `start`, `start + step`, and so on. Takes a sine for one in sixty-four of them, and is
/// as precise as with one for each.
pub(super) fn rotations(start: f64, step: f64, count: usize) -> impl Iterator<Item = Complex<f64>> {
    const TABLE: usize = 64;
    let unit = |angle: f64| Complex::from_polar(1.0, angle);
    let table: [_; TABLE] = std::array::from_fn(|index| unit(step * index as f64));
    let turns = (0..count).step_by(TABLE).map(move |index| unit(start + step * index as f64));
    turns.flat_map(move |turn| iter::zip(table, iter::repeat(turn)).map(|(one, turn)| one * turn)).take(count)
}
