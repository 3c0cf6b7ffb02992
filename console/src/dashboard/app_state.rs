//! The state that all request handlers share.

use std::sync::{Arc, Mutex as StdMutex};

use axum::{extract::State, http::StatusCode};
use garenne_common::{
    exit::{Exit, Failure},
    lock::lock,
    telemetry::Metrics,
};
use garenne_operator::operator::Operator;
use serde_json::Value;
use tokio::{
    sync::{Mutex, MutexGuard},
    time::Instant,
};

use super::{
    access::Access, job_book::JobBook, letter_filter::LetterFilter, problem::Problem,
    workers_database::WorkersDatabase,
};
use crate::{alarms::AlarmStore, monitor::FleetMonitor, scale::Goal};

const NO_DATABASE: &str = "this dashboard reads no database: start it with --postgres-url";

/// The state, as a parameter of a handler.
pub(super) type App = State<Arc<AppState>>;

/// The state that all request handlers share.
pub(super) struct AppState {
    pub(super) monitor: Arc<FleetMonitor>,
    pub(super) metrics: Metrics,
    pub(super) access: Access,
    /// The scaling objective.
    pub(super) scale: Goal,
    /// [`None`] if `postgres_url` is not set.
    pub(super) database: Option<WorkersDatabase>,
    /// Allows one walk over the dead letters at a time. Two walks at once would each see only the letters that the
    /// other one does not hold.
    pub(super) walk: Mutex<()>,
    /// Allows one look at the queues of lanes at a time, for the same reason.
    pub(super) look: Mutex<()>,
    pub(super) listed: StdMutex<Option<ListedPage>>,
    /// Replays and drops.
    pub(super) jobs: JobBook,
}

/// The page of dead letters that was read last.
#[derive(Clone)]
pub(super) struct ListedPage {
    /// Counted from 1.
    pub(super) number: usize,
    pub(super) filter: LetterFilter,
    /// Until then it is served again.
    pub(super) until: Instant,
    pub(super) list: Value,
}

impl AppState {
    pub(super) fn operator(&self) -> &Operator {
        &self.monitor.operator
    }

    pub(super) fn database(&self) -> Result<&WorkersDatabase, Problem> {
        self.database.as_ref().ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, NO_DATABASE))
    }

    /// Forgets the page, because letters were moved.
    pub(super) fn forget_listed(&self) {
        *lock(&self.listed) = None;
    }

    /// Waits until nothing else walks over the dead letters. Fails while a job moves them, which may take long.
    pub(super) async fn walk(&self) -> Result<MutexGuard<'_, ()>, Problem> {
        // A job that comes later waits behind this walk.
        if let Some(job) = self.jobs.active() {
            let detail =
                format!("job {} moves dead letters: try again when it has ended, or stop it", job.id);
            return Err(Problem::new(StatusCode::CONFLICT, detail));
        }
        Ok(self.walk.lock().await)
    }

    pub(super) async fn alarms(&self) -> Result<AlarmStore, Failure> {
        match &self.database {
            Some(database) => database.alarms().await,
            None => Err(Failure::new(Exit::Config, NO_DATABASE)),
        }
    }
}
