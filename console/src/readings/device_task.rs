//! Computes the readings of one device again, page by page.

use std::{sync::Arc, time::Duration};

use garenne_common::backoff::Backoff;
use garenne_database::{
    Connection, DatabaseError, ErrorKind, PostgresPool, QueryResult, Tables,
    derived::{DerivedValues, Key},
};
use garenne_pool::{Task, TaskContext};
use garenne_readings::Calibration;
use indicatif::ProgressBar;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{
    page::{Page, Pages, places},
    report::Counts,
    selection::{Selection, Series},
};
use crate::progress;

/// Time limit for a page, which usually takes some ten milliseconds.
pub(super) const PAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a page is tried again while the database is away.
const RETRY_LIMIT: Duration = Duration::from_secs(60);

/// The state that the tasks of a recalibration share.
pub(super) struct Shared {
    pub(super) pool: PostgresPool,
    pub(super) tables: Tables,
    pub(super) selection: Selection,
    pub(super) dry_run: bool,
    /// The progress of all devices.
    pub(super) bar: ProgressBar,
    /// Cancelled when the tasks are to end after the page that they compute.
    pub(super) stop: CancellationToken,
    pages: Pages,
    derived: DerivedValues,
}

/// The series of one device.
///
/// They are one task, because the values derived of two of them depend on both.
pub(super) struct DeviceTask {
    pub(super) shared: Arc<Shared>,
    pub(super) series: Vec<Series>,
}

/// Result of a task.
#[derive(Debug)]
pub(super) struct DeviceOutcome {
    /// The series that it read, the last one perhaps in part.
    pub(super) series: Vec<(Series, Counts)>,
    pub(super) end: DeviceEnd,
}

/// How a task ended.
#[derive(Debug)]
pub(super) enum DeviceEnd {
    /// All selected readings are right.
    Done,
    /// It was to end before that.
    Stopped,
    /// The database refused something, or was away for too long.
    Failed(DatabaseError),
}

impl Task for DeviceTask {
    type Output = DeviceOutcome;

    async fn run(self, _: TaskContext) -> DeviceOutcome {
        let mut outcome = DeviceOutcome { series: Vec::new(), end: DeviceEnd::Done };
        for series in self.series {
            let mut counts = Counts::default();
            outcome.end = match self.shared.series_pages(&series, &mut counts).await {
                Ok(true) => DeviceEnd::Done,
                Ok(false) => DeviceEnd::Stopped,
                Err(error) => DeviceEnd::Failed(error),
            };
            outcome.series.push((series, counts));
            if !matches!(outcome.end, DeviceEnd::Done) {
                break;
            }
        }
        outcome
    }
}

impl Shared {
    pub(super) fn new(
        pool: PostgresPool,
        tables: Tables,
        calibration: Calibration,
        selection: Selection,
        dry_run: bool,
        stop: CancellationToken,
    ) -> Self {
        let bar = progress::bar("recalibrating");
        let (pages, derived) = (Pages::new(&tables, calibration), DerivedValues::new(&tables));
        Self { pool, tables, selection, dry_run, bar, stop, pages, derived }
    }

    /// Computes the readings of a series. Returns whether it reached the end; if not, it was stopped.
    async fn series_pages(&self, series: &Series, counts: &mut Counts) -> Result<bool, DatabaseError> {
        let mut after = Some(self.selection.after);
        while let Some(begin) = after {
            if self.stop.is_cancelled() {
                return Ok(false);
            }
            let page = self.page_with_retry(series, begin).await?;
            counts.add(&page.counts);
            self.bar.inc(page.counts.read);
            if self.bar.length().is_some_and(|length| length < self.bar.position()) {
                self.bar.set_length(self.bar.position());
            }
            after = page.last;
        }
        if !self.dry_run {
            let declare = async |client: &mut Connection| self.pages.declare_counter(client, series).await;
            self.pool.within(PAGE_TIMEOUT, declare).await?;
        }
        Ok(true)
    }

    /// A page, again while the database is away.
    async fn page_with_retry(&self, series: &Series, after: OffsetDateTime) -> Result<Page, DatabaseError> {
        let until = Instant::now() + RETRY_LIMIT;
        let mut backoff = Backoff::default();
        loop {
            let error = match self.page(series, after).await {
                Ok(page) => return Ok(page),
                Err(error) => error,
            };
            let wait = backoff.next_wait();
            if error.kind != ErrorKind::Transient
                || self.stop.is_cancelled()
                || Instant::now() + wait >= until
            {
                if self.is_away(&error).await {
                    self.stop.cancel();
                }
                return Err(error);
            }
            tracing::warn!(device = series.device, %error, retry_in = ?wait, "batch of readings failed, retrying");
            tokio::select! {
                () = sleep(wait) => {}
                () = self.stop.cancelled() => {}
            }
        }
    }

    /// Whether the database answers nothing, so that the other devices cannot be computed either.
    async fn is_away(&self, error: &DatabaseError) -> bool {
        if error.kind != ErrorKind::Transient {
            return false;
        }
        self.pool.within(PAGE_TIMEOUT, async |client| client.simple_query("SELECT 1").await).await.is_err()
    }

    async fn page(&self, series: &Series, after: OffsetDateTime) -> Result<Page, DatabaseError> {
        let page = async |client: &mut Connection| self.page_with(client, series, after).await;
        let replaced = || DatabaseError::transient("readings were replaced meanwhile");
        self.pool.within(PAGE_TIMEOUT, page).await?.ok_or_else(replaced)
    }

    /// Computes a page in a transaction. None if its readings have changed since they were read.
    async fn page_with(
        &self,
        client: &mut Connection,
        series: &Series,
        after: OffsetDateTime,
    ) -> QueryResult<Option<Page>> {
        let transaction = client.transaction().await?;
        let mut page = self.pages.load(&transaction, series, after, self.selection.last).await?;
        if page.changed.is_empty() && page.inputs.is_empty() {
            return Ok(Some(page));
        }
        if !self.dry_run && !self.pages.update(&transaction, series, &page.changed).await? {
            return Ok(None);
        }
        let Series { device, metric } = series;
        // Also of readings that are right: what they were before may have been replaced by a program that did not derive again.
        let inputs: Vec<_> = page.inputs.iter().map(|time| (device.as_str(), *time)).collect();
        let places = places(device, &page.changed);
        if self.dry_run {
            let readings: Vec<_> = page.changed.iter().map(|change| change.reading(series)).collect();
            let derived = self.derived.preview(&transaction, &places, &inputs, &readings).await?;
            (page.counts.derived_written, page.counts.derived_removed) = derived.counts();
            return Ok(Some(page));
        }
        let derived = self.derived.derive(&transaction, &places, &inputs).await?;
        let measured = page.changed.iter().filter(|change| !change.reads_same());
        let measured: Vec<_> = measured.map(|change| Key::new(device, metric, change.after.time)).collect();
        let (written, removed) = self.derived.write(&transaction, &measured, &derived).await?;
        (page.counts.derived_written, page.counts.derived_removed) = (written, removed);
        transaction.commit().await?;
        Ok(Some(page))
    }
}
