//! `garenne-worker` as a user runs it.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use garenne_bench::{Usage, option};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStderr, Command},
};

/// The longest that a worker may take to get ready or to stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running worker; killed when dropped.
pub(crate) struct Garenne {
    child: Child,
    pid: u32,
    admin: String,
    http: reqwest::Client,
    // Kept open: a worker must not stumble over a log that nobody takes.
    _log: Lines<BufReader<ChildStderr>>,
}

impl Garenne {
    /// The program that `--worker` names.
    pub(crate) fn program() -> String {
        option("--worker").unwrap_or_else(|| "target/release/garenne-worker".to_owned())
    }

    pub(crate) async fn version() -> Result<String> {
        let output = Command::new(Self::program()).arg("--version").output().await.context(Self::program())?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().replace("garenne-worker ", ""))
    }

    /// Starts one and waits for its admin port, which it has before it consumes.
    pub(crate) async fn start(amqp_url: &str, arguments: &[String]) -> Result<Self> {
        let mut child = Command::new(Self::program())
            .args([
                "--amqp-url",
                amqp_url,
                "--enable-bench",
                "--admin",
                "127.0.0.1:0",
                "--log-format",
                "json",
            ])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(Self::program)?;
        let pid = child.id().context("it has ended")?;
        let mut log = BufReader::new(child.stderr.take().context("it is piped")?).lines();
        let mut said = String::new();
        let admin = loop {
            let Some(line) = log.next_line().await? else { bail!("garenne-worker ended: {said}") };
            if let Some(address) = address(&line) {
                break format!("http://{address}");
            }
            said = line;
        };
        Ok(Self { child, pid, admin, http: reqwest::Client::new(), _log: log })
    }

    /// Waits until every lane consumes.
    pub(crate) async fn ready(&self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while !self.get("readyz").await.is_ok_and(|answer| answer.status().is_success()) {
            ensure!(Instant::now() < until, "garenne-worker does not get ready");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage::of(self.pid)
    }

    /// Deliveries settled, in whatever way.
    pub(crate) async fn settled(&self) -> Result<u64> {
        let metrics = self.get("metrics").await?.text().await?;
        let counts =
            metrics.lines().filter(|line| line.starts_with("garenne_settlements_total{lane=\"fast\""));
        Ok(counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
    }

    /// Waits until so many are.
    pub(crate) async fn until_settled(&self, count: u64) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let settled = self.settled().await?;
            if settled >= count {
                return Ok(());
            }
            ensure!(Instant::now() < until, "garenne-worker settled {settled} of {count}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Stops it in order.
    pub(crate) async fn stop(mut self) -> Result<()> {
        let pid = rustix::process::Pid::from_raw(self.pid.try_into()?).context("a process id")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await??;
        ensure!(ended.success(), "garenne-worker ended with {ended}");
        Ok(())
    }

    async fn get(&self, path: &str) -> reqwest::Result<reqwest::Response> {
        self.http.get(format!("{}/{path}", self.admin)).send().await
    }
}

/// The address of the admin port, where a line of the log tells it.
fn address(line: &str) -> Option<String> {
    let line: Value = serde_json::from_str(line).ok()?;
    let field = line.get("address").or_else(|| line.get("fields")?.get("address"))?;
    Some(field.as_str()?.to_owned())
}
