//! A child process with its files: started, signalled, waited for.

use std::{
    ffi::{OsStr, OsString},
    fs::{File, OpenOptions},
    io,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use thiserror::Error;
use tokio::process::{Child, Command};

/// A child that could not be started or went wrong.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// The program is not where it should be.
    #[error("{program} is not in {}: build it with `cargo build --workspace --bins`", folder.display())]
    NoProgram {
        /// The program.
        program: String,
        /// Where it was looked for.
        folder: PathBuf,
    },
    /// The system refused.
    #[error("{name} cannot be started: {source}")]
    Start {
        /// The child's name.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// It ended though nobody told it to.
    #[error("{name} ended ({status}): {last} (log: {})", log.display())]
    Ended {
        /// The child's name.
        name: String,
        /// How.
        status: String,
        /// Its last line on stderr.
        last: String,
        /// Its stderr.
        log: PathBuf,
    },
    /// It runs and is not ready.
    #[error("{name} is not ready after {} s: {last} (log: {})", patience.as_secs(), log.display())]
    NotReady {
        /// The child's name.
        name: String,
        /// How long was waited.
        patience: Duration,
        /// Its last line on stderr.
        last: String,
        /// Its stderr.
        log: PathBuf,
    },
}

/// Starts children that are leashed to this process.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// This executable, which becomes the child.
    leash: PathBuf,
    /// Where logs and outputs go.
    pub dir: PathBuf,
    /// Environment for every child.
    pub environment: Vec<(OsString, OsString)>,
    /// Variables no child shall see.
    pub hidden: Vec<OsString>,
}

/// A running child. Dropped, it is killed.
#[derive(Debug)]
pub struct Process {
    /// Its name in logs and on screen.
    pub name: String,
    /// Its process id while it runs.
    pub pid: u32,
    /// Its stderr.
    pub log: PathBuf,
    child: Child,
}

impl Launcher {
    /// Starts children with their files in `dir`.
    ///
    /// # Errors
    /// This executable's own path cannot be found out.
    pub fn new(dir: &Path) -> io::Result<Self> {
        let leash = std::env::current_exe()?;
        Ok(Self { leash, dir: dir.to_owned(), environment: Vec::new(), hidden: Vec::new() })
    }

    /// With another executable to hold the leash, where this one is no console (tests).
    #[must_use]
    pub fn leashed_by(mut self, leash: PathBuf) -> Self {
        self.leash = leash;
        self
    }

    /// A program that lies beside the console.
    ///
    /// # Errors
    /// [`ProcessError::NoProgram`].
    pub fn sibling(&self, program: &str) -> Result<PathBuf, ProcessError> {
        let folder = self.leash.parent().unwrap_or(Path::new(".")).to_owned();
        let path = folder.join(program);
        if path.is_file() {
            Ok(path)
        } else {
            Err(ProcessError::NoProgram { program: program.into(), folder })
        }
    }

    /// Starts `program`; stderr goes to `NAME.log`, stdout to `stdout` or the log.
    ///
    /// # Errors
    /// [`ProcessError::Start`].
    pub fn start(
        &self,
        name: &str,
        program: &OsStr,
        arguments: impl IntoIterator<Item = OsString>,
        stdout: Option<&Path>,
    ) -> Result<Process, ProcessError> {
        let failed = |source| ProcessError::Start { name: name.to_owned(), source };
        let log = self.dir.join(format!("{name}.log"));
        let append =
            |path: &Path| -> io::Result<File> { OpenOptions::new().create(true).append(true).open(path) };
        let errors = append(&log).map_err(failed)?;
        let output = match stdout {
            Some(path) => append(path).map_err(failed)?,
            None => errors.try_clone().map_err(failed)?,
        };
        let mut command = Command::new(&self.leash);
        command.arg("leash").arg(std::process::id().to_string()).arg(program).args(arguments);
        for name in &self.hidden {
            command.env_remove(name);
        }
        command
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            // Ctrl-C on the terminal is for the console, which stops its children in order.
            .process_group(0)
            .kill_on_drop(true);
        let child = command.spawn().map_err(failed)?;
        let pid = child.id().unwrap_or_default();
        Ok(Process { name: name.to_owned(), pid, log, child })
    }
}

impl Process {
    /// Sends a signal; nothing happens to a child that has ended.
    pub fn signal(&self, signal: Signal) {
        // The id is the child's own until it has been waited for.
        if let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)) {
            let _ = kill_process(pid, signal);
        }
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for its end, at most `patience`; killed after that.
    pub async fn end_within(&mut self, patience: Duration) -> Option<ExitStatus> {
        if let Ok(status) = tokio::time::timeout(patience, self.child.wait()).await {
            return status.ok();
        }
        self.signal(Signal::KILL);
        self.child.wait().await.ok()
    }

    /// The last line it wrote to stderr.
    pub fn last_line(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing").to_owned()
    }

    /// The error of a child that should still run.
    pub fn error(&self, status: ExitStatus) -> ProcessError {
        let status = status.to_string();
        ProcessError::Ended { name: self.name.clone(), status, last: self.last_line(), log: self.log.clone() }
    }

    /// Waits until `url` answers with success.
    ///
    /// # Errors
    /// [`ProcessError::Ended`] or [`ProcessError::NotReady`].
    pub async fn ready(
        &mut self,
        http: &reqwest::Client,
        url: &str,
        patience: Duration,
    ) -> Result<(), ProcessError> {
        let give_up = tokio::time::Instant::now() + patience;
        loop {
            if let Some(status) = self.ended() {
                return Err(self.error(status));
            }
            if answers(http, url).await {
                return Ok(());
            }
            if tokio::time::Instant::now() > give_up {
                let (name, log) = (self.name.clone(), self.log.clone());
                return Err(ProcessError::NotReady { name, patience, last: self.last_line(), log });
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Whether an address answers with success right now.
pub async fn answers(http: &reqwest::Client, url: &str) -> bool {
    http.get(url).send().await.is_ok_and(|answer| answer.status().is_success())
}

/// A free port of the loopback interface, `wish` where that is free. Others may take it before it is
/// used: whoever uses it says so.
pub fn free_port(wish: u16) -> io::Result<u16> {
    let bound = TcpListener::bind(("127.0.0.1", wish)).or_else(|_| TcpListener::bind(("127.0.0.1", 0)))?;
    Ok(bound.local_addr()?.port())
}
