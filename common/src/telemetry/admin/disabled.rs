//! The admin port in a program that is built without the feature `admin`: there is none.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::Process;
use crate::{
    config::{Common, ConfigError, Invalid},
    shutdown::{Command, Mode},
    telemetry::Metrics,
};

/// Nothing is bound.
pub struct AdminConfig(());

/// # Errors
/// The setting `admin`, `admin_token_file` or `admin_tls_cert` is set.
pub async fn bind(common: &Common) -> Result<AdminConfig, ConfigError> {
    let address = common.admin.map(|address| ("admin", address.to_string()));
    let token = common.admin_token_file.as_ref().map(|path| ("admin_token_file", format!("{path:?}")));
    let file = common.admin_tls_cert.as_ref().map(|path| ("admin_tls_cert", format!("{path:?}")));
    let Some((setting, value)) = address.or(token).or(file) else { return Ok(AdminConfig(())) };
    let problem = "this program is built without the feature `admin` of the crate garenne";
    Err(Invalid::new(setting, value, problem).given_by("file, environment or code"))
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
