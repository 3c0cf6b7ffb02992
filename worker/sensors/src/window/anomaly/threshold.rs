//! Thresholds of the signals, from their highest values in earlier blocks.

use std::collections::VecDeque;

use super::blocks::DAY;
use super::signals::{COUNT, Scores, Signal};

/// Blocks of history before a signal has a threshold.
const WARM_UP_BLOCKS: usize = 3;

/// The relative margin above the highest peak with four weeks of history.
const MARGIN: f64 = 0.05;

/// With less history the margin is multiplied by this power of its fraction of four weeks.
const MARGIN_EXPONENT: f64 = -0.75;

/// Lower bound for that fraction: half a day.
const MIN_FRACTION: f64 = 0.02;

/// Peaks enter the history clipped to this multiple of the threshold.
const CLIP: f64 = 1.25;

/// The relative increase of the threshold by each alarm of the last week.
const RAISE: f64 = 0.2;

/// The time for which an alarm raises the threshold, in seconds.
const WEEK: f64 = 7.0 * DAY;

/// The sliding maximum of a signal over the blocks of the last four weeks. A monotonic queue: it keeps only the peaks
/// that no later one exceeds.
#[derive(Debug, Default)]
struct PeakHistory {
    /// The number of the block, and its peak; peaks are descending.
    peaks: VecDeque<(usize, f64)>,
    /// Blocks added so far.
    blocks: usize,
}

impl PeakHistory {
    /// Adds the peak of a block, and forgets blocks older than `window` blocks.
    fn add(&mut self, peak: f64, window: usize) {
        while self.peaks.back().is_some_and(|(_, earlier)| *earlier <= peak) {
            self.peaks.pop_back();
        }
        self.peaks.push_back((self.blocks, peak));
        self.blocks += 1;
        while self.peaks.front().is_some_and(|(block, _)| block + window < self.blocks) {
            self.peaks.pop_front();
        }
    }

    fn highest(&self) -> f64 {
        self.peaks.front().map_or(0.0, |(_, peak)| *peak)
    }
}

/// The thresholds of all signals.
pub(super) struct Threshold {
    blocks_per_month: usize,
    history: [PeakHistory; COUNT],
    /// The highest value of each signal in the current block, clipped.
    peaks: Scores,
    limits: Scores,
    /// The times at which the alarms of the last week began, in seconds.
    recent_alarms: VecDeque<f64>,
}

impl Threshold {
    pub(super) fn new(blocks_per_month: usize) -> Self {
        Self {
            blocks_per_month,
            history: Default::default(),
            peaks: [0.0; COUNT],
            limits: [f64::INFINITY; COUNT],
            recent_alarms: VecDeque::new(),
        }
    }

    /// Adds the peaks of the current block to the history and updates the thresholds.
    pub(super) fn close_block(&mut self) {
        for (signal, history) in self.history.iter_mut().enumerate() {
            history.add(self.peaks[signal], self.blocks_per_month);
            if history.blocks >= WARM_UP_BLOCKS {
                let known = history.blocks.min(self.blocks_per_month);
                let fraction = (known as f64 / self.blocks_per_month as f64).max(MIN_FRACTION);
                let margin = MARGIN * fraction.powf(MARGIN_EXPONENT);
                let limit = history.highest() * (1.0 + margin);
                self.limits[signal] = limit.max(Signal::ALL[signal].floor());
            }
        }
        self.peaks = [0.0; COUNT];
    }

    /// Returns the signal that exceeds its threshold most, and the ratio of both. `continues` states whether an alarm
    /// would continue the last one. Must be called for each value in order.
    pub(super) fn evaluate(
        &mut self,
        second: f64,
        scores: &Scores,
        continues: bool,
    ) -> Option<(Signal, f64)> {
        while self.recent_alarms.front().is_some_and(|alarm| second - alarm > WEEK) {
            self.recent_alarms.pop_front();
        }
        let factor = if continues { 1.0 } else { 1.0 + RAISE * self.recent_alarms.len() as f64 };
        let mut highest: Option<(Signal, f64)> = None;
        for (signal, score) in scores.iter().enumerate() {
            let limit = self.limits[signal];
            if *score > factor * limit {
                let ratio = score / limit;
                if highest.is_none_or(|(_, other)| ratio > other) {
                    highest = Some((Signal::ALL[signal], ratio));
                }
            }
            self.peaks[signal] = self.peaks[signal].max(score.min(CLIP * limit));
        }
        if highest.is_some() && !continues {
            self.recent_alarms.push_back(second);
        }
        highest
    }
}
