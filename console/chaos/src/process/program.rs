//! A program with everything that its processes start with.

use std::{
    ffi::{OsStr, OsString},
    fs::{File, OpenOptions},
    io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use anyhow::{Result, anyhow};
use tokio::process::Command;

use super::Process;
use crate::die_with_parent;

/// Where an output stream of a process goes.
#[derive(Clone, Debug)]
pub enum Output {
    /// It is discarded.
    Null,
    /// To this process; see [`Process::take_stdout`] and [`Process::take_stderr`].
    Piped,
    /// It is appended to this file.
    File(PathBuf),
    /// To an open file, such as a terminal.
    Open(Arc<File>),
}

impl Output {
    fn stdio(&self) -> io::Result<Stdio> {
        Ok(match self {
            Self::Null => Stdio::null(),
            Self::Piped => Stdio::piped(),
            Self::File(path) => OpenOptions::new().create(true).append(true).open(path)?.into(),
            Self::Open(file) => file.try_clone()?.into(),
        })
    }
}

/// A program, its arguments and its environment. Each [`start`](Self::start) makes a process of it.
///
/// Standard input is empty, and both outputs are discarded unless set. A process leads a process group of its own, so
/// that Ctrl-C on the terminal reaches only this process, which stops its children itself.
#[derive(Clone, Debug)]
pub struct Program {
    name: String,
    path: PathBuf,
    arguments: Vec<OsString>,
    /// Without a value the variable is removed. The last entry of a name counts.
    environment: Vec<(OsString, Option<OsString>)>,
    stdout: Output,
    stderr: Output,
    own_group: bool,
    die_with_parent: Option<PathBuf>,
}

impl Program {
    /// A program by its path, or by its name in `PATH`. `name` names the process in logs and errors.
    #[must_use]
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            path: path.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            stdout: Output::Null,
            stderr: Output::Null,
            own_group: true,
            die_with_parent: None,
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().to_owned(), Some(value.as_ref().to_owned())));
        self
    }

    /// Hides an environment variable of this process.
    #[must_use]
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().to_owned(), None));
        self
    }

    /// Where standard output goes.
    #[must_use]
    pub fn stdout(self, stdout: Output) -> Self {
        Self { stdout, ..self }
    }

    /// Where standard error goes.
    #[must_use]
    pub fn stderr(self, stderr: Output) -> Self {
        Self { stderr, ..self }
    }

    /// Keeps the process in this process's group: Ctrl-C on the terminal ends both.
    #[must_use]
    pub fn in_this_group(self) -> Self {
        Self { own_group: false, ..self }
    }

    /// Kills the process when the thread that started it ends, however that happens. `console` is the program
    /// `garenne`; see [`die_with_parent`].
    #[must_use]
    pub fn die_with_parent(self, console: &Path) -> Self {
        Self { die_with_parent: Some(console.to_owned()), ..self }
    }

    /// Starts a process.
    ///
    /// # Errors
    /// If the system refuses to start it.
    pub fn start(&self) -> Result<Process> {
        self.start_process().map_err(|error| anyhow!("cannot start {}: {error}", self.name))
    }

    fn start_process(&self) -> io::Result<Process> {
        let mut command = match &self.die_with_parent {
            Some(console) => {
                let mut command = Command::new(console);
                command.arg(die_with_parent::COMMAND).arg(std::process::id().to_string()).arg(&self.path);
                command
            }
            None => Command::new(&self.path),
        };
        for (name, value) in &self.environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if self.own_group {
            command.process_group(0);
        }
        let child = command
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(self.stdout.stdio()?)
            .stderr(self.stderr.stdio()?)
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().ok_or_else(|| io::Error::other("the process has no id"))?;
        let log = match &self.stderr {
            Output::File(path) => Some(path.clone()),
            _ => None,
        };
        Ok(Process { name: self.name.clone(), pid, child, log })
    }
}
