//! Garenne's own programs as processes: their output, their end, and signals to them.

mod build;
mod log;
mod terminal;

use std::{
    ffi::{OsStr, OsString},
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    time::Duration,
};

use anyhow::{Context, Result};
use garenne_chaos::process::{self as chaos, Output};
use tokio::time::timeout;

pub use self::{log::Log, terminal::Screen};
pub use garenne_chaos::process::Signal;

use super::wait::WAIT_TIMEOUT;

/// The operator's tool, which also starts processes that die with this one.
const CONSOLE: &str = "garenne";

/// Where a program comes from.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// This workspace, built with the profile of the tests.
    Workspace,
    /// This workspace, built with release optimizations.
    Release,
    /// `PATH`.
    Path,
}

/// A program of this workspace, not started yet.
#[derive(Clone, Debug)]
pub struct Program {
    name: String,
    source: Source,
    arguments: Vec<OsString>,
    environment: Vec<(String, String)>,
}

impl Program {
    /// A binary of the workspace, such as `garenne-worker`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            source: Source::Workspace,
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// A program from `PATH`, such as `docker`.
    #[must_use]
    pub fn foreign(name: &str) -> Self {
        Self { source: Source::Path, ..Self::new(name) }
    }

    /// Builds the program with release optimizations, for a measurement.
    #[must_use]
    pub fn optimized(self) -> Self {
        Self { source: Source::Release, ..self }
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

    /// Sets a variable. The process does not get the `GARENNE_` variables of the test.
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
    /// If it does not build or cannot be started.
    pub async fn start(&self) -> Result<Process> {
        let mut process = self.prepared().await?.stdout(Output::Piped).stderr(Output::Piped).start()?;
        let stdout = Log::of(process.take_stdout().context("no stdout")?);
        let stderr = Log::of(process.take_stderr().context("no stderr")?);
        Ok(Process { process, stdout, stderr })
    }

    /// The program with its arguments and environment; its outputs are discarded.
    async fn prepared(&self) -> Result<chaos::Program> {
        let path = match self.source {
            Source::Workspace => build::binary(&self.name).await?,
            Source::Release => build::release_binary(&self.name).await?,
            Source::Path => self.name.clone().into(),
        };
        let mut program = chaos::Program::new(&self.name, path)
            .args(&self.arguments)
            .die_with_parent(&build::binary(CONSOLE).await?);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("GARENNE_") {
                program = program.env_remove(name);
            }
        }
        for (name, value) in &self.environment {
            program = program.env(name, value);
        }
        Ok(program)
    }

    /// Starts it and waits for its end.
    ///
    /// # Errors
    /// As [`start`](Self::start) and [`Process::ended`].
    pub async fn run(&self) -> Result<Ended> {
        self.start().await?.ended().await
    }
}

/// A running program. It is killed when the value is dropped.
#[derive(Debug)]
pub struct Process {
    process: chaos::Process,
    stdout: Log,
    stderr: Log,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Ended {
    /// The exit code; none if a signal ended it.
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
    pub fn id(&self) -> u32 {
        self.process.pid()
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

    /// The peak of its resident memory, in bytes.
    ///
    /// # Errors
    /// If it has ended.
    pub fn peak_memory(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
        let kib: u64 = peak.trim().trim_end_matches(" kB").parse().with_context(|| peak.to_owned())?;
        Ok(kib * 1024)
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Fails if it has ended.
    ///
    /// # Errors
    /// With the end of its standard error.
    pub fn check_alive(&mut self) -> Result<()> {
        match self.process.exit_status() {
            None => Ok(()),
            Some(status) => {
                anyhow::bail!("{} has ended ({status}): {}", self.process.name(), self.stderr.tail())
            }
        }
    }

    /// SIGKILL.
    ///
    /// # Errors
    /// As [`ended`](Self::ended).
    pub async fn kill(self) -> Result<Ended> {
        // An error means that it has ended.
        let _ = self.process.signal(Signal::KILL);
        self.ended().await
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If it does not end in time, with the end of its standard error.
    pub async fn ended(self) -> Result<Ended> {
        self.ended_within(WAIT_TIMEOUT).await
    }

    /// Waits at most `limit` for its end.
    ///
    /// # Errors
    /// As [`ended`](Self::ended).
    pub async fn ended_within(mut self, limit: Duration) -> Result<Ended> {
        let ended = async {
            let status = self.process.wait().await?;
            self.stdout.complete().await;
            self.stderr.complete().await;
            anyhow::Ok(status)
        };
        let status: ExitStatus = match timeout(limit, ended).await {
            Ok(status) => status?,
            Err(_) => {
                anyhow::bail!("{} did not end within {limit:?}: {}", self.process.name(), self.stderr.tail())
            }
        };
        Ok(Ended {
            code: status.code(),
            signal: status.signal(),
            stdout: self.stdout.lines(),
            stderr: self.stderr.lines(),
        })
    }
}
