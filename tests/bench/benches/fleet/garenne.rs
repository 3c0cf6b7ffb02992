//! `garenne-worker` processes.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use garenne_bench::{Usage, option};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    task::JoinHandle,
};

use crate::{broker::Broker, rival::scripts};

/// Limit for a worker to become ready or to stop.
const WORKER_TIMEOUT: Duration = Duration::from_secs(30);

/// The worker's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Build {
    /// The program of `--worker`.
    Now,
    /// An older program to compare with, of `--before`.
    Before,
    /// The example with this number of kinds, of `--many-kinds`.
    ManyKinds(u32),
    /// The same with one kind, whose handler has two layers.
    TwoLayers,
}

impl Build {
    /// The builds to compare: this one, and that of `--before` if it is given. With each the prefix of its rows.
    pub(crate) fn compared(name: &str) -> Vec<(Self, String)> {
        let before = option("--before").map(|_| (Self::Before, format!("{name}-before")));
        std::iter::once((Self::Now, name.to_owned())).chain(before).collect()
    }

    fn program(self) -> String {
        let now = || option("--worker").unwrap_or_else(|| "target/dist/garenne-worker".to_owned());
        match self {
            Self::Now => now(),
            Self::Before => option("--before").unwrap_or_else(now),
            Self::ManyKinds(_) | Self::TwoLayers => {
                option("--many-kinds").unwrap_or_else(|| "target/dist/examples/many_kinds".to_owned())
            }
        }
    }

    fn kinds(self) -> u32 {
        match self {
            Self::ManyKinds(kinds) => kinds,
            Self::Now | Self::Before | Self::TwoLayers => 1,
        }
    }
}

/// A running worker. It is killed when the value is dropped.
pub(crate) struct Garenne {
    process: Child,
    pid: u32,
    admin: String,
    http: reqwest::Client,
    results: Lines<BufReader<ChildStdout>>,
    // Reads its log to the end, because a full pipe would block the worker.
    _log: JoinHandle<()>,
}

impl Garenne {
    pub(crate) async fn version() -> Result<String> {
        let program = Build::Now.program();
        let output = Command::new(&program).arg("--version").output().await.context(program)?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().replace("garenne-worker ", ""))
    }

    /// Starts a worker and waits for its admin port, which is open before it consumes.
    pub(crate) async fn start(build: Build, amqp_url: &str, arguments: &[String]) -> Result<Self> {
        let mut process = Command::new(build.program())
            .args(["--amqp-url", amqp_url, "--admin", "127.0.0.1:0", "--log-format", "json"])
            .args(matches!(build, Build::Now | Build::Before).then_some("--enable-bench"))
            .args(arguments)
            .env("MANY_KINDS", build.kinds().to_string())
            .envs((build == Build::TwoLayers).then_some(("TWO_LAYERS", "1")))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start garenne-worker")?;
        let pid = process.id().context("it runs")?;
        let mut log = BufReader::new(process.stderr.take().context("it is piped")?).lines();
        let mut last = String::new();
        let admin = loop {
            let Some(line) = log.next_line().await? else { bail!("garenne-worker ended: {last}") };
            if let Some(address) = address(&line) {
                break format!("http://{address}");
            }
            last = line;
        };
        let results = BufReader::new(process.stdout.take().context("it is piped")?).lines();
        let log = tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
        Ok(Self { process, pid, admin, http: reqwest::Client::new(), results, _log: log })
    }

    /// Starts a worker that consumes nothing until [`resume`](Self::resume).
    pub(crate) async fn start_quiet(amqp_url: &str, arguments: &[String]) -> Result<Self> {
        let worker = Self::start(Build::Now, amqp_url, arguments).await?;
        worker.signal(Signal::TSTP)?;
        Ok(worker)
    }

    /// Makes a quiet worker consume.
    pub(crate) fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Declares the topology by starting and stopping a worker.
    pub(crate) async fn declare_topology(broker: &Broker, shards: u16) -> Result<()> {
        let worker = Self::start(Build::Now, broker.amqp_url(), &with_lane(shards, false)?).await?;
        worker.ready().await?;
        worker.stop().await
    }

    /// The next result on standard output, for a worker with that sink.
    pub(crate) async fn result(&mut self) -> Result<String> {
        let line = tokio::time::timeout(WORKER_TIMEOUT, self.results.next_line()).await??;
        line.context("it ended without a result")
    }

    /// Waits until every lane consumes.
    pub(crate) async fn ready(&self) -> Result<()> {
        let until = Instant::now() + WORKER_TIMEOUT;
        while !self.get("readyz").await.is_ok_and(|answer| answer.status().is_success()) {
            ensure!(Instant::now() < until, "garenne-worker did not become ready");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage::of(self.pid)
    }

    /// Waits until this many processes of handlers can run tasks.
    pub(crate) async fn until_handlers(&self, processes: u64) -> Result<()> {
        let until = Instant::now() + WORKER_TIMEOUT;
        while self.metric("garenne_handler_processes{").await? < processes {
            ensure!(Instant::now() < until, "the processes of the handler did not start");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// The number of settled deliveries, whatever their settlement.
    pub(crate) async fn settled(&self) -> Result<u64> {
        self.metric("garenne_settlements_total{lane=\"fast\"").await
    }

    /// Waits until `count` deliveries are settled. Each poll costs the worker a fraction of a millisecond.
    pub(crate) async fn until_settled(&self, count: u64, every: Duration) -> Result<()> {
        let until = Instant::now() + WORKER_TIMEOUT;
        loop {
            let settled = self.settled().await?;
            if settled >= count {
                return Ok(());
            }
            ensure!(Instant::now() < until, "garenne-worker settled {settled} of {count}");
            tokio::time::sleep(every).await;
        }
    }

    /// Waits until its fast lane holds `count` tasks.
    pub(crate) async fn until_holds(&self, count: u64) -> Result<()> {
        let until = Instant::now() + WORKER_TIMEOUT;
        loop {
            let held = self.metric("garenne_pool_queue_length{lane=\"fast\"").await?;
            if held >= count {
                return Ok(());
            }
            ensure!(Instant::now() < until, "garenne-worker holds {held} of {count}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Stops it cleanly.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        let ended = tokio::time::timeout(WORKER_TIMEOUT, self.process.wait()).await??;
        ensure!(ended.success(), "garenne-worker ended with {ended}");
        Ok(())
    }

    pub(crate) async fn kill(mut self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.process.wait().await?;
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.pid.try_into()?).context("a process id")?;
        Ok(kill_process(pid, signal)?)
    }

    /// The sum of the metrics whose lines begin with `prefix`.
    async fn metric(&self, prefix: &str) -> Result<u64> {
        let metrics = self.get("metrics").await?.text().await?;
        let lines = metrics.lines().filter(|line| line.starts_with(prefix));
        Ok(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
    }

    async fn get(&self, path: &str) -> reqwest::Result<reqwest::Response> {
        self.http.get(format!("{}/{path}", self.admin)).send().await
    }
}

/// The arguments of a worker whose fast lane has this number of queues, and receives calls of Celery or not.
pub(crate) fn with_lane(shards: u16, celery: bool) -> Result<Vec<String>> {
    if shards == 1 && !celery {
        return Ok(Vec::new());
    }
    let file = std::env::temp_dir().join(format!("garenne-bench-{shards}-shards-{celery}.toml"));
    std::fs::write(&file, format!("[lanes.fast]\nshards = {shards}\ncelery = {celery}\n"))?;
    Ok(vec!["--config".to_owned(), file.display().to_string()])
}

/// The settings of a handler in Python that does nothing.
pub(crate) fn python_handler(processes: u16) -> String {
    let (rivals, sdk) = (scripts(), concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk/python/src"));
    format!(
        "command = [\"python3\", \"-m\", \"garenne\", \"noop:noop\"]\nprocesses = {processes}\n\
         environment.PYTHONPATH = \"{sdk}:{rivals}\""
    )
}

/// The arguments of a worker with a handler of these settings.
pub(crate) fn with_handler(kind: &str, settings: &str) -> Result<Vec<String>> {
    let file = std::env::temp_dir().join(format!("garenne-bench-{}.toml", std::process::id()));
    std::fs::write(&file, format!("[handlers.\"{kind}\"]\n{settings}\n"))?;
    Ok(vec!["--config".to_owned(), file.display().to_string()])
}

/// The address of the admin port, if this line of the log has it.
pub(crate) fn address(line: &str) -> Option<String> {
    let line: Value = serde_json::from_str(line).ok()?;
    let field = line.get("address").or_else(|| line.get("fields")?.get("address"))?;
    Some(field.as_str()?.to_owned())
}
