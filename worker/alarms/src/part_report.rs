//! The report of a repeated part of the sink's background work.

use std::time::Duration;

use garenne::sink::SinkContext;
use garenne_common::backoff::Backoff;
use garenne_database::DatabaseError;

/// Reports the runs of a part to the sink's state and to the log, and says when the next one is due.
pub struct PartReport<'a> {
    context: &'a SinkContext,
    part: &'static str,
    failure: &'static str,
    interval: Duration,
    backoff: Backoff,
}

impl<'a> PartReport<'a> {
    /// `part` is its name in the sink's state, `failure` what the log says after an error, and `interval` the time
    /// between two runs.
    pub fn new(
        context: &'a SinkContext,
        part: &'static str,
        failure: &'static str,
        interval: Duration,
    ) -> Self {
        let backoff = Backoff::limited(Duration::from_millis(100), interval).with_jitter();
        Self { context, part, failure, interval, backoff }
    }

    /// Reports a run. Returns the wait until the next one: the interval, or growing pauses while runs fail.
    pub fn ended(&mut self, run: Result<(), DatabaseError>) -> Duration {
        match run {
            Ok(()) => {
                self.context.succeeded(self.part);
                self.backoff.reset();
                self.interval
            }
            Err(error) => {
                self.context.failed(self.part, &error.to_string());
                let wait = self.backoff.next_wait();
                tracing::warn!(%error, retry_in = ?wait, "{}, will be retried", self.failure);
                wait
            }
        }
    }
}
