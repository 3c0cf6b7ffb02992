//! The worker of another library: a program that runs a number of tasks, reports the end, and waits to be killed.

use std::{
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use garenne_bench::{flag, option};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

/// Timeout of the slowest rival.
const RIVAL_TIMEOUT: Duration = Duration::from_secs(300);

/// With `--python`, the interpreter of an environment in which the rivals are installed.
pub(crate) fn python() -> Option<PathBuf> {
    flag("--python").then(|| option("--interpreter").unwrap_or_else(|| "python3".to_owned()).into())
}

/// The folder of the programs in Python.
pub(crate) fn scripts() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../rivals/python").to_owned()
}

/// A running rival. It is killed when the value is dropped.
pub(crate) struct Rival {
    process: Child,
    pid: u32,
    output: Lines<BufReader<ChildStdout>>,
}

impl Rival {
    /// The folder of their binaries, which `--rivals` sets.
    pub(crate) fn folder() -> PathBuf {
        option("--rivals").map_or_else(|| "tests/rivals/target/release".into(), PathBuf::from)
    }

    pub(crate) fn start(program: &str, arguments: &[String]) -> Result<Self> {
        let path = match program.strip_suffix(".py") {
            Some(_) => python().context("--python is missing")?,
            None => Self::folder().join(program),
        };
        let script = program.ends_with(".py").then(|| format!("{}/{program}", scripts()));
        let arguments = script.into_iter().chain(arguments.iter().cloned());
        Self::spawn(Command::new(path).args(arguments).stderr(Stdio::null()), program)
    }

    /// Starts `bare_http`, which `--bare-http` sets.
    pub(crate) fn bare_http(arguments: &[&str]) -> Result<Self> {
        let program = option("--bare-http").unwrap_or_else(|| "target/dist/examples/bare_http".to_owned());
        Self::spawn(Command::new(&program).args(arguments), &program)
    }

    fn spawn(command: &mut Command, program: &str) -> Result<Self> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let started = command.kill_on_drop(true).spawn();
        let mut process = started.with_context(|| format!("cannot start {program}"))?;
        let pid = process.id().context("it runs")?;
        let output = BufReader::new(process.stdout.take().context("it is piped")?).lines();
        Ok(Self { process, pid, output })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// The next line that it writes.
    pub(crate) async fn line(&mut self) -> Result<String> {
        self.output.next_line().await?.context("the program has ended")
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn ended(&mut self) -> Result<ExitStatus> {
        Ok(self.process.wait().await?)
    }

    /// Waits until it has done `count` tasks: it writes `done` at the end, or `+` for each task.
    pub(crate) async fn done(&mut self, count: u32) -> Result<()> {
        let mut done = 0;
        while done < count {
            let line = timeout(RIVAL_TIMEOUT, self.output.next_line()).await;
            match line.context("the rival did not report the end in time")?? {
                Some(line) if line == "done" => break,
                Some(line) => done += u32::from(line == "+"),
                None => bail!("the rival ended before it was done: {:?}", self.process.wait().await?),
            }
        }
        Ok(())
    }

    /// Kills it and the processes that it forked, which are in its process group.
    pub(crate) async fn kill(mut self) -> Result<()> {
        let group = Pid::from_raw(self.pid.try_into()?).context("a process id")?;
        kill_process_group(group, Signal::KILL)?;
        self.process.wait().await?;
        Ok(())
    }
}
