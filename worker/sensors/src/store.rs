//! The interfaces through which kinds read stored readings.
//!
//! The kinds depend on these traits only. The sink that stores readings implements them, so that a worker
//! without a database needs none to compile.

use std::time::Duration;

use futures_util::future::BoxFuture;
use garenne_protocol::sensor::Timestamp;
use thiserror::Error;

use garenne::sink::FollowUp;

/// The store could not answer. A later attempt may succeed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{detail}")]
#[non_exhaustive]
pub struct StoreError {
    /// What the store or its client reported.
    pub detail: String,
}

impl StoreError {
    /// An error with this detail.
    pub fn new(detail: impl Into<String>) -> Self {
        Self { detail: detail.into() }
    }
}

/// Stored readings of one device and metric, ordered by time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoredWindow {
    /// The time of each reading.
    pub times: Vec<Timestamp>,
    /// The value of each reading; as many as `times`.
    pub values: Vec<Option<f64>>,
}

/// Reads stored readings back.
pub trait ReadingStore: Send + Sync + 'static {
    /// The readings of a device's metric from `from` (inclusive) to `to` (exclusive).
    ///
    /// # Errors
    /// [`StoreError`] if the store is unavailable or refuses the query.
    fn window<'a>(
        &'a self,
        device: &'a str,
        metric: &'a str,
        from: Timestamp,
        to: Timestamp,
    ) -> BoxFuture<'a, Result<StoredWindow, StoreError>>;
}

/// The result of one check for silence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SilenceCheck {
    /// The device is not silent, or not certainly so: check again after this time.
    CheckAgain(Duration),
    /// The device is silent: start these tasks. The watch ends.
    Silent(Vec<FollowUp>),
    /// The watch ends without an alarm: another watch replaced it, or the rule or the readings are gone.
    Ended,
}

/// Decides whether a device has stopped sending.
pub trait SilenceDetector: Send + Sync + 'static {
    /// Compares the age of the newest stored reading of a device's metric with the rule named `rule`.
    /// `watch_id` is the id of the task that asks. A repeated call for a watch that found silence returns
    /// the same tasks.
    ///
    /// # Errors
    /// [`StoreError`] if the store is unavailable or refuses the query.
    fn check<'a>(
        &'a self,
        watch_id: &'a str,
        device: &'a str,
        metric: &'a str,
        rule: &'a str,
    ) -> BoxFuture<'a, Result<SilenceCheck, StoreError>>;
}
