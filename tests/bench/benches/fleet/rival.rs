//! The worker of another library: a program that runs a number of tasks, reports the end, and waits to be killed.

use std::{
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use garenne_bench::{Usage, flag, option};
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

fn scripts() -> String {
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
        let mut process = Command::new(path)
            .args(script)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let pid = process.id().context("it runs")?;
        let output = BufReader::new(process.stdout.take().context("it is piped")?).lines();
        Ok(Self { process, pid, output })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn ended(&mut self) -> Result<ExitStatus> {
        Ok(self.process.wait().await?)
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage::of(self.pid())
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
