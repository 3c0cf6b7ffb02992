//! The demo's gateway, and the replays that send recordings to it.

use std::path::Path;

use anyhow::{Context, Result};
use tokio::time::Instant;

use crate::{
    account::Tail,
    launcher::{Launcher, free_port},
    process::Process,
};

/// The preferred port for readings.
const PORT: u16 = 8080;
/// The preferred admin port. It is not a program's default: such a program could take it before the gateway starts.
pub(super) const ADMIN_PORT: u16 = 9470;

/// The gateway process, where readings are posted, and its admin port.
pub(super) struct Gateway {
    pub(super) process: Process,
    pub(super) url: String,
    pub(super) admin: String,
}

impl Gateway {
    pub(super) fn start(launcher: &Launcher) -> Result<Self> {
        let port = |preferred| free_port(preferred).context("cannot start gateway");
        let [listen, admin] = [port(PORT)?, port(ADMIN_PORT)?].map(|port| format!("127.0.0.1:{port}"));
        let mut command = launcher.sibling("garenne-producer")?;
        command.args(["serve", "--listen", &listen, "--admin", &admin]);
        let process = launcher.start("gateway", command, None)?;
        Ok(Self { process, url: format!("http://{listen}"), admin: format!("http://{admin}") })
    }
}

/// A recording that is being sent.
pub(super) struct Replay {
    pub(super) process: Process,
    pub(super) receipts: Tail,
    pub(super) started: Instant,
    /// Readings of it that were acknowledged.
    pub(super) acknowledged: u64,
}

impl Replay {
    /// Sends a recording to the gateway or the MQTT broker `to`.
    pub(super) fn start(launcher: &Launcher, name: &str, file: &Path, speed: &str, to: &str) -> Result<Self> {
        let receipts = launcher.dir.join(format!("{name}.receipts.ndjson"));
        let mut command = launcher.sibling("garenne-producer")?;
        command.arg("replay").arg(file).args(["--speed", speed, "--to", to]).arg("--receipts").arg(&receipts);
        let process = launcher.start(name, command, None)?;
        Ok(Self { process, receipts: Tail::new(&receipts), started: Instant::now(), acknowledged: 0 })
    }
}
