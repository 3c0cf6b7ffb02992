//! Garenne's own programs as processes: what they write, how they end, and signals to them.

mod build;
mod log;
mod terminal;

use std::{
    ffi::{OsStr, OsString},
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result};
use rustix::process::{Pid, kill_process};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

pub use self::{log::Log, terminal::Screen};
pub use rustix::process::Signal;

use super::{lifeline::Lifeline, wait::PATIENCE};

/// A program of this workspace, not started yet.
#[derive(Clone, Debug)]
pub struct Program {
    name: String,
    /// Somebody else's, found in `PATH`.
    foreign: bool,
    arguments: Vec<OsString>,
    environment: Vec<(String, String)>,
}

impl Program {
    /// A binary of the workspace, such as `garenne-worker`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), foreign: false, arguments: Vec::new(), environment: Vec::new() }
    }

    /// A program of this machine, such as `docker`.
    #[must_use]
    pub fn foreign(name: &str) -> Self {
        Self { foreign: true, ..Self::new(name) }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds an option and its value.
    #[must_use]
    pub fn option(self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.arg(name).arg(value)
    }

    /// Sets a variable; the test's own `GARENNE_` variables are not handed on.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    pub(super) fn environment(&self) -> &[(String, String)] {
        &self.environment
    }

    /// Starts it.
    ///
    /// # Errors
    /// When it does not build or cannot be run.
    pub async fn start(&self) -> Result<Process> {
        let mut child = self
            .command()
            .await?
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", self.name))?;
        let id = child.id().context("a process without an id")?;
        let mut lifeline = Lifeline::start(r#"[ -z "$last" ] || kill -s KILL "$last""#, &[])?;
        lifeline.tell(&id.to_string())?;
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw).context("a process id out of range")?;
        let stdout = Log::of(child.stdout.take().context("no stdout")?);
        let stderr = Log::of(child.stderr.take().context("no stderr")?);
        Ok(Process { name: self.name.clone(), child, pid, stdout, stderr, lifeline })
    }

    /// The command that runs it; standard error is still to be said.
    async fn command(&self) -> Result<Command> {
        let path = if self.foreign { self.name.clone().into() } else { build::binary(&self.name).await? };
        let mut command = Command::new(path);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("GARENNE_") {
                command.env_remove(name);
            }
        }
        command
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Ctrl-C is for the test: what it does to its workers, it does on purpose.
            .process_group(0)
            .kill_on_drop(true);
        Ok(command)
    }

    /// Starts it and waits for its end.
    ///
    /// # Errors
    /// As [`start`](Self::start) and [`Process::ended`].
    pub async fn run(&self) -> Result<Ended> {
        self.start().await?.ended().await
    }
}

/// A running program. Dropped, it is killed.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    pid: Pid,
    stdout: Log,
    stderr: Log,
    lifeline: Lifeline,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Ended {
    /// The exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Everything it wrote to standard output.
    pub stdout: Vec<String>,
    /// Everything it wrote to standard error.
    pub stderr: Vec<String>,
}

impl Process {
    /// Its process id.
    #[must_use]
    pub fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Its standard output so far.
    #[must_use]
    pub fn stdout(&self) -> &Log {
        &self.stdout
    }

    /// Its standard error so far.
    #[must_use]
    pub fn stderr(&self) -> &Log {
        &self.stderr
    }

    /// The most physical memory that it ever had, in bytes.
    ///
    /// # Errors
    /// When it has ended.
    pub fn peak_memory(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
        let kib: u64 = peak.trim().trim_end_matches(" kB").parse().with_context(|| peak.to_owned())?;
        Ok(kib * 1024)
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.pid, signal).with_context(|| format!("{} has ended", self.name))
    }

    /// Fails when it has ended.
    ///
    /// # Errors
    /// With the end of its standard error.
    pub fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("{} has ended ({status}): {}", self.name, self.stderr.tail()),
        }
    }

    /// SIGKILL.
    ///
    /// # Errors
    /// As [`ended`](Self::ended).
    pub async fn kill(self) -> Result<Ended> {
        // It may have come to its end by itself.
        let _ = kill_process(self.pid, Signal::KILL);
        self.ended().await
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it does not come, with the end of its standard error.
    pub async fn ended(self) -> Result<Ended> {
        self.ended_within(PATIENCE).await
    }

    /// The same for a program that has much to do.
    ///
    /// # Errors
    /// As [`ended`](Self::ended).
    pub async fn ended_within(mut self, patience: Duration) -> Result<Ended> {
        let ended = async {
            let status = self.child.wait().await?;
            // The number may be another's from now on.
            self.lifeline.tell("")?;
            self.stdout.complete().await;
            self.stderr.complete().await;
            anyhow::Ok(status)
        };
        let status: ExitStatus = match timeout(patience, ended).await {
            Ok(status) => status?,
            Err(_) => anyhow::bail!("{} does not end: {}", self.name, self.stderr.tail()),
        };
        Ok(Ended {
            code: status.code(),
            signal: status.signal(),
            stdout: self.stdout.lines(),
            stderr: self.stderr.lines(),
        })
    }
}
