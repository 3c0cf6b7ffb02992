//! A `garenne-worker` process: its results, its admin port, and its receipt.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail, ensure};
use garenne_common::shutdown::Receipt;
use reqwest::StatusCode;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde::Deserialize;
use serde_json::Value;

use super::{
    process::{Process, Signal},
    readiness,
    wait::{Seen, eventually},
};

mod plan;

pub use plan::WorkerPlan;

/// The admin token of every test worker.
const TOKEN: &str = "test-token";

/// A running worker. It is killed when the value is dropped.
#[derive(Debug)]
pub struct Worker {
    process: Process,
    name: String,
    receipt: PathBuf,
    admin: String,
    http: reqwest::Client,
}

/// A result on standard output.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Done {
    /// The task's id.
    pub task_id: String,
    /// Its kind.
    pub kind: String,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The worker that executed it.
    pub worker: String,
    /// When it started, RFC 3339.
    pub started_at: String,
    /// Its duration.
    pub duration_ms: f64,
    /// Its output.
    pub output: Value,
}

/// The result of a clean shutdown.
#[derive(Debug)]
pub struct Stopped {
    /// The exit code.
    pub code: i32,
    /// Its receipt. It balances, and it equals the last line of standard error.
    pub receipt: Receipt,
    /// Every result it wrote.
    pub done: Vec<Done>,
}

/// How a worker ended.
#[derive(Debug)]
pub enum WorkerEnd {
    /// By a clean shutdown.
    Stopped(Stopped),
    /// By a signal, after these results.
    Crashed(Vec<Done>),
}

impl Stopped {
    /// The ids of the tasks that it executed, in order.
    #[must_use]
    pub fn ids(&self) -> Vec<&str> {
        self.done.iter().map(|done| done.task_id.as_str()).collect()
    }
}

impl Worker {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Fails if it has ended.
    ///
    /// # Errors
    /// With the end of its standard error.
    pub fn check_alive(&mut self) -> Result<()> {
        self.process.check_alive()
    }

    /// Whether it has closed its standard output: it has ended or is about to.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.process.stdout().is_closed()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Limits its address space to the present size plus `more` bytes. A worker that needs more crashes, without an
    /// effect on the machine.
    pub fn limit_memory(&self, more: u64) -> Result<()> {
        let pid = Pid::from_raw(self.id().try_into()?).context("a process id")?;
        let pages = fs::read_to_string(format!("/proc/{}/statm", self.id()))?;
        let pages: u64 = pages.split(' ').next().context("a number of pages")?.parse()?;
        let most = Some(pages * rustix::param::page_size() as u64 + more);
        prlimit(Some(pid), Resource::As, Rlimit { current: most, maximum: most })?;
        Ok(())
    }

    /// Waits until every lane consumes.
    ///
    /// # Errors
    /// If that does not happen in time, with the worker's own reasons.
    pub async fn until_ready(&mut self) -> Result<()> {
        readiness::until_ready(&mut self.process, (&self.http, &self.admin), &self.name, true).await
    }

    /// The last lines of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.process.stderr().tail()
    }

    /// Whether `/livez` answers with success.
    pub async fn is_live(&self) -> Result<bool> {
        Ok(self.http.get(format!("{}/livez", self.admin)).send().await?.status() == StatusCode::OK)
    }

    /// Waits until `/readyz` answers that it is not ready.
    pub async fn until_not_ready(&self) -> Result<()> {
        self.until_not_ready_for("").await
    }

    /// Waits until `/readyz` answers that it is not ready, with a reason that contains `reason`.
    pub async fn until_not_ready_for(&self, reason: &str) -> Result<()> {
        readiness::until_not_ready_for((&self.http, &self.admin), &self.name, reason).await
    }

    /// Waits until a metric, summed as by [`metric`](Self::metric), has this value.
    pub async fn until_metric(&self, name: &str, labels: &[&str], wanted: f64) -> Result<()> {
        eventually(format!("{name}{labels:?} of {} is {wanted}", self.name), async || {
            let value = self.metric(name, labels).await?;
            Ok(Seen::when((value - wanted).abs() < f64::EPSILON, value))
        })
        .await
    }

    /// The URL of a path of its admin port.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.admin)
    }

    /// `GET` of a path of its admin port.
    ///
    /// # Errors
    /// If it does not answer, or not with success.
    pub async fn get(&self, path: &str) -> Result<String> {
        let answer = self.http.get(format!("{}{path}", self.admin)).send().await?;
        Ok(answer.error_for_status()?.text().await?)
    }

    /// `POST` to a path of its admin port, with the token.
    ///
    /// # Errors
    /// If it does not answer, or not with success.
    pub async fn post(&self, path: &str) -> Result<String> {
        let request = self.http.post(format!("{}{path}", self.admin)).bearer_auth(TOKEN);
        Ok(request.send().await?.error_for_status()?.text().await?)
    }

    /// The sum of a metric over all series whose line has each of `labels`, such as `lane="fast"`.
    pub async fn metric(&self, name: &str, labels: &[&str]) -> Result<f64> {
        let found = self.find_metric(name, labels).await?;
        found.with_context(|| format!("no metric {name} with {labels:?}"))
    }

    /// As [`metric`](Self::metric), or `None` if there is no such series.
    pub async fn find_metric(&self, name: &str, labels: &[&str]) -> Result<Option<f64>> {
        let text = self.get("/metrics").await?;
        let series = text.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' '])) && labels.iter().all(|it| line.contains(it))
        });
        let values = series.map(|line| Ok(line.rsplit(' ').next().context("a value")?.parse::<f64>()?));
        let values: Vec<_> = values.collect::<Result<_>>()?;
        Ok((!values.is_empty()).then(|| values.iter().sum()))
    }

    /// Waits until a lane's pool runs and queues exactly this many tasks.
    pub async fn until_holds(&self, lane: &str, running: usize, queued: usize) -> Result<()> {
        let what = format!("{} runs {running} and queues {queued} in {lane}", self.name);
        eventually(what, async || {
            let pool: Value = serde_json::from_str(&self.get("/pool").await?)?;
            let lane = &pool["lanes"][lane];
            let held = (lane["running"].as_u64(), lane["queued"].as_u64());
            Ok(Seen::when(held == (Some(running as u64), Some(queued as u64)), format_args!("{held:?}")))
        })
        .await
    }

    /// The results so far.
    pub fn done(&self) -> Result<Vec<Done>> {
        parse(&self.process.stdout().lines())
    }

    /// Waits for at least this many results.
    pub async fn until_done(&self, count: usize) -> Result<Vec<Done>> {
        let enough = |lines: &[String]| (lines.len() >= count).then_some(());
        self.process.stdout().until(&format!("{count} results"), enough).await?;
        self.done()
    }

    /// Waits for the result of a task.
    pub async fn until_done_with(&self, id: &str) -> Result<Done> {
        let what = format!("the result of {id}");
        let quoted = format!("\"task_id\":\"{id}\"");
        let find = |lines: &[String]| lines.iter().find(|line| line.contains(&quoted)).cloned();
        Ok(serde_json::from_str(&self.process.stdout().until(&what, find).await?)?)
    }

    /// Waits for a line of its log that contains `text`.
    pub async fn until_logged(&self, text: &str) -> Result<String> {
        let find = |lines: &[String]| lines.iter().find(|line| line.contains(text)).cloned();
        self.process.stderr().until(text, find).await
    }

    /// SIGTERM, then [`stopped`](Self::stopped).
    pub async fn stop(self) -> Result<Stopped> {
        self.signal(Signal::TERM)?;
        self.stopped().await
    }

    /// Waits for the end of a requested shutdown and reads the receipt.
    ///
    /// # Errors
    /// If it does not end in time, a signal ended it, or its receipt does not balance or differs between the file and
    /// the last line of standard error.
    pub async fn stopped(self) -> Result<Stopped> {
        match self.ended().await? {
            WorkerEnd::Stopped(stopped) => Ok(stopped),
            WorkerEnd::Crashed(done) => bail!("a signal ended it, after {} results", done.len()),
        }
    }

    /// Waits for its end, by a shutdown or a signal.
    pub async fn ended(self) -> Result<WorkerEnd> {
        let ended = self.process.ended().await?;
        let log = ended.stderr.join("\n");
        let Some(code) = ended.code else { return Ok(WorkerEnd::Crashed(parse(&ended.stdout)?)) };
        let file = fs::read_to_string(&self.receipt).with_context(|| format!("no receipt file: {log}"))?;
        let last = ended.stderr.last().context("nothing on standard error")?;
        ensure!(file.trim_end() == last, "the receipt file says {file}, the last line {last}");
        let receipt: Receipt = serde_json::from_str(last)?;
        ensure!(receipt.balances(), "the receipt does not balance: {last}");
        ensure!(receipt.worker == self.name, "the receipt is another worker's: {last}");
        Ok(WorkerEnd::Stopped(Stopped { code, receipt, done: parse(&ended.stdout)? }))
    }

    /// Waits until a signal ends it, such as that of an abort, and returns the results that it wrote.
    pub async fn crashed(self) -> Result<Vec<Done>> {
        match self.ended().await? {
            WorkerEnd::Crashed(done) => Ok(done),
            WorkerEnd::Stopped(stopped) => bail!("it exited with {}", stopped.code),
        }
    }

    /// SIGKILL: no receipt, only the results that it wrote.
    pub async fn kill(self) -> Result<Vec<Done>> {
        parse(&self.process.kill().await?.stdout)
    }
}

fn parse(lines: &[String]) -> Result<Vec<Done>> {
    lines.iter().map(|line| serde_json::from_str(line).with_context(|| format!("result {line}"))).collect()
}
