//! The name of this process in traces.

use garenne_common::config::host_name;

/// The service instance of a command that publishes and ends.
pub(crate) fn instance() -> String {
    format!("{}-{}", host_name(), std::process::id())
}
