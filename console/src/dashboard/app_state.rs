//! The state that all request handlers share.

use std::sync::Arc;

use axum::extract::State;
use garenne_common::telemetry::Metrics;
use serde_json::Value;
use tokio::{sync::Mutex, time::Instant};

use super::session::Sessions;
use crate::{monitor::FleetMonitor, operator::Operator};

/// The state, as a parameter of a handler.
pub(super) type App = State<Arc<AppState>>;

/// The state that all request handlers share.
pub(super) struct AppState {
    pub(super) monitor: Arc<FleetMonitor>,
    pub(super) metrics: Metrics,
    pub(super) sessions: Sessions,
    /// The last list of dead letters, and when it was read.
    ///
    /// The lock allows one walk over the dead letters at a time. Two walks at once would each see only the
    /// letters that the other one does not hold.
    pub(super) dead_letters: Mutex<Option<(Instant, Value)>>,
}

impl AppState {
    pub(super) fn operator(&self) -> &Operator {
        &self.monitor.operator
    }
}
