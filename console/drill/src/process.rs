//! Child processes: started, signalled, waited for.

use std::{
    fs::OpenOptions,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

/// Interval between two requests to a process that is not ready.
const READY_INTERVAL: Duration = Duration::from_millis(50);

/// A running child process. It is killed when the value is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a command. Standard input is empty, standard output is appended to `output`, and standard error to `log`.
    ///
    /// The process leads a process group of its own, so that Ctrl-C on the terminal reaches only this process, which
    /// stops its children itself.
    pub(crate) fn start(name: &str, mut command: Command, output: &Path, log: &Path) -> Result<Self> {
        let failed = || format!("cannot start {name}");
        let append = |path| OpenOptions::new().create(true).append(true).open(path).with_context(failed);
        command.stdin(Stdio::null()).stdout(append(output)?).stderr(append(log)?);
        let child = command.process_group(0).kill_on_drop(true).spawn().with_context(failed)?;
        Ok(Self { name: name.to_owned(), child, log: log.to_owned() })
    }

    /// Its name in logs and errors.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Sends a signal. Nothing happens if the process has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        // A process that was waited for has no id: the number may belong to another process.
        if let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)) {
            let _ = kill_process(pid, signal);
        }
    }

    /// The exit status, if the process has ended.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits until the process ends, and kills it after `limit`.
    pub(crate) async fn wait_or_kill(&mut self, limit: Duration) -> Option<ExitStatus> {
        if let Ok(status) = timeout(limit, self.child.wait()).await {
            return status.ok();
        }
        self.signal(Signal::KILL);
        self.child.wait().await.ok()
    }

    /// Stops the process in order, and kills it after `limit`.
    pub(crate) async fn stop(&mut self, limit: Duration) {
        self.signal(Signal::TERM);
        self.wait_or_kill(limit).await;
    }

    /// Kills the process and waits for its end.
    pub(crate) async fn kill(&mut self) {
        self.signal(Signal::KILL);
        // It fails only if the process was waited for before.
        let _ = self.child.wait().await;
    }

    /// Checks that the process still runs.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.exit_status().map_or(Ok(()), |status| Err(self.unexpected_exit(status)))
    }

    /// The last line in its log file that is not blank.
    pub(crate) fn last_line(&self) -> Option<String> {
        let text = std::fs::read_to_string(&self.log).ok()?;
        text.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned)
    }

    /// The error for a process that ended although nothing stopped it.
    pub(crate) fn unexpected_exit(&self, status: ExitStatus) -> anyhow::Error {
        anyhow!("{} ended ({status}): {}", self.name, self.log_excerpt())
    }

    /// Waits until `url` answers with success.
    pub(crate) async fn until_ready(
        &mut self,
        http: &reqwest::Client,
        url: &str,
        limit: Duration,
    ) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            self.check()?;
            if http.get(url).send().await.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("{} is not ready after {} s: {}", self.name, limit.as_secs(), self.log_excerpt());
            }
            sleep(READY_INTERVAL).await;
        }
    }

    /// The last line of the log and where the log is, for errors.
    fn log_excerpt(&self) -> String {
        let last = self.last_line().unwrap_or_else(|| "no output".to_owned());
        format!("{last} (log: {})", self.log.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str, output: &Path, log: &Path) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::start("child", command, output, log).unwrap()
    }

    #[tokio::test]
    async fn output_and_error_are_appended_to_their_files() {
        let dir = tempfile::tempdir().unwrap();
        let [out, log] = ["out", "log"].map(|name| dir.path().join(name));
        for _ in 0..2 {
            let mut process = start("echo result; echo started >&2; echo failed >&2; exit 3", &out, &log);
            let status = process.child.wait().await.unwrap();
            assert_eq!(process.last_line().as_deref(), Some("failed"));
            let error = process.unexpected_exit(status).to_string();
            assert_eq!(error, format!("child ended (exit status: 3): failed (log: {})", log.display()));
        }
        assert_eq!(std::fs::read_to_string(out).unwrap(), "result\nresult\n");
    }

    #[tokio::test]
    async fn a_process_that_does_not_end_is_killed_at_the_limit() {
        let null = Path::new("/dev/null");
        let mut process = start("exec sleep 60", null, null);
        let status = process.wait_or_kill(Duration::from_millis(10)).await.unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
        process.signal(Signal::TERM);
    }

    #[test]
    fn a_missing_program_is_named() {
        let null = Path::new("/dev/null");
        let error = Process::start("worker-1", Command::new("/no/such/program"), null, null).unwrap_err();
        assert!(format!("{error:#}").starts_with("cannot start worker-1: "), "{error:#}");
    }
}
