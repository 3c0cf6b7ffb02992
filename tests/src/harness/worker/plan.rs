//! A worker that has not been started.

use std::{fs, path::PathBuf, sync::Arc};

use anyhow::Result;
use serde_json::Value;

use super::{TOKEN, Worker};
use crate::harness::{
    process::{Process, Program},
    users::Topology,
};

/// A worker to start.
#[derive(Clone, Debug)]
pub struct WorkerPlan {
    program: Program,
    name: String,
    receipt: PathBuf,
    /// Declares its topology before it starts. Without it the worker does that itself.
    topology: Option<Arc<Topology>>,
}

impl WorkerPlan {
    /// A worker with this name, the bench kinds, and the arguments of `program`; its files are in `folder`.
    pub(in crate::harness) fn new(program: Program, name: &str, folder: &std::path::Path) -> Result<Self> {
        let receipt = folder.join(format!("{name}.receipt.json"));
        let token = folder.join("admin-token");
        fs::write(&token, TOKEN)?;
        let program = program
            .option("--worker-id", name)
            .option("--receipt", &receipt)
            .env("GARENNE_ADMIN", "127.0.0.1:0")
            .option("--admin-token-file", &token)
            .option("--log-format", "json")
            .env("GARENNE_ENABLE_BENCH", "true");
        Ok(Self { program, name: name.to_owned(), receipt, topology: None })
    }

    /// A worker whose topology is declared before it starts.
    pub(in crate::harness) fn on(self, topology: &Arc<Topology>) -> Self {
        Self { topology: Some(Arc::clone(topology)), ..self }
    }

    /// Adds an option and its value.
    #[must_use]
    pub fn option(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.program = self.program.option(name, value);
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.program = self.program.env(name, value);
        self
    }

    /// Writes results to standard output.
    #[must_use]
    pub fn stdout(self) -> Self {
        self.option("--sink", "stdout")
    }

    /// Configures a lane, such as `fast:prefetch=50,concurrency=2..4`. Can be repeated.
    #[must_use]
    pub fn lane(self, lane: &str) -> Self {
        self.option("--lane", lane)
    }

    /// Starts it without waiting until it is ready, for workers that are expected to fail.
    pub async fn launch(&self) -> Result<Process> {
        if let Some(topology) = &self.topology {
            topology.apply_for(&self.program).await?;
        }
        self.program.start().await
    }

    /// Starts it and waits until it consumes.
    pub async fn start(self) -> Result<Worker> {
        let mut worker = self.begin().await?;
        worker.until_ready().await?;
        Ok(worker)
    }

    /// Starts it and waits until its admin port is open, for workers that may end soon.
    pub async fn begin(self) -> Result<Worker> {
        let process = self.launch().await?;
        let address = process.stderr().until("the admin port's address", |lines| {
            lines.iter().find_map(|line| {
                let line: Value = serde_json::from_str(line).ok()?;
                find(&line, "address").map(str::to_owned)
            })
        });
        let admin = format!("http://{}", address.await?);
        Ok(Worker {
            process,
            name: self.name.clone(),
            receipt: self.receipt.clone(),
            admin,
            // An idle connection would keep the worker's admin port from closing.
            http: reqwest::Client::builder().pool_max_idle_per_host(0).build()?,
        })
    }
}

/// A text field of a JSON log line, at the top level or among its `fields`.
fn find<'a>(line: &'a Value, field: &str) -> Option<&'a str> {
    line.get(field).or_else(|| line.get("fields")?.get(field))?.as_str()
}
