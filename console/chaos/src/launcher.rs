//! Starts the programs of a run, with their files in one folder.

use std::{
    ffi::{OsStr, OsString},
    io,
    net::TcpListener,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};
use tokio::process::Command;

use crate::{die_with_parent, process::Process};

/// Starts programs with a common folder and environment. Its processes die with this one.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The program `garenne`, through which processes start.
    console: Option<PathBuf>,
    /// The folder for logs and outputs.
    pub dir: PathBuf,
    /// Variables for every process; the last entry of a name counts. The variable `NAME_FILE` of this process is hidden:
    /// a setting that is given both as a value and as a file is rejected.
    pub environment: Vec<(String, OsString)>,
}

impl Launcher {
    /// Prepares to start processes with their files in `dir`. `console` is the program `garenne`.
    pub fn new(console: PathBuf, dir: PathBuf) -> Self {
        Self { console: Some(console), dir, environment: Vec::new() }
    }

    /// A launcher whose processes only end when their values are dropped.
    #[cfg(test)]
    pub(crate) fn without_console(dir: &Path) -> Self {
        Self { console: None, dir: dir.to_owned(), environment: Vec::new() }
    }

    /// A program in the console's folder.
    ///
    /// # Errors
    /// If the program is missing.
    pub fn sibling(&self, program: &str) -> Result<Command> {
        let folder = self.console.as_deref().and_then(Path::parent).unwrap_or(Path::new("."));
        let path = folder.join(program);
        if !path.is_file() {
            bail!("{program} is not in {}: build it with `cargo build --workspace --bins`", folder.display());
        }
        Ok(self.command(path.as_os_str()))
    }

    /// A program by its path or its name in `PATH`.
    pub fn command(&self, program: &OsStr) -> Command {
        let mut command = match &self.console {
            Some(console) => die_with_parent::command(console, program),
            None => Command::new(program),
        };
        for (name, value) in &self.environment {
            // A setting is given by its value or by its file, not by both.
            let other = name.strip_suffix("_FILE").map_or_else(|| format!("{name}_FILE"), str::to_owned);
            command.env(name, value).env_remove(other);
        }
        command
    }

    /// Starts a process. Its outputs are appended to `NAME.log`, or standard output to another file.
    ///
    /// # Errors
    /// If the system refuses to start it.
    pub fn start(&self, name: &str, command: Command, output: Option<&Path>) -> Result<Process> {
        let log = self.dir.join(format!("{name}.log"));
        Process::start(name, command, output.unwrap_or(&log), &log)
    }
}

/// A free port of the loopback interface: `preferred` if that is free. Another process may take it before it is used;
/// then the program that uses it reports that.
///
/// # Errors
/// The system's error, if it has no free port.
pub fn free_port(preferred: u16) -> io::Result<u16> {
    let bound =
        TcpListener::bind(("127.0.0.1", preferred)).or_else(|_| TcpListener::bind(("127.0.0.1", 0)))?;
    Ok(bound.local_addr()?.port())
}
