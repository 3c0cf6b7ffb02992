//! Garenne's programs as processes: their output, their exit codes, and signals to them.

mod build;
mod log;
mod terminal;

use std::{
    ffi::{OsStr, OsString},
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use garenne_common::exit::Exit;
use garenne_drill::die_with_parent;
use rustix::process::{Pid, kill_process};
use tokio::{
    process::{Child, Command},
    time::{Instant, timeout},
};

pub(in crate::harness) use self::build::binary;
pub use self::{
    build::binaries,
    log::Log,
    terminal::{FullScreen, Screen},
};
pub use rustix::process::Signal;

use super::wait::WAIT_TIMEOUT;

/// The program that starts processes that end with this one.
const DRILL: &str = "garenne-drill";

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
    /// A program of `PATH`, and its arguments, that executes this program.
    launcher: Vec<OsString>,
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
            launcher: Vec::new(),
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// The console with this broker URL and these arguments.
    #[must_use]
    pub fn garenne(amqp_url: &str, arguments: &[&str]) -> Self {
        Self::new("garenne").option("--amqp-url", amqp_url).args(arguments)
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

    /// Starts it through a program of `PATH`, such as `unshare`, which gets the path and the arguments of this one behind its
    /// own and executes it.
    #[must_use]
    pub fn through(self, launcher: &[&OsStr]) -> Self {
        Self { launcher: launcher.iter().map(|word| (*word).to_owned()).collect(), ..self }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        arguments.into_iter().fold(self, Self::arg)
    }

    /// Adds an option and its value.
    #[must_use]
    pub fn option(self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.arg(name).arg(value)
    }

    /// Sets an environment variable. The process does not inherit the test's `GARENNE_` variables.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    pub(super) fn environment(&self) -> &[(String, String)] {
        &self.environment
    }

    /// Starts it.
    pub async fn start(&self) -> Result<Process> {
        let mut command = self.prepared().await?;
        let started = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = started.with_context(|| format!("cannot start {}", self.name))?;
        let pid = child.id().context("no process id")?;
        let stdout = Log::of(child.stdout.take().context("no stdout")?);
        let stderr = Log::of(child.stderr.take().context("no stderr")?);
        Ok(Process { name: self.name.clone(), pid, child, stdout, stderr })
    }

    /// The program with its arguments and environment, in a process group of its own.
    async fn prepared(&self) -> Result<Command> {
        let path = match self.source {
            Source::Workspace => build::binary(&self.name).await?,
            Source::Release => build::release_binary(&self.name).await?,
            Source::Path => self.name.clone().into(),
        };
        let words = [&self.launcher[..], &[path.into_os_string()], &self.arguments].concat();
        let mut command = die_with_parent::command(&build::binary(DRILL).await?, &words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).process_group(0).kill_on_drop(true);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("GARENNE_") {
                command.env_remove(name);
            }
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    /// Starts it and waits for its end.
    pub async fn run(&self) -> Result<Ended> {
        self.start().await?.ended().await
    }

    /// As [`run`](Self::run), with a standard output whose reading end is closed, as `head -1` closes it.
    pub async fn run_unread(&self) -> Result<Ended> {
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let mut command = self.prepared().await?;
        let child = command.stdout(writer).stderr(Stdio::piped()).spawn()?;
        let ended = timeout(WAIT_TIMEOUT, child.wait_with_output()).await;
        let ended = ended.with_context(|| format!("{} did not end", self.name))??;
        let stderr = String::from_utf8_lossy(&ended.stderr).lines().map(str::to_owned).collect();
        Ok(Ended { code: ended.status.code(), signal: ended.status.signal(), stdout: Vec::new(), stderr })
    }

    /// As [`run`](Self::run), and again while the broker is unavailable: under the load of other scenarios, it may not answer in
    /// time.
    pub async fn run_until_answered(&self) -> Result<Ended> {
        let until = Instant::now() + WAIT_TIMEOUT;
        loop {
            let ended = self.run().await?;
            if ended.code != Some(Exit::BrokerUnavailable as i32) || Instant::now() >= until {
                return Ok(ended);
            }
        }
    }

    /// As [`run_until_answered`](Self::run_until_answered). Fails if the program does.
    pub async fn succeed(&self) -> Result<Ended> {
        let ended = self.run_until_answered().await?;
        ensure!(ended.code == Some(0), "{} {:?}: {ended:?}", self.name, self.arguments);
        Ok(ended)
    }
}

/// A running program. It is killed when the value is dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: u32,
    child: Child,
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
        self.pid
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
    pub fn peak_memory(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
        let kib: u64 = peak.trim().trim_end_matches(" kB").parse().with_context(|| peak.to_owned())?;
        Ok(kib * 1024)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        // A process that was waited for has no id: the number may belong to another process.
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let pid = pid.with_context(|| format!("{} has ended", self.name))?;
        kill_process(pid, signal).with_context(|| format!("cannot signal {}", self.name))
    }

    /// Fails if it has ended.
    ///
    /// # Errors
    /// With the end of its standard error.
    pub fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                anyhow::bail!("{} has ended ({status}): {}", self.name, self.stderr.tail())
            }
        }
    }

    /// SIGKILL.
    pub async fn kill(self) -> Result<Ended> {
        // An error means that it has ended.
        let _ = self.signal(Signal::KILL);
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
    pub async fn ended_within(mut self, limit: Duration) -> Result<Ended> {
        let ended = async {
            let status = self.child.wait().await?;
            self.stdout.complete().await;
            self.stderr.complete().await;
            anyhow::Ok(status)
        };
        let status: ExitStatus = match timeout(limit, ended).await {
            Ok(status) => status?,
            Err(_) => {
                anyhow::bail!("{} did not end within {limit:?}: {}", self.name, self.stderr.tail())
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
