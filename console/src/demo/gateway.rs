//! The demo's gateway, and the replays that send recordings to it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use garenne_chaos::{Launcher, Process, audit::Tail, free_port};
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
        let mut command = launcher.sibling("garenne-producer")?;
        command.args(["serve", "--listen", &listen, "--admin", &admin]);
        let process = launcher.start("gateway", command, None)?;
        let (url, admin) = (format!("http://{listen}"), format!("http://{admin}"));
        Ok(Self { process, launcher, url, admin, replays: 0 })
    }

    /// Sends a recording to the gateway, or to the MQTT broker `to`. A temporary file is removed with the replay.
    pub(super) fn replay(
        &mut self,
        file: &Path,
        speed: &str,
        temporary: bool,
        to: Option<&str>,
    ) -> Result<Replay> {
        self.replays += 1;
        let name = format!("replay-{}", self.replays);
        let receipts = self.launcher.dir.join(format!("{name}.receipts.ndjson"));
        let mut command = self.launcher.sibling("garenne-producer")?;
        command.arg("replay").arg(file).args(["--speed", speed, "--to", to.unwrap_or(&self.url)]);
        command.arg("--receipts").arg(&receipts);
        let process = self.launcher.start(&name, command, None)?;
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
