//! Starts the programs of a run, with their files in one folder.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    net::TcpListener,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context, Result, bail, ensure};
use garenne_common::config::SecretUrl;
use garenne_operator::operator::Operator;
use tokio::process::Command;

use crate::{die_with_parent, process::Process};

/// Starts programs with a common folder and environment. Its processes die with this one.
#[derive(Clone, Debug)]
pub(crate) struct Launcher {
    /// This program, through which processes start. Without it they only end when their values are dropped.
    drill: Option<PathBuf>,
    /// The folder for logs and outputs.
    pub(crate) dir: PathBuf,
    /// Variables for every process; the last entry of a name counts. The variable `NAME_FILE` of this process is hidden:
    /// a setting that is given both as a value and as a file is rejected.
    environment: Vec<(String, OsString)>,
}

impl Launcher {
    /// A launcher whose processes get this program's settings. They are passed in the environment: other users of the
    /// machine can read a command line, and with it a password.
    pub(crate) fn new(operator: &Operator, dir: &Path, config: Option<&Path>) -> Result<Self> {
        let drill = Some(std::env::current_exe()?);
        let mut launcher = Self { drill, dir: dir.to_owned(), environment: Vec::new() };
        let settings = &operator.settings;
        launcher.set_url("GARENNE_AMQP_URL", &settings.common.amqp_url);
        launcher.set("GARENNE_PREFIX", &settings.common.prefix);
        if let Some(url) = &settings.postgres_url {
            launcher.set_url("GARENNE_POSTGRES_URL", url);
        }
        if let Some(path) = config {
            launcher.set("GARENNE_CONFIG", path);
        }
        Ok(launcher)
    }

    #[cfg(test)]
    pub(crate) fn without_settings(dir: &Path) -> Self {
        Self { drill: None, dir: dir.to_owned(), environment: Vec::new() }
    }

    /// Sets a variable.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.environment.push((name.to_owned(), value.into()));
    }

    /// Sets a variable to a URL: to the file that it came from, so that processes read a changed password too, or to
    /// the URL itself.
    pub(crate) fn set_url(&mut self, name: &str, url: &SecretUrl) {
        match url.file() {
            Some(file) => self.set(&format!("{name}_FILE"), file),
            None => self.set(name, url.expose()),
        }
    }

    /// A program in this program's folder.
    pub(crate) fn sibling(&self, program: &str) -> Result<Command> {
        let folder = self.drill.as_deref().and_then(Path::parent).unwrap_or(Path::new("."));
        let path = folder.join(program);
        if !path.is_file() {
            bail!("{program} is not in {}: build it with `cargo build --workspace --bins`", folder.display());
        }
        Ok(self.command(path.as_os_str()))
    }

    /// A program by its path or its name in `PATH`.
    pub(crate) fn command(&self, program: &OsStr) -> Command {
        let mut command = match &self.drill {
            Some(drill) => die_with_parent::command(drill, program),
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
    pub(crate) fn start(&self, name: &str, command: Command, output: Option<&Path>) -> Result<Process> {
        let log = self.dir.join(format!("{name}.log"));
        Process::start(name, command, output.unwrap_or(&log), &log)
    }
}

/// Creates the folder that the user chose, or a new one under the system's temporary folder. `stem` begins its name. A
/// folder with files in it is refused: logs of an earlier run would be counted.
pub(crate) fn create_run_folder(chosen: Option<&Path>, stem: &str) -> Result<PathBuf> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let temporary = || std::env::temp_dir().join(format!("{stem}-{now}-{}", std::process::id()));
    let folder = chosen.map_or_else(temporary, Path::to_owned);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create folder {}", folder.display()))?;
    let is_empty = fs::read_dir(&folder)?.next().is_none();
    ensure!(is_empty, "folder {} is not empty: logs of an earlier run would be counted", folder.display());
    Ok(folder)
}

/// A free port of the loopback interface: `preferred` if that is free. Another process may take it before it is used;
/// then the program that uses it reports that.
pub(crate) fn free_port(preferred: u16) -> io::Result<u16> {
    let bound =
        TcpListener::bind(("127.0.0.1", preferred)).or_else(|_| TcpListener::bind(("127.0.0.1", 0)))?;
    Ok(bound.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_files_in_it_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let chosen = dir.path().join("run");
        assert_eq!(create_run_folder(Some(&chosen), "garenne-test").unwrap(), chosen);
        fs::write(chosen.join("worker-1.ndjson"), "").unwrap();
        let refused = create_run_folder(Some(&chosen), "garenne-test").unwrap_err().to_string();
        let expected =
            format!("folder {} is not empty: logs of an earlier run would be counted", chosen.display());
        assert_eq!(refused, expected);
    }
}
