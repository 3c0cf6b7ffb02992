//! The admin port in a program that is built without the feature `admin`: there is none.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::Process;
use crate::{
    config::{Common, ConfigError},
    shutdown::{Command, Mode},
    telemetry::Metrics,
};

/// Nothing is bound.
pub struct AdminConfig(());

/// # Errors
/// None. [`Common::validate`] refuses the settings of the admin port.
pub async fn bind(_: &Common) -> Result<AdminConfig, ConfigError> {
    Ok(AdminConfig(()))
}

/// An admin port that does not exist.
pub struct AdminPort(());

impl AdminPort {
    /// Opens nothing.
    pub fn open(_: AdminConfig, _: Metrics, _: Mode, _: mpsc::Sender<Command>, _: &'static str) -> Self {
        Self(())
    }

    /// Does nothing.
    pub fn begin(&self, _: Arc<dyn Process>) {}

    /// Does nothing.
    pub async fn close(self) {}
}
