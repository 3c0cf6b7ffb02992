//! Computes stored readings again, some devices at a time.

use std::{sync::Arc, time::Duration};

use garenne_common::exit::{Exit, Failure};
use garenne_database::{DatabaseError, PostgresPool, Tables};
use garenne_pool::{Attempt, Ending, PoolConfig, Spec, run_all};
use garenne_readings::Calibration;
use tokio::runtime;
use tokio_util::sync::CancellationToken;

use super::{
    device_task::{DeviceEnd, DeviceOutcome, DeviceTask, PAGE_TIMEOUT, Shared},
    report::Report,
    selection::{Selection, Series},
};

/// Computes the selected readings of a fleet again.
pub(super) struct Recalibration {
    shared: Arc<Shared>,
    jobs: usize,
}

impl Recalibration {
    /// `jobs` devices are computed at once. They end after the page that they compute when `stop` is cancelled.
    pub(super) fn new(
        (pool, tables): (PostgresPool, Tables),
        calibration: Calibration,
        selection: Selection,
        dry_run: bool,
        jobs: usize,
        stop: CancellationToken,
    ) -> Self {
        let shared = Shared::new(pool, tables, calibration, selection, dry_run, stop);
        Self { shared: Arc::new(shared), jobs }
    }

    /// Computes all devices, each in a task of one group. A device that fails does not stop the others, unless the
    /// database is away.
    pub(super) async fn run(&self) -> Result<Report, Failure> {
        let Shared { bar, dry_run, .. } = &*self.shared;
        let (series, estimate) = self.series().await.map_err(|error| {
            let address = self.shared.pool.address();
            Failure::new(Exit::Failed, format_args!("Postgres at {address}: {error}"))
        })?;
        bar.set_length(estimate);
        let by_device: Vec<_> = series.chunk_by(|one, other| one.device == other.device).collect();
        let tasks = by_device.iter().map(|series| {
            let task = DeviceTask { shared: Arc::clone(&self.shared), series: series.to_vec() };
            // Not limited by a deadline: each page is.
            (Spec::short(series[0].device.as_str()), task)
        });
        let outcomes = run_all(self.pool_config(), runtime::Handle::current(), tasks);
        let outcomes = outcomes.await.expect("the sizes of the pool are positive");
        bar.finish_and_clear();
        let mut report = Report { dry_run: *dry_run, devices: by_device.len() as u64, ..Report::default() };
        for (series, outcome) in by_device.iter().zip(outcomes) {
            add(&mut report, &series[0].device, outcome);
        }
        Ok(report)
    }

    /// The pool's sizes. Its times do not matter to tasks without a deadline.
    fn pool_config(&self) -> PoolConfig {
        PoolConfig {
            name: "recalibrate".to_owned(),
            queue: self.jobs,
            workers: 1..=self.jobs,
            idle_timeout: Duration::from_secs(1),
            default_deadline: Duration::from_secs(1),
            grace: Duration::from_secs(1),
        }
    }

    async fn series(&self) -> Result<(Vec<Series>, u64), DatabaseError> {
        let Shared { pool, tables, selection, .. } = &*self.shared;
        pool.within(PAGE_TIMEOUT, async |client| selection.series(client, tables).await).await
    }
}

/// Adds the outcome of a device to the report.
fn add(report: &mut Report, device: &str, outcome: Attempt<DeviceOutcome>) {
    let outcome = match outcome {
        Ok(Ending::Finished { output, .. }) => output,
        // A bug, which must not look like success.
        Ok(other) => return report.add_failure(device, &format!("{:?}", other.outcome())),
        Err(refusal) => return report.add_failure(device, &refusal.to_string()),
    };
    for (series, counts) in &outcome.series {
        report.add(series, counts);
    }
    match outcome.end {
        DeviceEnd::Done => {}
        DeviceEnd::Stopped => report.add_left(),
        DeviceEnd::Failed(error) => report.add_failure(device, &error.to_string()),
    }
}
