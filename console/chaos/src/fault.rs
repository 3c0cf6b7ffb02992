//! The faults that a fleet can be exposed to.

use serde::Serialize;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// SIGKILL to a worker.
    Kill,
    /// SIGTERM to a worker.
    Soft,
    /// SIGQUIT to a worker.
    Hard,
    /// SIGSTOP to a worker, and SIGCONT later.
    Pause,
    /// The broker stops and starts again.
    BrokerRestart,
    /// The workers' connections stall, and are reset later.
    Cut,
}

impl Fault {
    /// Its name in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Soft => "soft stop",
            Self::Hard => "hard stop",
            Self::Pause => "pause",
            Self::BrokerRestart => "broker restart",
            Self::Cut => "network cut",
        }
    }
}

/// What one fault did to the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Injected {
    /// The worker, `broker` or `network`.
    pub target: String,
    /// The worker that was started instead of the target.
    pub replacement: Option<String>,
}
