//! Tells a process that is silent from a broker that delivers nothing.

/// When the broker delivered something. Silence is judged by that: what a frozen broker holds back is not missing.
/// Times are milliseconds since 1970.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hearing {
    /// Nothing that was sent before this could be heard.
    from: i64,
    /// When the broker last answered or delivered; [`None`] for a console that looks once.
    answered: Option<i64>,
}

impl Hearing {
    /// A connection was made, or an alarm ended.
    pub(super) fn begin(&mut self, now: i64) {
        (self.from, self.answered) = (now, Some(now));
    }

    /// The broker answered or delivered something.
    pub(super) fn answer(&mut self, now: i64) {
        self.answered = self.answered.max(Some(now));
    }

    /// How long a process that was heard at `heard` has sent nothing although it would have been heard, milliseconds.
    pub(super) fn silence(&self, heard: i64, now: i64) -> i64 {
        let until = self.answered.map_or(now, |answered| answered.min(now));
        until - heard.max(self.from)
    }

    /// How long the broker has neither answered nor delivered anything, milliseconds.
    pub(super) fn broker_silence(&self, now: i64) -> i64 {
        self.answered.map_or(0, |answered| now - answered)
    }
}
