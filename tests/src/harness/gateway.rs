//! `garenne-producer serve` as a process, and requests to it.

use std::{ffi::OsStr, path::Path, sync::Arc};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

use super::{
    port,
    process::{Ended, Process, Program, Signal},
    readiness,
    test_env::TestEnv,
    users::Topology,
    wait::{Seen, eventually},
};

/// A gateway to start. It can be started repeatedly and keeps its port.
#[derive(Clone, Debug)]
pub struct GatewayPlan {
    program: Program,
    address: String,
    /// Declares its topology before it starts. Without it the gateway does that itself.
    topology: Option<Arc<Topology>>,
}

impl GatewayPlan {
    /// A gateway for the test environment's virtual host on a free port, with only the permissions that it needs.
    pub fn new(env: &TestEnv) -> Result<Self> {
        let users = env.users();
        Ok(Self { topology: Some(Arc::clone(&users.topology)), ..Self::at(&users.gateway)? })
    }

    /// A gateway with this broker URL. It declares its topology itself.
    pub fn at(amqp_url: &str) -> Result<Self> {
        let mut plan = Self::without_broker()?;
        plan.program = plan.program.option("--amqp-url", amqp_url);
        Ok(plan)
    }

    /// A gateway that reads the broker's URL from a file.
    pub fn reading(file: &Path) -> Result<Self> {
        Ok(Self::without_broker()?.env("GARENNE_AMQP_URL_FILE", file.display().to_string()))
    }

    /// A gateway without the URL of a broker.
    pub fn without_broker() -> Result<Self> {
        let address = format!("127.0.0.1:{}", port::free_port()?);
        let program = Program::new("garenne-producer")
            .arg("serve")
            .option("--listen", &address)
            .option("--admin", "127.0.0.1:0");
        Ok(Self { program, address, topology: None })
    }

    /// Adds an option and its value.
    #[must_use]
    pub fn option(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.program = self.program.option(name, value);
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.program = self.program.env(name, value);
        self
    }

    /// Builds the gateway with release optimizations, for a measurement.
    #[must_use]
    pub fn optimized(mut self) -> Self {
        self.program = self.program.optimized();
        self
    }

    /// Mounts a file system with these options (`size=4m`) at an existing folder, for this process only.
    #[must_use]
    pub fn on_disk(mut self, folder: &Path, options: &str) -> Self {
        let mount = format!("mount -t tmpfs -o {options} spool \"$0\" && exec \"$@\"");
        let words = ["unshare", "--map-root-user", "--mount", "sh", "-c", &mount].map(OsStr::new);
        self.program = self.program.through(&[&words[..], &[folder.as_os_str()]].concat());
        self
    }

    /// Host and port of its sensors' side.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Starts it without waiting until it is ready.
    pub async fn launch(&self) -> Result<Process> {
        if let Some(topology) = &self.topology {
            topology.apply_for(&self.program).await?;
        }
        self.program.start().await
    }

    /// Starts it and waits until it listens for sensors.
    pub async fn start(&self) -> Result<Gateway> {
        let gateway = self.begin().await?;
        let open =
            |lines: &[String]| lines.iter().any(|line| line.contains("gateway is listening")).then_some(());
        gateway.process.stderr().until("the gateway's port", open).await?;
        Ok(gateway)
    }

    /// Starts it and waits until its admin port is open, which is before it listens for sensors.
    pub async fn begin(&self) -> Result<Gateway> {
        let process = self.launch().await?;
        let admin = process.stderr().until("the admin port's address", |lines| {
            let line = lines.iter().find(|line| line.contains("admin port is open"))?;
            Some(line.rsplit("address=").next()?.trim().to_owned())
        });
        let admin = format!("http://{}", admin.await?);
        Ok(Gateway { process, address: self.address.clone(), admin, http: reqwest::Client::new() })
    }
}

/// A running gateway. It is killed when the value is dropped.
#[derive(Debug)]
pub struct Gateway {
    process: Process,
    address: String,
    admin: String,
    http: reqwest::Client,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// `Retry-After`, in seconds.
    pub retry_after: Option<u64>,
    /// The body; null if it is not JSON.
    pub body: Value,
}

impl Answer {
    /// The task ids of an answer with status 202; any other status is an error.
    pub fn ids(&self) -> Result<Vec<String>> {
        ensure!(self.status == 202, "{} {}", self.status, self.body);
        serde_json::from_value(self.body["ids"].clone()).context("a 202 without ids")
    }
}

impl Gateway {
    /// Its URL for sensors.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Host and port for sensors.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether `/livez` answers with success.
    pub async fn is_live(&self) -> Result<bool> {
        Ok(self.http.get(format!("{}/livez", self.admin)).send().await?.status().is_success())
    }

    /// The process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Waits until `/readyz` answers that it is ready, or that it is not.
    pub async fn until_ready(&mut self, ready: bool) -> Result<()> {
        readiness::until_ready(&mut self.process, (&self.http, &self.admin), "the gateway", ready).await
    }

    /// Waits until `/readyz` answers that it is not ready, with a reason that contains `reason`.
    pub async fn until_not_ready_for(&self, reason: &str) -> Result<()> {
        readiness::until_not_ready_for((&self.http, &self.admin), "the gateway", reason).await
    }

    /// Waits until its metrics have a series that begins like this.
    pub async fn until_metric(&self, series: &str) -> Result<()> {
        let url = format!("{}/metrics", self.admin);
        eventually(format!("the metric {series}"), async || {
            let metrics = self.http.get(&url).send().await?.text().await?;
            Ok(Seen::when(metrics.lines().any(|line| line.starts_with(series)), "it is missing"))
        })
        .await
    }

    /// `POST`s a body.
    pub async fn post(&self, path: &str, content_type: &str, body: impl Into<String>) -> Result<Answer> {
        let request = self.http.post(format!("{}{path}", self.url()));
        let response = request.header("content-type", content_type).body(body.into()).send().await?;
        let status = response.status().as_u16();
        let retry_after = response.headers().get("retry-after").and_then(|it| it.to_str().ok()?.parse().ok());
        let body = response.bytes().await?;
        Ok(Answer { status, retry_after, body: serde_json::from_slice(&body).unwrap_or_default() })
    }

    /// Sends all lines on one connection and then reads an answer for each.
    pub async fn lines(&self, lines: &[&str]) -> Result<Vec<String>> {
        let mut stream = BufReader::new(TcpStream::connect(&self.address).await?);
        stream.write_all(format!("{}\n", lines.join("\n")).as_bytes()).await?;
        let mut answers = Vec::new();
        for _ in lines {
            let mut answer = String::new();
            ensure!(stream.read_line(&mut answer).await? > 0, "no answer after {answers:?}");
            answers.push(answer.trim_end().to_owned());
        }
        Ok(answers)
    }

    /// Sends SIGTERM and waits for the end.
    pub async fn stop(self) -> Result<Ended> {
        self.process.signal(Signal::TERM)?;
        self.process.ended().await
    }

    /// Sends SIGKILL and waits for the end.
    pub async fn kill(self) -> Result<Ended> {
        self.process.kill().await
    }
}
