//! Somebody else's worker: a program that does so many tasks, says `done`, and waits to be killed.

use std::{path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context, Result, bail};
use garenne_bench::{Usage, option};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

/// The longest that the slowest takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// A running rival; killed when dropped.
pub(crate) struct Rival {
    child: Child,
    pid: u32,
    words: Lines<BufReader<ChildStdout>>,
}

impl Rival {
    /// Where they are built: `--rivals`.
    pub(crate) fn folder() -> PathBuf {
        option("--rivals").map_or_else(|| "tests/rivals/target/release".into(), PathBuf::from)
    }

    pub(crate) fn start(program: &str, arguments: &[String]) -> Result<Self> {
        let path = Self::folder().join(program);
        let mut child = Command::new(&path)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| path.display().to_string())?;
        let pid = child.id().context("it has ended")?;
        let words = BufReader::new(child.stdout.take().context("it is piped")?).lines();
        Ok(Self { child, pid, words })
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage::of(self.pid)
    }

    /// Waits until it says so.
    pub(crate) async fn done(&mut self) -> Result<()> {
        loop {
            match timeout(PATIENCE, self.words.next_line())
                .await
                .context("it never says that it is done")??
            {
                Some(word) if word == "done" => return Ok(()),
                Some(_) => {}
                None => bail!("it ended before it was done: {:?}", self.child.wait().await?),
            }
        }
    }

    pub(crate) async fn kill(mut self) -> Result<()> {
        self.child.kill().await.context("it ended by itself")
    }
}
