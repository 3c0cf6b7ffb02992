//! A worker that was not started yet.

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
    /// A worker of this name with the bench kinds and what `program` has; its files are in `folder`.
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

    /// Sets a variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.program = self.program.env(name, value);
        self
    }

    /// Results to standard output.
    #[must_use]
    pub fn stdout(self) -> Self {
        self.option("--sink", "stdout")
    }

    /// One lane, such as `fast:prefetch=50,concurrency=2..4`; repeatable.
    #[must_use]
    pub fn lane(self, lane: &str) -> Self {
        self.option("--lane", lane)
    }

    /// Starts it without waiting for anything: for workers that are expected to fail at their start.
    ///
    /// # Errors
    /// If it cannot be started.
    pub async fn launch(&self) -> Result<Process> {
        if let Some(topology) = &self.topology {
            topology.suit(&self.program).await?;
        }
        self.program.start().await
    }

    /// Starts it and waits until it consumes.
    ///
    /// # Errors
    /// If it ends before that, or does not consume in time.
    pub async fn start(self) -> Result<Worker> {
        let mut worker = self.begin().await?;
        worker.until_ready().await?;
        Ok(worker)
    }

    /// Starts it and waits until its admin port is open: for workers that may end soon.
    ///
    /// # Errors
    /// If it ends before that, or does not open the port in time.
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
