//! The export of spans in a program that is built without the feature `otlp`: there is none.

use std::time::Duration;

use tokio::runtime::Handle;

use super::Recorder;
use crate::telemetry::Metrics;

/// # Errors
/// Always.
pub(super) fn start(_: String, _: Duration, _: &Metrics, _: Handle) -> Result<Recorder, String> {
    Err("this program is built without the feature `otlp` of the crate garenne".to_owned())
}
