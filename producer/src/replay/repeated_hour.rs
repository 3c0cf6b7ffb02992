//! Tells the two passes of a repeated hour apart by the order of the rows.
//!
//! When the clock is set back, an hour of local time occurs twice. The rows of that hour are held back until the series
//! leaves it. If the time goes back exactly once between them, the rows before that are of the first pass and the
//! others of the second one, or the other way round in a recording with the newest row first. Otherwise nothing tells
//! the pass, and the rows are refused.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use garenne_protocol::sensor::Timestamp;

use super::row::Row;

/// The rows of a device, or of a metric of a device if each row has one metric.
type Series = (Arc<str>, Option<Arc<str>>);

/// Most rows that are held back.
const MAX_HELD: usize = 200_000;
/// A row this long after the repeated hour ends the wait for series that have ended in it.
const MAX_WAIT_MICROS: i64 = 6 * 3_600_000_000;

/// Holds the rows of a repeated hour back.
pub(super) struct RepeatedHours {
    /// Whether each row has one metric.
    by_metric: bool,
    /// The last time of each series before the rows that are held.
    last: HashMap<Series, Timestamp>,
    held: Vec<(u64, Row)>,
    /// The number of held rows whose pass is unknown, of each series that has not left the hour.
    undecided: HashMap<Series, usize>,
    ready: VecDeque<(u64, Row)>,
}

impl RepeatedHours {
    /// `by_metric`: whether each row has one metric.
    pub(super) fn new(by_metric: bool) -> Self {
        Self {
            by_metric,
            last: HashMap::new(),
            held: Vec::new(),
            undecided: HashMap::new(),
            ready: VecDeque::new(),
        }
    }

    /// Takes the next row.
    pub(super) fn push(&mut self, line: u64, row: Row) {
        let series = self.series(&row);
        match (&series, row.repeated.is_some()) {
            (None, _) => {}
            (Some(series), true) => *self.undecided.entry(series.clone()).or_default() += 1,
            (Some(series), false) => {
                self.undecided.remove(series);
            }
        }
        if self.held.is_empty() && row.repeated.is_none() {
            self.release(line, row);
            return;
        }
        self.held.push((line, row));
        if self.undecided.is_empty() || self.held.len() >= MAX_HELD || self.is_long_past() {
            self.finish();
        }
    }

    /// The next row whose time is known, or that is refused.
    pub(super) fn pop(&mut self) -> Option<(u64, Row)> {
        self.ready.pop_front()
    }

    /// Decides all rows that are held.
    pub(super) fn finish(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.undecided.clear();
        let mut passes: HashMap<Series, Passes> = HashMap::new();
        for (_, row) in &held {
            let Some(series) = self.series(row) else { continue };
            let before = self.last.get(&series).copied();
            let passes = passes.entry(series).or_insert_with(|| Passes { before, ..Passes::default() });
            match row.repeated {
                Some(_) => passes.times.extend(row.time()),
                None if passes.times.is_empty() => passes.before = row.time(),
                None => passes.after = passes.after.or(row.time()),
            }
        }
        let mut decided: HashMap<Series, (Option<Split>, usize)> =
            passes.into_iter().map(|(series, passes)| (series, (passes.split(), 0))).collect();
        for (line, mut row) in held {
            if let Some(repeated) = row.repeated.take()
                && let Some((split, position)) = self.series(&row).and_then(|series| decided.get_mut(&series))
            {
                match split {
                    Some(split) if split.is_second(*position) => row.set_time(repeated.second),
                    Some(_) => {}
                    None => {
                        let fault = format!(
                            "{} occurs twice, and the order of the rows does not tell which is meant",
                            repeated.text
                        );
                        row = Row { faults: vec![fault], ..Row::default() };
                    }
                }
                *position += 1;
            }
            self.release(line, row);
        }
    }

    fn release(&mut self, line: u64, row: Row) {
        if let (Some(series), Some(time)) = (self.series(&row), row.time()) {
            self.last.insert(series, time);
        }
        self.ready.push_back((line, row));
    }

    fn series(&self, row: &Row) -> Option<Series> {
        let reading = row.readings.first()?;
        // Not the device of a column: its value may be missing in a row.
        let device = row.device.as_ref().unwrap_or(&reading.device);
        Some((Arc::clone(device), self.by_metric.then(|| Arc::clone(&reading.metric))))
    }

    /// Whether the last row is far from the first one that is held.
    fn is_long_past(&self) -> bool {
        let time = |row: Option<&(u64, Row)>| row.and_then(|(_, row)| row.time());
        let (Some(first), Some(last)) = (time(self.held.first()), time(self.held.last())) else {
            return false;
        };
        (last.as_micros() - first.as_micros()).abs() > MAX_WAIT_MICROS
    }
}

/// The rows of one series in a repeated hour, with their times in the first pass.
#[derive(Default)]
struct Passes {
    /// The time of the row before them.
    before: Option<Timestamp>,
    times: Vec<Timestamp>,
    /// The time of the row after them.
    after: Option<Timestamp>,
}

impl Passes {
    /// Where the second pass begins, or where the first one does if the newest row is first. `None` if that is unknown.
    fn split(&self) -> Option<Split> {
        let (first, last) = (self.times.first()?, self.times.last()?);
        let steps = || self.times.windows(2).map(|pair| pair[1].cmp(&pair[0]));
        let (ups, downs) =
            (steps().filter(|step| step.is_gt()).count(), steps().filter(|step| step.is_lt()).count());
        let ascending = match (self.before, self.after) {
            (Some(before), _) => before < *first,
            (None, Some(after)) => after > *last,
            (None, None) if ups == downs => return None,
            (None, None) => ups > downs,
        };
        let goes_on = |step: &std::cmp::Ordering| if ascending { step.is_gt() } else { step.is_lt() };
        let mut breaks = steps().enumerate().filter(|(_, step)| !goes_on(step)).map(|(at, _)| at + 1);
        let at = breaks.next()?;
        breaks.next().is_none().then_some(Split { at, ascending })
    }
}

/// The position of the first row after the clock was set back, or before that if the newest row is first.
#[derive(Clone, Copy)]
struct Split {
    at: usize,
    ascending: bool,
}

impl Split {
    fn is_second(self, position: usize) -> bool {
        (position >= self.at) == self.ascending
    }
}

#[cfg(test)]
mod tests {
    use crate::replay::{layout::Layout, mapping::Mapping};

    use super::*;

    /// The times of all rows of a recording in Berlin, in UTC.
    fn times(header: &str, rows: &[&str]) -> Vec<String> {
        let mapping = Mapping { zone: Some("Europe/Berlin".to_owned()), ..Mapping::default() };
        let sample: Vec<String> =
            std::iter::once(header).chain(rows.iter().copied()).map(str::to_owned).collect();
        let layout = Layout::detect(sample, &mapping, "file").unwrap();
        let mut hours = RepeatedHours::new(layout.has_one_metric_per_row());
        let mut times = Vec::new();
        for (line, row) in (2..).zip(rows) {
            hours.push(line, layout.row(row));
        }
        hours.finish();
        while let Some((line, row)) = hours.pop() {
            assert_eq!(line, times.len() as u64 + 2, "the order of the rows is kept");
            times.push(match row.time() {
                Some(time) => time.to_string()[11..16].to_owned(),
                None => row.faults.join("; "),
            });
        }
        times
    }

    const REFUSED: &str = " occurs twice, and the order of the rows does not tell which is meant";

    fn refused(time: &str) -> String {
        format!("\"2026-10-25 {time}\" in Europe/Berlin{REFUSED}")
    }

    fn of_day(clocks: &[&str]) -> Vec<String> {
        let rows: Vec<String> = clocks.iter().map(|clock| format!("2026-10-25 {clock},1")).collect();
        times("time,value", &rows.iter().map(String::as_str).collect::<Vec<_>>())
    }

    #[test]
    fn the_second_pass_begins_where_the_time_goes_back() {
        assert_eq!(
            of_day(&["01:30", "02:00", "02:30", "02:00", "02:30", "03:00"]),
            ["23:30", "00:00", "00:30", "01:00", "01:30", "02:00"]
        );
        assert_eq!(of_day(&["01:00", "02:00", "02:00", "03:00"]), ["23:00", "00:00", "01:00", "02:00"]);
        assert_eq!(of_day(&["02:30", "02:00", "02:30"]).len(), 3);
    }

    #[test]
    fn a_recording_with_the_newest_row_first_is_read() {
        assert_eq!(
            of_day(&["03:00", "02:30", "02:00", "02:30", "02:00", "01:30"]),
            ["02:00", "01:30", "01:00", "00:30", "00:00", "23:30"]
        );
    }

    #[test]
    fn rows_of_one_pass_are_refused_by_name() {
        assert_eq!(
            of_day(&["01:00", "02:00", "02:30", "03:00"]),
            ["23:00", refused("02:00").as_str(), &refused("02:30"), "02:00"]
        );
        assert_eq!(of_day(&["02:30"]), [refused("02:30")]);
        let twice = of_day(&["01:00", "02:30", "02:00", "02:30", "02:00", "03:00"]);
        assert_eq!(
            (&twice[0], &twice[1], &twice[5]),
            (&"23:00".to_owned(), &refused("02:30"), &"02:00".to_owned())
        );
    }

    #[test]
    fn each_device_and_each_metric_has_its_own_passes() {
        let rows = ["01:30,a", "01:30,b", "02:00,a", "02:00,b", "02:00,a", "02:00,b", "03:00,a", "03:00,b"];
        let rows: Vec<String> = rows.iter().map(|row| format!("2026-10-25 {row},1")).collect();
        assert_eq!(
            times("time,device,t", &rows.iter().map(String::as_str).collect::<Vec<_>>()),
            ["23:30", "23:30", "00:00", "00:00", "01:00", "01:00", "02:00", "02:00"]
        );
        let rows = ["01:30,t", "01:30,p", "02:00,t", "02:00,p", "02:00,t", "02:00,p", "03:00,t", "03:00,p"];
        let rows: Vec<String> = rows.iter().map(|row| format!("2026-10-25 {row},1")).collect();
        assert_eq!(
            times("time,metric,value", &rows.iter().map(String::as_str).collect::<Vec<_>>()),
            ["23:30", "23:30", "00:00", "00:00", "01:00", "01:00", "02:00", "02:00"]
        );
    }

    #[test]
    fn a_series_that_ends_in_the_hour_does_not_hold_the_others_back() {
        let mapping = Mapping { zone: Some("Europe/Berlin".to_owned()), ..Mapping::default() };
        let sample = ["time,device,t", "2026-10-25 02:30,a,1"].map(str::to_owned);
        let layout = Layout::detect(sample, &mapping, "file").unwrap();
        let mut hours = RepeatedHours::new(false);
        hours.push(2, layout.row("2026-10-25 02:30,a,1"));
        hours.push(3, layout.row("2026-10-25 03:30,b,1"));
        assert!(hours.pop().is_none());
        hours.push(4, layout.row("2026-10-25 23:30,b,1"));
        let lines: Vec<u64> = std::iter::from_fn(|| hours.pop()).map(|(line, _)| line).collect();
        assert_eq!(lines, [2, 3, 4]);
    }
}
