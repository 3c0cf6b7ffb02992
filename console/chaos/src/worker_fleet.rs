//! Workers under test: started, stopped, replaced, and their execution logs.

use std::{ffi::OsString, io, time::Duration};

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::{
    audit::{Execution, Tail},
    fault::Injected,
    launcher::{Launcher, free_port},
    metrics::metric_sum,
    worker_process::{WorkerExit, WorkerProcess},
};

/// A crash this soon after the start is a crash loop and not the effect of a fault.
const CRASH_LOOP_WINDOW: Duration = Duration::from_secs(2);
/// So many crash loops in a row end the run.
const MAX_CRASH_LOOPS: u32 = 10;

/// How the workers of a fleet are started.
#[derive(Clone, Debug)]
pub enum WorkerCommand {
    /// `garenne-worker` from the console's folder with these arguments. It writes a receipt to `NAME.receipt.json`.
    Stock {
        /// The arguments.
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
pub struct WorkerFleet {
    launcher: Launcher,
    command: WorkerCommand,
    workers: Vec<WorkerProcess>,
    /// The execution logs of workers that have ended. Each may have lines that are not read yet.
    finished_logs: Vec<Tail>,
    started: u16,
    crash_loops: u32,
}

impl WorkerFleet {
    /// Starts a fleet of so many workers.
    ///
    /// # Errors
    /// If a worker cannot be started.
    pub fn start(launcher: Launcher, command: WorkerCommand, workers: u16) -> Result<Self> {
        let (started, crash_loops) = (0, 0);
        let mut fleet =
            Self { launcher, command, workers: Vec::new(), finished_logs: Vec::new(), started, crash_loops };
        for _ in 0..workers {
            fleet.start_worker()?;
        }
        Ok(fleet)
    }

    /// The running workers.
    pub fn workers(&self) -> &[WorkerProcess] {
        &self.workers
    }

    /// A running worker by its name.
    pub fn worker(&self, name: &str) -> Option<&WorkerProcess> {
        self.workers.iter().find(|worker| worker.name() == name)
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
                let mut worker = self.launcher.sibling("garenne-worker")?;
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
        self.workers.push(WorkerProcess::new(process, Tail::new(&results), admin));
        Ok(name)
    }

    /// Waits until every worker with an admin port is ready.
    ///
    /// # Errors
    /// If a worker ends, or is not ready within `limit`.
    pub async fn until_ready(&mut self, http: &reqwest::Client, limit: Duration) -> Result<()> {
        for worker in &mut self.workers {
            if let Some(url) = worker.admin.as_ref().map(|admin| format!("{admin}/readyz")) {
                worker.process.until_ready(http, &url, limit).await?;
            }
        }
        Ok(())
    }

    /// The worker that `pick` selects: the index among those that nothing stopped, modulo their number.
    pub(crate) fn pick(&mut self, pick: usize) -> Option<&mut WorkerProcess> {
        let mut available: Vec<_> =
            self.workers.iter_mut().filter(|worker| worker.stop_requested.is_none()).collect();
        let index = pick.checked_rem(available.len())?;
        Some(available.swap_remove(index))
    }

    /// The `pick` of the worker with the most queued tasks. Workers that do not answer count as idle.
    pub async fn busiest(&self, http: &reqwest::Client) -> usize {
        let mut busiest = (0, 0);
        let available = self.workers.iter().filter(|worker| worker.stop_requested.is_none());
        for (index, worker) in available.enumerate() {
            let Some(admin) = &worker.admin else { continue };
            let queued = metric_sum(http, admin, "garenne_pool_queue_length").await.unwrap_or(0);
            if queued > busiest.0 {
                busiest = (queued, index);
            }
        }
        busiest.1
    }

    /// Stops the worker that `pick` selects with a signal and starts another one. Returns nothing if no worker is
    /// left.
    pub(crate) fn stop_and_replace(&mut self, pick: usize, signal: Signal) -> Result<Option<Injected>> {
        let Some(worker) = self.pick(pick) else { return Ok(None) };
        worker.stop(signal);
        let target = worker.name().to_owned();
        Ok(Some(Injected { target, replacement: Some(self.start_worker()?) }))
    }

    /// Removes the workers that have ended from the fleet, and starts another one for each that crashed.
    ///
    /// # Errors
    /// If workers repeatedly crash right after their start.
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
            exits.push(worker.exit(status));
            self.finished_logs.push(worker.log);
        }
        Ok(exits)
    }

    /// The new lines of all execution logs.
    pub(crate) fn executions(&mut self) -> io::Result<Vec<Execution>> {
        let running = self.workers.iter_mut().map(|worker| &mut worker.log);
        let mut executions = Vec::new();
        for log in running.chain(&mut self.finished_logs) {
            executions.extend(log.read::<Execution>()?);
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
        WorkerFleet::start(Launcher::without_console(dir), WorkerCommand::Shell(command.to_owned()), 1)
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
        let exits = fleet.stop(Duration::from_secs(60)).await.unwrap();
        assert_eq!((exits.len(), exits[0].name.as_str(), fleet.workers().len()), (1, "worker-3", 0));
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
