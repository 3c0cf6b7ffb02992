//! Child processes: started, signalled, waited for.

mod program;

use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

use anyhow::{Result, anyhow, bail};
use rustix::process::{Pid, kill_process, kill_process_group};
use tokio::{
    process::{Child, ChildStderr, ChildStdout},
    time::{Instant, sleep, timeout},
};

pub use program::{Output, Program};
pub use rustix::process::Signal;

/// Interval between two requests to a process that is not ready.
const READY_INTERVAL: Duration = Duration::from_millis(50);

/// A running child process. It is killed when the value is dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: u32,
    child: Child,
    /// The file that standard error is appended to.
    log: Option<PathBuf>,
}

impl Process {
    /// Its name in logs and errors.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id. The kernel may reuse the number after the process was waited for.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The reading end of standard output, if that is [`Output::Piped`]. Only the first call returns it.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// The reading end of standard error, if that is [`Output::Piped`]. Only the first call returns it.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// If the process was waited for or may not be signalled.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.send(|pid| kill_process(pid, signal))
    }

    /// Sends a signal to the process group that it leads.
    ///
    /// # Errors
    /// If the process was waited for or may not be signalled.
    pub fn signal_group(&self, signal: Signal) -> Result<()> {
        self.send(|pid| kill_process_group(pid, signal))
    }

    fn send(&self, signal: impl FnOnce(Pid) -> rustix::io::Result<()>) -> Result<()> {
        let sent = self.id().and_then(|pid| Ok(signal(pid)?));
        sent.map_err(|error| anyhow!("cannot signal {}: {error}", self.name))
    }

    /// The process id, unless the process was waited for: then the number may belong to another process.
    fn id(&self) -> io::Result<Pid> {
        let id = self.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        id.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the process has ended"))
    }

    /// The exit status, if the process has ended.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits until the process ends.
    ///
    /// # Errors
    /// The system's error.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Waits until the process ends, and kills it after `limit`.
    pub async fn wait_or_kill(&mut self, limit: Duration) -> Option<ExitStatus> {
        if let Ok(status) = timeout(limit, self.child.wait()).await {
            return status.ok();
        }
        // An error means that it ended in the meantime.
        let _ = self.signal(Signal::KILL);
        self.child.wait().await.ok()
    }

    /// Stops the process in order, and kills it after `limit`.
    pub async fn stop(&mut self, limit: Duration) {
        // An error means that it has ended.
        let _ = self.signal(Signal::TERM);
        self.wait_or_kill(limit).await;
    }

    /// Checks that the process still runs.
    ///
    /// # Errors
    /// If it has ended.
    pub fn check(&mut self) -> Result<()> {
        self.exit_status().map_or(Ok(()), |status| Err(self.unexpected_exit(status)))
    }

    /// The last line in its log file that is not blank.
    #[must_use]
    pub fn last_line(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.log.as_ref()?).ok()?;
        text.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned)
    }

    /// The error for a process that ended although nothing stopped it.
    #[must_use]
    pub fn unexpected_exit(&self, status: ExitStatus) -> anyhow::Error {
        anyhow!("{} ended ({status}): {}", self.name, self.log_excerpt())
    }

    /// Waits until `url` answers with success.
    ///
    /// # Errors
    /// If the process ends, or is not ready after `limit`.
    pub async fn until_ready(&mut self, http: &reqwest::Client, url: &str, limit: Duration) -> Result<()> {
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
        match &self.log {
            Some(path) => format!("{last} (log: {})", path.display()),
            None => last,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Program {
        Program::new("child", "sh").args(["-c", script])
    }

    #[tokio::test]
    async fn output_and_error_are_appended_to_their_files() {
        let dir = tempfile::tempdir().unwrap();
        let [out, log] = ["out", "log"].map(|name| dir.path().join(name));
        let program = shell("echo result; echo started >&2; echo failed >&2; exit 3")
            .stdout(Output::File(out.clone()))
            .stderr(Output::File(log.clone()));
        for _ in 0..2 {
            let mut process = program.start().unwrap();
            let status = process.wait().await.unwrap();
            assert_eq!(process.last_line().as_deref(), Some("failed"));
            let error = process.unexpected_exit(status).to_string();
            assert_eq!(error, format!("child ended (exit status: 3): failed (log: {})", log.display()));
        }
        assert_eq!(std::fs::read_to_string(out).unwrap(), "result\nresult\n");
    }

    #[tokio::test]
    async fn a_process_that_does_not_end_is_killed_at_the_limit() {
        let mut process = shell("exec sleep 60").start().unwrap();
        let status = process.wait_or_kill(Duration::from_millis(10)).await.unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
        let refused = process.signal(Signal::TERM).unwrap_err().to_string();
        assert_eq!(refused, "cannot signal child: the process has ended");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = Program::new("worker-1", "/no/such/program").start().unwrap_err().to_string();
        assert!(error.starts_with("cannot start worker-1: "), "{error}");
    }
}
