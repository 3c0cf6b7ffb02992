//! The demo's gateway, and the replays that send recordings to it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use garenne_chaos::{
    Launcher,
    audit::Tail,
    free_port,
    process::{Process, ProcessError, Signal},
};
use tokio::time::Instant;

/// The preferred port for readings.
const PORT: u16 = 8080;
/// The preferred admin port. It is not a program's default: such a program could take it before the gateway starts.
pub(super) const ADMIN_PORT: u16 = 9470;
/// Limit of an orderly stop.
pub(super) const STOP_TIMEOUT: Duration = Duration::from_secs(35);

/// The gateway process.
pub(super) struct Gateway {
    process: Process,
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
    /// Whether any reading of it was acknowledged.
    pub(super) arrived: bool,
    /// A file that is removed when it was sent.
    temporary: Option<PathBuf>,
}

impl Gateway {
    /// Starts the gateway.
    pub(super) fn start(launcher: Launcher) -> Result<Self, ProcessError> {
        let address = |preferred| {
            let port = free_port(preferred);
            let failed = |source| ProcessError::Start { name: "gateway".to_owned(), source };
            port.map(|port| format!("127.0.0.1:{port}")).map_err(failed)
        };
        let (listen, admin) = (address(PORT)?, address(ADMIN_PORT)?);
        let program = launcher.sibling("gateway", "garenne-producer")?;
        let process = program.args(["serve", "--listen", &listen, "--admin", &admin]).start()?;
        let (url, admin) = (format!("http://{listen}"), format!("http://{admin}"));
        Ok(Self { process, launcher, url, admin, replays: 0 })
    }

    /// Waits until it is ready.
    pub(super) async fn until_ready(
        &mut self,
        http: &reqwest::Client,
        limit: Duration,
    ) -> Result<(), ProcessError> {
        self.process.until_ready(http, &format!("{}/readyz", self.admin), limit).await
    }

    /// Fails if the gateway has ended.
    pub(super) fn check(&mut self) -> Result<(), ProcessError> {
        match self.process.exit_status() {
            Some(status) => Err(self.process.unexpected_exit(status)),
            None => Ok(()),
        }
    }

    /// Sends a recording. A temporary file is removed when it was sent.
    pub(super) fn replay(
        &mut self,
        file: &Path,
        speed: &str,
        temporary: bool,
    ) -> Result<Replay, ProcessError> {
        self.replays += 1;
        let name = format!("replay-{}", self.replays);
        let receipts = self.launcher.dir.join(format!("{name}.receipts.ndjson"));
        let program = self.launcher.sibling(&name, "garenne-producer")?;
        let program = program.args(["replay".as_ref(), file.as_os_str()]);
        let program = program.args(["--speed", speed, "--to", &self.url]);
        let process = program.args(["--receipts".as_ref(), receipts.as_os_str()]).start()?;
        let (receipts, temporary) = (Tail::new(&receipts), temporary.then(|| file.to_owned()));
        Ok(Replay { process, receipts, started: Instant::now(), arrived: false, temporary })
    }

    /// Stops it in order.
    pub(super) async fn stop(&mut self) {
        // An error means that it has ended.
        let _ = self.process.signal(Signal::TERM);
        self.process.wait_or_kill(STOP_TIMEOUT).await;
    }
}

impl Replay {
    /// Stops it, and kills it if it does not end within `limit`.
    pub(super) async fn stop(&mut self, limit: Duration) {
        // An error means that it has ended.
        let _ = self.process.signal(Signal::TERM);
        self.process.wait_or_kill(limit).await;
        self.remove_temporary();
    }

    /// Removes its file if that is temporary.
    pub(super) fn remove_temporary(&self) {
        if let Some(file) = &self.temporary {
            let _ = std::fs::remove_file(file);
        }
    }
}
