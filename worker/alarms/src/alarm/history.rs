//! Stored readings before a point in time, as far as they were loaded.

use std::ops::ControlFlow;

use super::{
    condition::{Micros, Point, Sample},
    rules::Rule,
};

/// Readings of a series that are to be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The time of the earliest reading, or earlier.
    pub low: Micros,
    /// A time after the latest reading.
    pub high: Micros,
    /// Whether the newest readings of the span are wanted, newest first, instead of the oldest, oldest first.
    pub newest_first: bool,
    /// How many readings are wanted.
    pub limit: usize,
}

/// Readings in a row that are loaded to search for an earlier reading.
#[derive(Clone, Copy, Debug)]
pub(super) struct LookBack {
    /// Readings that are loaded first if several are needed.
    pub(super) first: usize,
    /// Readings that are loaded if these do not suffice.
    pub(super) more: usize,
}

/// The readings before a changed one, by the span that was loaded.
#[derive(Debug)]
pub(super) struct History {
    look_back: LookBack,
    loaded: Vec<(Span, Vec<Sample>)>,
}

impl History {
    pub(super) fn new(look_back: LookBack) -> Self {
        Self { look_back, loaded: Vec::new() }
    }

    pub(super) fn add(&mut self, span: Span, samples: Vec<Sample>) {
        self.loaded.push((span, samples));
    }

    /// The newest reading before `at` that the rule can judge. Most are at most `horizon` before `at`. The error is a
    /// span that is needed and not loaded.
    pub(super) fn newest_before(
        &self,
        rule: &Rule,
        at: Micros,
        horizon: Micros,
    ) -> Result<Option<Point>, Span> {
        let mut newest = None;
        self.visit(rule, at, horizon, 1, |point| {
            newest = Some(point);
            ControlFlow::Break(())
        })?;
        Ok(newest)
    }

    /// Visits the readings before `at` that the rule can judge, newest first. Most visits end within `horizon` before
    /// `at`. The error is a span that is needed and not loaded.
    pub(super) fn visit_all(
        &self,
        rule: &Rule,
        at: Micros,
        horizon: Micros,
        visit: impl FnMut(Point) -> ControlFlow<()>,
    ) -> Result<(), Span> {
        self.visit(rule, at, horizon, self.look_back.first, visit)
    }

    fn visit(
        &self,
        rule: &Rule,
        at: Micros,
        horizon: Micros,
        limit: usize,
        mut visit: impl FnMut(Point) -> ControlFlow<()>,
    ) -> Result<(), Span> {
        // Without the lower limit, the search for a reading that does not exist would visit every partition.
        let mut span = Span { low: at.saturating_sub(horizon), high: at, newest_first: true, limit };
        loop {
            let (_, samples) = self.loaded.iter().find(|(loaded, _)| *loaded == span).ok_or(span)?;
            for point in samples.iter().filter_map(|sample| rule.convert(sample)) {
                if visit(point).is_break() {
                    return Ok(());
                }
            }
            match samples.last() {
                Some(oldest) if samples.len() == span.limit => span.high = oldest.at,
                _ if span.low == Micros::MIN => return Ok(()),
                _ => (span.low, span.high) = (Micros::MIN, span.low),
            }
            span.limit = self.look_back.more;
        }
    }
}
