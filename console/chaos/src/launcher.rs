//! Starts the programs of a run, with their files in one folder.

use std::{
    ffi::OsString,
    io,
    net::TcpListener,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};

use crate::process::{Output, Program};

/// Starts the programs beside the console, with a common folder and environment. Its processes die with this one.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The program `garenne`, through which processes start.
    console: Option<PathBuf>,
    /// The folder for logs and outputs.
    pub dir: PathBuf,
    /// Variables for every process; the last entry of a name counts.
    pub environment: Vec<(OsString, OsString)>,
    /// Variables of this process that no other process may see.
    pub hidden: Vec<OsString>,
}

impl Launcher {
    /// Prepares to start processes with their files in `dir`. `console` is the program `garenne`.
    #[must_use]
    pub fn new(console: PathBuf, dir: PathBuf) -> Self {
        Self { console: Some(console), dir, environment: Vec::new(), hidden: Vec::new() }
    }

    /// A launcher whose processes only end when their values are dropped.
    #[cfg(test)]
    pub(crate) fn without_console(dir: &Path) -> Self {
        Self { console: None, dir: dir.to_owned(), environment: Vec::new(), hidden: Vec::new() }
    }

    /// A program in the console's folder; it writes both outputs to `NAME.log`.
    ///
    /// # Errors
    /// If the program is missing.
    pub fn sibling(&self, name: &str, program: &str) -> Result<Program> {
        let folder = self.console.as_deref().and_then(Path::parent).unwrap_or(Path::new("."));
        let path = folder.join(program);
        if !path.is_file() {
            bail!("{program} is not in {}: build it with `cargo build --workspace --bins`", folder.display());
        }
        Ok(self.program(name, path))
    }

    /// A program by its path or its name in `PATH`; it writes both outputs to `NAME.log`.
    #[must_use]
    pub fn program(&self, name: &str, path: impl Into<PathBuf>) -> Program {
        let log = Output::File(self.dir.join(format!("{name}.log")));
        let mut program = Program::new(name, path).stdout(log.clone()).stderr(log);
        if let Some(console) = &self.console {
            program = program.die_with_parent(console);
        }
        for name in &self.hidden {
            program = program.env_remove(name);
        }
        for (name, value) in &self.environment {
            program = program.env(name, value);
        }
        program
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
