//! The faults that a fleet can be exposed to.

use serde::Serialize;
use strum::IntoStaticStr;

/// A kind of fault. Its text form is its name in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Fault {
    /// SIGKILL to a worker.
    Kill,
    /// SIGTERM to a worker.
    #[strum(serialize = "soft stop")]
    Soft,
    /// SIGQUIT to a worker.
    #[strum(serialize = "hard stop")]
    Hard,
    /// SIGSTOP to a worker, and SIGCONT later.
    Pause,
    /// The broker stops and starts again.
    #[strum(serialize = "broker restart")]
    BrokerRestart,
    /// The workers' connections stall, and are reset later.
    #[strum(serialize = "network cut")]
    Cut,
    /// SIGKILL to the MQTT bridge of a demo.
    #[strum(serialize = "bridge kill")]
    Bridge,
    /// SIGKILL to the Mosquitto of a demo.
    #[strum(serialize = "mosquitto kill")]
    Mosquitto,
}

/// Effect of one fault on the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Injected {
    /// The worker, `broker` or `network`.
    pub(crate) target: String,
    /// The worker that was started instead of the target.
    pub(crate) replacement: Option<String>,
}
