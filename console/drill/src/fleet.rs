//! Workers under test: started, stopped, replaced, and their execution logs.

use std::{ffi::OsString, os::unix::process::ExitStatusExt, time::Duration};

use anyhow::{Context, Result};
use garenne_common::shutdown::Receipt;
use rustix::process::Signal;
use tokio::time::Instant;

use crate::{
    account::{Execution, Tail},
    fault::Injected,
    launcher::{Launcher, free_port},
    process::Process,
};

/// The program that a fleet runs by default.
pub(crate) const STOCK_WORKER: &str = "garenne-worker";
/// A crash this soon after the start is a crash loop and not the effect of a fault.
const CRASH_LOOP_WINDOW: Duration = Duration::from_secs(2);
/// So many crash loops in a row end the run.
const MAX_CRASH_LOOPS: u32 = 10;

/// How the workers of a fleet are started.
#[derive(Clone, Debug)]
pub(crate) enum WorkerCommand {
    /// `garenne-worker` from this program's folder. It writes a receipt to `NAME.receipt.json`.
    Stock {
        arguments: Vec<OsString>,
        /// The first worker's preferred admin port; the next workers prefer the ports after it. Without one the
        /// workers' own settings choose.
        first_admin_port: Option<u16>,
    },
    /// A shell command; `{name}` in it is replaced by the worker's name.
    Shell(String),
}

/// A fleet of worker processes.
#[derive(Debug)]
pub(crate) struct WorkerFleet {
    launcher: Launcher,
    command: WorkerCommand,
    workers: Vec<Worker>,
    /// The execution logs of workers that have ended. Each may have lines that are not read yet.
    finished_logs: Vec<Tail>,
    started: u16,
    crash_loops: u32,
}

/// A running worker with its execution log.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) process: Process,
    log: Tail,
    started: Instant,
    stop_requested: Option<Instant>,
    /// The URL of its admin port, if the fleet chose one.
    pub(crate) admin: Option<String>,
}

/// A worker that has ended.
#[derive(Clone, Debug)]
pub(crate) struct WorkerExit {
    pub(crate) name: String,
    /// How long before its end it was stopped or killed. Nothing if it ended by itself.
    pub(crate) stopped_for: Option<Duration>,
    /// Whether it was killed: by a fault, or because it did not stop in time.
    pub(crate) killed: bool,
    /// The receipt of an orderly shutdown, if it wrote one.
    pub(crate) receipt: Option<Receipt>,
    /// Its exit status and the last line of its log.
    pub(crate) status: String,
    /// The worker that was started after its crash.
    pub(crate) replacement: Option<String>,
}

impl Worker {
    fn stop(&mut self, signal: Signal) {
        self.stop_requested.get_or_insert_with(Instant::now);
        // A paused process handles no signal but SIGKILL.
        self.process.signal(Signal::CONT);
        self.process.signal(signal);
    }
}

impl WorkerFleet {
    /// Starts a fleet of so many workers.
    pub(crate) fn start(launcher: Launcher, command: WorkerCommand, workers: u16) -> Result<Self> {
        let (started, crash_loops) = (0, 0);
        let mut fleet =
            Self { launcher, command, workers: Vec::new(), finished_logs: Vec::new(), started, crash_loops };
        for _ in 0..workers {
            fleet.start_worker()?;
        }
        Ok(fleet)
    }

    pub(crate) fn workers(&self) -> &[Worker] {
        &self.workers
    }

    pub(crate) fn worker(&self, name: &str) -> Option<&Worker> {
        self.workers.iter().find(|worker| worker.process.name() == name)
    }

    /// Starts one more worker and returns its name.
    fn start_worker(&mut self) -> Result<String> {
        self.started += 1;
        let name = format!("worker-{}", self.started);
        let mut admin = None;
        let mut command = match &self.command {
            WorkerCommand::Shell(command) => {
                let mut shell = self.launcher.command("sh".as_ref());
                // The shell becomes the command, so that signals reach the command.
                shell.args(["-c".to_owned(), format!("exec {}", command.replace("{name}", &name))]);
                shell
            }
            WorkerCommand::Stock { arguments, first_admin_port } => {
                let receipt = self.launcher.dir.join(format!("{name}.receipt.json"));
                let mut worker = self.launcher.sibling(STOCK_WORKER)?;
                worker.args(arguments).arg("--receipt").arg(receipt);
                if let Some(first) = first_admin_port {
                    let port = free_port(first.saturating_add(self.started - 1))
                        .with_context(|| format!("cannot start {name}"))?;
                    let address = format!("127.0.0.1:{port}");
                    worker.args(["--admin", &address]);
                    admin = Some(format!("http://{address}"));
                }
                worker
            }
        };
        command.env("GARENNE_WORKER_ID", &name);
        let results = self.launcher.dir.join(format!("{name}.ndjson"));
        let process = self.launcher.start(&name, command, Some(&results))?;
        let (log, started) = (Tail::new(&results), Instant::now());
        self.workers.push(Worker { process, log, started, stop_requested: None, admin });
        Ok(name)
    }

    /// Waits until every worker with an admin port is ready, each for `limit` at most.
    pub(crate) async fn until_ready(&mut self, http: &reqwest::Client, limit: Duration) -> Result<()> {
        for worker in &mut self.workers {
            if let Some(url) = worker.admin.as_ref().map(|admin| format!("{admin}/readyz")) {
                worker.process.until_ready(http, &url, limit).await?;
            }
        }
        Ok(())
    }

    /// The worker that `pick` selects: the index among those that nothing stopped, modulo their number.
    pub(crate) fn pick(&mut self, pick: usize) -> Option<&mut Worker> {
        let mut available: Vec<_> =
            self.workers.iter_mut().filter(|worker| worker.stop_requested.is_none()).collect();
        let index = pick.checked_rem(available.len())?;
        Some(available.swap_remove(index))
    }

    /// Stops the worker that `pick` selects with a signal and starts another one. Returns nothing if no worker is
    /// left.
    pub(crate) fn stop_and_replace(&mut self, pick: usize, signal: Signal) -> Result<Option<Injected>> {
        let Some(worker) = self.pick(pick) else { return Ok(None) };
        worker.stop(signal);
        let target = worker.process.name().to_owned();
        Ok(Some(Injected { target, replacement: Some(self.start_worker()?) }))
    }

    /// Removes the workers that have ended from the fleet, and starts another one for each that crashed. Fails if
    /// workers repeatedly crash right after their start.
    pub(crate) fn replace_crashed(&mut self) -> Result<Vec<WorkerExit>> {
        let mut exits = self.reap()?;
        for exit in exits.iter_mut().filter(|exit| exit.stopped_for.is_none()) {
            exit.replacement = Some(self.start_worker()?);
        }
        Ok(exits)
    }

    fn reap(&mut self) -> Result<Vec<WorkerExit>> {
        let mut exits = Vec::new();
        for mut worker in self.workers.extract_if(.., |worker| worker.process.exit_status().is_some()) {
            let Some(status) = worker.process.exit_status() else { continue };
            let crashed_early =
                worker.stop_requested.is_none() && worker.started.elapsed() < CRASH_LOOP_WINDOW;
            self.crash_loops = if crashed_early { self.crash_loops + 1 } else { 0 };
            if self.crash_loops >= MAX_CRASH_LOOPS {
                return Err(worker.process.unexpected_exit(status));
            }
            let last = worker.process.last_line().unwrap_or_default();
            exits.push(WorkerExit {
                name: worker.process.name().to_owned(),
                stopped_for: worker.stop_requested.map(|at| at.elapsed()),
                killed: worker.stop_requested.is_some() && status.signal() == Some(Signal::KILL.as_raw()),
                // Workers print their receipt last.
                receipt: serde_json::from_str(&last).ok(),
                status: format!("{status}: {last}"),
                replacement: None,
            });
            self.finished_logs.push(worker.log);
        }
        Ok(exits)
    }

    /// The new lines of all execution logs.
    pub(crate) fn executions(&mut self) -> Result<Vec<Execution>> {
        let running = self.workers.iter_mut().map(|worker| &mut worker.log);
        let mut executions = Vec::new();
        for log in running.chain(&mut self.finished_logs) {
            executions.extend(log.read::<Execution>().context("cannot read an execution log")?);
        }
        Ok(executions)
    }

    /// Stops all workers in order and kills those that do not end within `limit`.
    pub(crate) async fn stop(&mut self, limit: Duration) -> Result<Vec<WorkerExit>> {
        for worker in &mut self.workers {
            worker.stop(Signal::TERM);
        }
        for worker in &mut self.workers {
            worker.process.wait_or_kill(limit).await;
        }
        self.reap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(dir: &std::path::Path, command: &str) -> WorkerFleet {
        WorkerFleet::start(Launcher::without_settings(dir), WorkerCommand::Shell(command.to_owned()), 1)
            .unwrap()
    }

    async fn until_exit(fleet: &mut WorkerFleet) -> Result<Vec<WorkerExit>> {
        loop {
            let exits = fleet.replace_crashed()?;
            if !exits.is_empty() {
                return Ok(exits);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_crashed_worker_is_replaced_and_a_stopped_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let mut fleet =
            fleet(dir.path(), "sh -c 'echo {name} >&2; [ {name} != worker-1 ] || exit 7; exec sleep 60'");
        let exits = until_exit(&mut fleet).await.unwrap();
        assert_eq!(exits.len(), 1);
        assert_eq!((exits[0].name.as_str(), exits[0].replacement.as_deref()), ("worker-1", Some("worker-2")));
        assert_eq!((exits[0].status.as_str(), exits[0].stopped_for), ("exit status: 7: worker-1", None));
        let stopped = fleet.stop_and_replace(5, Signal::KILL).unwrap();
        let (target, replacement) = ("worker-2".to_owned(), Some("worker-3".to_owned()));
        assert_eq!(stopped, Some(Injected { target, replacement }));
        let exits = until_exit(&mut fleet).await.unwrap();
        assert_eq!((exits[0].name.as_str(), exits[0].replacement.as_deref()), ("worker-2", None));
        assert!(exits[0].killed);
        let exits = fleet.stop(Duration::from_secs(60)).await.unwrap();
        assert_eq!((exits.len(), exits[0].name.as_str(), fleet.workers().len()), (1, "worker-3", 0));
        assert!(!exits[0].killed, "it was stopped");
    }

    #[tokio::test]
    async fn workers_that_crash_at_their_start_end_the_run() {
        let dir = tempfile::tempdir().unwrap();
        let mut fleet = fleet(dir.path(), "sh -c 'echo no broker >&2; exit 69'");
        let mut crashes = 0;
        let error = loop {
            match until_exit(&mut fleet).await {
                Ok(exits) => crashes += exits.len(),
                Err(error) => break error.to_string(),
            }
        };
        assert_eq!(crashes, MAX_CRASH_LOOPS as usize - 1);
        assert!(error.starts_with("worker-10 ended (exit status: 69): no broker (log: "), "{error}");
    }
}
