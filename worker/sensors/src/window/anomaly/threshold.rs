//! When a signal is extraordinary: measured against its own records.

use std::collections::VecDeque;

use super::{Blocks, COUNT, DAY, Scores, Signal};

/// Blocks that a signal must have been watched for.
const WARM_UP: usize = 3;

/// By how much a record must be broken with four weeks of history.
const MARGIN: f64 = 0.05;

/// With a shorter history, by this power of its share of four weeks more.
const GROWTH: f64 = -0.75;

/// A share of four weeks below which the margin grows no further: half a day.
const LEAST_SHARE: f64 = 0.02;

/// An alarm enters the history as at most so many times the threshold.
const CLIP: f64 = 1.25;

/// How much each alarm of the last week raises the threshold for another.
const RAISE: f64 = 0.2;

/// How long an alarm counts, in seconds.
const WEEK: f64 = 7.0 * DAY;

/// The highest a signal reached in each block of the last four weeks. Only blocks that no later
/// one surpassed are kept: they are all that can ever be the highest again.
#[derive(Debug, Default)]
struct Records {
    peaks: VecDeque<(usize, f64)>,
    blocks: usize,
}

impl Records {
    fn add(&mut self, peak: f64, most: usize) {
        while self.peaks.back().is_some_and(|(_, earlier)| *earlier <= peak) {
            self.peaks.pop_back();
        }
        self.peaks.push_back((self.blocks, peak));
        self.blocks += 1;
        while self.peaks.front().is_some_and(|(block, _)| block + most < self.blocks) {
            self.peaks.pop_front();
        }
    }

    fn highest(&self) -> f64 {
        self.peaks.front().map_or(0.0, |(_, peak)| *peak)
    }
}

pub(super) struct Threshold {
    blocks: Blocks,
    records: [Records; COUNT],
    /// The highest of each signal in the block at hand, clipped.
    peaks: Scores,
    limits: Scores,
    /// When the alarms of the last week began.
    recent: VecDeque<f64>,
    last_alarm: Option<usize>,
}

impl Threshold {
    pub(super) fn new(blocks: Blocks) -> Self {
        Self {
            blocks,
            records: Default::default(),
            peaks: [0.0; COUNT],
            limits: [f64::INFINITY; COUNT],
            recent: VecDeque::new(),
            last_alarm: None,
        }
    }

    pub(super) fn close_block(&mut self) {
        for (at, records) in self.records.iter_mut().enumerate() {
            records.add(self.peaks[at], self.blocks.month);
            if records.blocks >= WARM_UP {
                let known = records.blocks.min(self.blocks.month);
                let share = (known as f64 / self.blocks.month as f64).max(LEAST_SHARE);
                let margin = MARGIN * share.powf(GROWTH);
                self.limits[at] = (records.highest() * (1.0 + margin)).max(Signal::ALL[at].floor());
            }
        }
        self.peaks = [0.0; COUNT];
    }

    /// The signal that is furthest beyond its threshold, and how many times that.
    pub(super) fn judge(&mut self, place: usize, second: f64, scores: &Scores) -> Option<(Signal, f64)> {
        while self.recent.front().is_some_and(|alarm| second - alarm > WEEK) {
            self.recent.pop_front();
        }
        let goes_on = self.last_alarm.is_some_and(|last| place - last <= self.blocks.length);
        let raised = if goes_on { 1.0 } else { 1.0 + RAISE * self.recent.len() as f64 };
        let mut furthest: Option<(Signal, f64)> = None;
        for (at, score) in scores.iter().enumerate() {
            let limit = self.limits[at];
            if *score > raised * limit {
                let ratio = score / limit;
                if furthest.is_none_or(|(_, other)| ratio > other) {
                    furthest = Some((Signal::ALL[at], ratio));
                }
            }
            self.peaks[at] = self.peaks[at].max(score.min(CLIP * limit));
        }
        if furthest.is_some() {
            if !goes_on {
                self.recent.push_back(second);
            }
            self.last_alarm = Some(place);
        }
        furthest
    }
}
