//! The state that all request handlers share.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode};
use garenne_common::{
    exit::{Exit, Failure},
    telemetry::Metrics,
};
use tokio::sync::Mutex;

use super::{access::Access, listed_page::ListedPage, problem::Problem, workers_database::WorkersDatabase};
use crate::{alarms::AlarmStore, monitor::FleetMonitor, operator::Operator};

const NO_DATABASE: &str = "this dashboard reads no database: start it with --postgres-url";

/// The state, as a parameter of a handler.
pub(super) type App = State<Arc<AppState>>;

/// The state that all request handlers share.
pub(super) struct AppState {
    pub(super) monitor: Arc<FleetMonitor>,
    pub(super) metrics: Metrics,
    pub(super) access: Access,
    /// [`None`] if `postgres_url` is not set.
    pub(super) database: Option<WorkersDatabase>,
    /// The page of dead letters that was read last.
    ///
    /// The lock allows one walk over the dead letters at a time. Two walks at once would each see only the
    /// letters that the other one does not hold.
    pub(super) dead_letters: Mutex<Option<ListedPage>>,
}

impl AppState {
    pub(super) fn operator(&self) -> &Operator {
        &self.monitor.operator
    }

    /// The workers' database.
    pub(super) fn database(&self) -> Result<&WorkersDatabase, Problem> {
        self.database.as_ref().ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, NO_DATABASE))
    }

    /// The alarms in the workers' database.
    ///
    /// # Errors
    /// There is no database, or as [`WorkersDatabase::alarms`].
    pub(super) async fn alarms(&self) -> Result<AlarmStore, Failure> {
        match &self.database {
            Some(database) => database.alarms().await,
            None => Err(Failure::new(Exit::Config, NO_DATABASE)),
        }
    }
}
