//! Consecutive readings of a series.

use crate::alarm::{
    condition::{Micros, Sample},
    history::{History, Span},
};

/// Consecutive stored readings, and those before the first that are needed to judge it.
#[derive(Debug)]
pub(super) struct ReadingPage {
    span: Span,
    samples: std::vec::IntoIter<Sample>,
    /// The time of the last reading if the page has as many readings as were wanted: there may be more in the span.
    full_upto: Option<Micros>,
    pub(super) history: History,
    history_spans: Vec<Span>,
}

impl ReadingPage {
    /// A page that is not loaded.
    pub(super) fn new(span: Span, history: History, history_spans: Vec<Span>) -> Self {
        Self { span, samples: Vec::new().into_iter(), full_upto: None, history, history_spans }
    }

    /// The spans that [`load`](Self::load) needs.
    pub(super) fn spans(&self) -> impl Iterator<Item = Span> {
        std::iter::once(self.span).chain(self.history_spans.iter().copied())
    }

    /// Loads the readings of each of the [`spans`](Self::spans).
    pub(super) fn load(&mut self, readings: &mut impl Iterator<Item = Vec<Sample>>) {
        self.replace(self.span, readings.next().unwrap_or_default());
        for span in std::mem::take(&mut self.history_spans) {
            self.history.add(span, readings.next().unwrap_or_default());
        }
    }

    /// Replaces the readings by those of another span.
    pub(super) fn replace(&mut self, span: Span, samples: Vec<Sample>) {
        self.span = span;
        self.full_upto = samples.last().map(|last| last.at).filter(|_| samples.len() == span.limit);
        self.samples = samples.into_iter();
    }

    /// The time of the first reading, or earlier.
    pub(super) fn from(&self) -> Micros {
        self.span.low
    }

    /// The time up to which the page has all readings of the series.
    pub(super) fn to(&self) -> Micros {
        match self.full_upto {
            Some(last) => last,
            None if self.is_last() => Micros::MAX,
            None => self.span.high - 1,
        }
    }

    /// Whether the page has no reading and the series none after it.
    pub(super) fn is_empty_end(&self) -> bool {
        self.samples.as_slice().is_empty() && self.is_last()
    }

    /// The time from which on further readings follow; none if the series has none.
    pub(super) fn following(&self) -> Option<Micros> {
        match self.full_upto {
            Some(last) => Some(last.saturating_add(1)),
            None if self.is_last() => None,
            None => Some(self.span.high),
        }
    }

    /// The span of readings from a time on, as far as the page was to have readings, or to the end if they begin
    /// there.
    pub(super) fn span_from(&self, low: Micros, limit: usize) -> Span {
        let high = if low < self.span.high { self.span.high } else { Micros::MAX };
        Span { low, high, newest_first: false, limit }
    }

    fn is_last(&self) -> bool {
        self.full_upto.is_none() && self.span.high == Micros::MAX
    }
}

impl Iterator for ReadingPage {
    type Item = Sample;

    fn next(&mut self) -> Option<Sample> {
        self.samples.next()
    }
}
