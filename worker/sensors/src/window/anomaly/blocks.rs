//! The division of a series into blocks.

/// Seconds in a day.
pub(super) const DAY: f64 = 86_400.0;

/// Series with more values per day have blocks of 64 values.
const MAX_VALUES_PER_DAILY_BLOCK: f64 = 512.0;

/// The blocks of a series, from the sampling interval of its first values.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockLayout {
    /// The median interval between values, in seconds.
    pub(super) interval: f64,
    /// Values in a block.
    pub(super) length: usize,
    /// Blocks in four weeks.
    pub(super) blocks_per_month: usize,
}

impl BlockLayout {
    /// None for a series of at most four blocks, or of a single time.
    pub(super) fn of(seconds: &[f64]) -> Option<Self> {
        let mut steps: Vec<f64> = seconds.windows(2).take(32).map(|pair| pair[1] - pair[0]).collect();
        steps.retain(|step| *step > 0.0);
        steps.sort_unstable_by(f64::total_cmp);
        let interval = *steps.get(steps.len() / 2)?;
        let values_per_day = (DAY / interval).round();
        let length =
            if values_per_day > MAX_VALUES_PER_DAILY_BLOCK { 64 } else { (values_per_day as usize).max(24) };
        let blocks_per_month = (28.0 * DAY / (length as f64 * interval)).ceil();
        let is_long_enough = seconds.len() > 4 * length;
        let blocks_per_month = (blocks_per_month as usize).max(28);
        is_long_enough.then_some(Self { interval, length, blocks_per_month })
    }
}
