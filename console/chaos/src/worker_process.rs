//! One worker of a fleet.

use std::time::Duration;

use garenne_common::shutdown::Receipt;
use rustix::process::Signal;
use tokio::time::Instant;

use crate::{audit::Tail, process::Process};

/// A running worker with its execution log.
#[derive(Debug)]
pub struct WorkerProcess {
    pub(crate) process: Process,
    pub(crate) log: Tail,
    pub(crate) started: Instant,
    pub(crate) stop_requested: Option<Instant>,
    /// The URL of its admin port, if the fleet chose one.
    pub admin: Option<String>,
}

/// A worker that has ended.
#[derive(Clone, Debug)]
pub struct WorkerExit {
    /// Its name.
    pub name: String,
    /// How long before its end it was stopped. Nothing for a crash.
    pub stopped_for: Option<Duration>,
    /// The receipt of an orderly shutdown, if it wrote one.
    pub receipt: Option<Receipt>,
    /// Its exit status and the last line of its log.
    pub status: String,
    /// The worker that was started after its crash.
    pub replacement: Option<String>,
}

impl WorkerProcess {
    pub(crate) fn new(process: Process, log: Tail, admin: Option<String>) -> Self {
        Self { process, log, started: Instant::now(), stop_requested: None, admin }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.process.name()
    }

    /// Stops it with this signal.
    pub(crate) fn stop(&mut self, signal: Signal) {
        self.stop_requested.get_or_insert_with(Instant::now);
        // A paused process handles no signal but SIGKILL.
        self.process.signal(Signal::CONT);
        self.process.signal(signal);
    }

    /// A worker that has ended, without a replacement yet.
    pub(crate) fn exit(&self, status: std::process::ExitStatus) -> WorkerExit {
        let last = self.process.last_line().unwrap_or_default();
        WorkerExit {
            name: self.name().to_owned(),
            stopped_for: self.stop_requested.map(|at| at.elapsed()),
            // Workers print their receipt last.
            receipt: serde_json::from_str(&last).ok(),
            status: format!("{status}: {last}"),
            replacement: None,
        }
    }
}
