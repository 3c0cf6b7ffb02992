//! The samples of the last hour.

use std::{collections::VecDeque, time::Duration};

use super::sample::Sample;
use crate::scale::Load;

/// Time between two samples.
pub const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);

/// Dead letters that were added within this time are a problem, milliseconds.
const LETTERS_WINDOW: i64 = 5 * 60 * 1000;
/// A rate over less time than this says nothing, milliseconds.
const MIN_RATE_WINDOW: i64 = 10_000;

/// Samples of the last hour, oldest first.
#[derive(Debug, Default)]
pub struct SampleHistory(VecDeque<Sample>);

impl SampleHistory {
    /// How long a sample is kept, milliseconds.
    pub const SPAN: i64 = 3_600_000;
    const CAPACITY: usize = (Self::SPAN as u64 / (SAMPLE_INTERVAL.as_secs() * 1000)) as usize + 1;

    /// Adds a sample. A full history drops its oldest one.
    pub fn push(&mut self, sample: Sample) {
        if self.0.len() >= Self::CAPACITY {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    /// The newest sample.
    pub fn newest(&self) -> Option<&Sample> {
        self.0.back()
    }

    /// The oldest sample taken at `at` or later.
    pub fn at_or_after(&self, at: i64) -> Option<&Sample> {
        self.0.get(self.0.partition_point(|sample| sample.at < at))
    }

    /// All samples, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Sample> {
        self.0.iter()
    }

    /// How many dead letters were added within the last minutes, and since when that is known. What was replayed or
    /// dropped meanwhile does not hide new ones.
    pub fn new_letters(&self) -> Option<(u64, i64)> {
        let newest = self.newest()?;
        let recent = self.iter().filter(|sample| sample.at >= newest.at - LETTERS_WINDOW);
        let counts: Vec<_> = recent.map(|sample| (sample.at, sample.dead)).collect();
        let grown = counts.windows(2).map(|pair| pair[1].1.saturating_sub(pair[0].1)).sum();
        Some((grown, counts.first()?.0))
    }

    /// Dead letters that are added per minute, over the same time. Those of a shorter time are not extrapolated.
    pub fn dead_rate(&self) -> Option<f64> {
        let (grown, since) = self.new_letters()?;
        let over = self.newest()?.at - since;
        (over >= MIN_RATE_WINDOW).then(|| grown as f64 * 60_000.0 / over.max(60_000) as f64)
    }

    /// The known loads of a lane since `from`, oldest first, and whether the history reaches back that far without a gap.
    pub fn loads(&self, lane: &str, from: i64) -> (Vec<Load>, bool) {
        let first = self.0.partition_point(|sample| sample.at < from);
        let reaches = first > 0 || self.0.front().is_some_and(|sample| sample.at <= from);
        let samples = || self.0.range(first..).filter_map(|sample| sample.lanes.get(lane));
        let known = samples().filter(|sample| sample.problem.is_none()).map(|sample| sample.load);
        (known.collect(), reaches && samples().all(|sample| sample.problem.is_none()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane_sample::LaneSample;

    fn sample(at: i64, backlog: u64) -> Sample {
        let load = Load { backlog, ..Load::default() };
        let lanes = [("fast".to_owned(), LaneSample { load, ..LaneSample::default() })].into();
        Sample { at, lanes, ..Sample::default() }
    }

    #[test]
    fn the_history_keeps_one_hour() {
        let mut history = SampleHistory::default();
        for n in 0..2_000 {
            history.push(sample(n * 5_000, 0));
        }
        assert_eq!(history.iter().count(), SampleHistory::CAPACITY);
        let (oldest, newest) = (history.iter().next().unwrap().at, history.newest().unwrap().at);
        assert_eq!((newest, newest - oldest), (9_995_000, SampleHistory::SPAN));
        assert_eq!(history.at_or_after(9_990_001).unwrap().at, 9_995_000);
        assert!(history.at_or_after(9_995_001).is_none());
    }

    #[test]
    fn a_window_is_complete_once_samples_reach_back_to_its_start() {
        let mut history = SampleHistory::default();
        (0..10).for_each(|n| history.push(sample(1_000 + n * 5_000, n.unsigned_abs())));
        let backlogs = |from| {
            let (loads, complete) = history.loads("fast", from);
            (loads.iter().map(|load| load.backlog).collect::<Vec<_>>(), complete)
        };
        assert_eq!(backlogs(36_000), (vec![7, 8, 9], true));
        assert!(backlogs(1_000).1);
        assert!(!backlogs(999).1);
        assert_eq!(history.loads("none", 0).0, []);
    }

    #[test]
    fn the_rate_of_dead_letters_is_unknown_at_first_and_does_not_count_those_that_left() {
        let mut history = SampleHistory::default();
        let mut rate = |at, dead| {
            history.push(Sample { dead, ..sample(at, 0) });
            history.dead_rate()
        };
        assert_eq!([rate(0, 100), rate(5_000, 100)], [None, None]);
        assert_eq!(rate(20_000, 104), Some(4.0));
        assert_eq!(rate(30_000, 10), Some(4.0), "94 were dropped");
        assert_eq!(rate(120_000, 14), Some(4.0), "8 in two minutes");
        assert_eq!(rate(500_000, 10), None, "the others are too old");
    }

    #[test]
    fn a_load_that_is_not_known_is_left_out_and_makes_the_window_incomplete() {
        let mut history = SampleHistory::default();
        for n in 0..10 {
            let mut sample = sample(n * 5_000, 7);
            sample.lanes.get_mut("fast").unwrap().problem = (n == 5).then(|| "unheard".to_owned());
            history.push(sample);
        }
        let (loads, complete) = history.loads("fast", 0);
        assert_eq!((loads.len(), complete), (9, false));
        assert!(history.loads("fast", 30_000).1);
    }
}
