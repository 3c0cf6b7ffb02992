//! The demo's gateway, and the replays that send recordings to it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use garenne_chaos::{Launcher, audit::Tail, free_port, process::Process};
use tokio::time::Instant;

/// The preferred port for readings.
const PORT: u16 = 8080;
/// The preferred admin port. It is not a program's default: such a program could take it before the gateway starts.
pub(super) const ADMIN_PORT: u16 = 9470;
/// Limit of an orderly stop.
pub(super) const STOP_TIMEOUT: Duration = Duration::from_secs(35);

/// The gateway process.
pub(super) struct Gateway {
    pub(super) process: Process,
    launcher: Launcher,
    /// Where readings are posted.
    pub(super) url: String,
    /// Its admin port.
    pub(super) admin: String,
    replays: usize,
}

/// A recording that is being sent.
pub(super) struct Replay {
    pub(super) process: Process,
    pub(super) receipts: Tail,
    pub(super) started: Instant,
    /// Readings of it that were acknowledged.
    pub(super) acknowledged: u64,
    /// A file that is removed with this value.
    temporary: Option<PathBuf>,
}

impl Gateway {
    /// Starts the gateway.
    pub(super) fn start(launcher: Launcher) -> Result<Self> {
        let address = |preferred| {
            let port = free_port(preferred).context("cannot start gateway");
            port.map(|port| format!("127.0.0.1:{port}"))
        };
        let (listen, admin) = (address(PORT)?, address(ADMIN_PORT)?);
        let program = launcher.sibling("gateway", "garenne-producer")?;
        let process = program.args(["serve", "--listen", &listen, "--admin", &admin]).start()?;
        let (url, admin) = (format!("http://{listen}"), format!("http://{admin}"));
        Ok(Self { process, launcher, url, admin, replays: 0 })
    }

    /// Waits until it is ready.
    pub(super) async fn until_ready(&mut self, http: &reqwest::Client, limit: Duration) -> Result<()> {
        self.process.until_ready(http, &format!("{}/readyz", self.admin), limit).await
    }

    /// Sends a recording. A temporary file is removed with the replay.
    pub(super) fn replay(&mut self, file: &Path, speed: &str, temporary: bool) -> Result<Replay> {
        self.replays += 1;
        let name = format!("replay-{}", self.replays);
        let receipts = self.launcher.dir.join(format!("{name}.receipts.ndjson"));
        let program = self.launcher.sibling(&name, "garenne-producer")?;
        let program = program.args(["replay".as_ref(), file.as_os_str()]);
        let program = program.args(["--speed", speed, "--to", &self.url]);
        let process = program.args(["--receipts".as_ref(), receipts.as_os_str()]).start()?;
        let (receipts, temporary) = (Tail::new(&receipts), temporary.then(|| file.to_owned()));
        Ok(Replay { process, receipts, started: Instant::now(), acknowledged: 0, temporary })
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        if let Some(file) = &self.temporary {
            // It is in the folder of the run, where it does no harm.
            let _ = std::fs::remove_file(file);
        }
    }
}
