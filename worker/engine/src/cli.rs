//! The command line of a worker.
//!
//! [`run`] is the `main` of a worker with handlers of its own. A program with further flags or settings flattens
//! [`WorkerArgs`] into its own `clap` type and calls [`WorkerArgs::run`].

use clap::{Parser, ValueHint};
use garenne_common::{
    config::{self, CommonArgs, ConfigError, LaneArgs, Settings},
    exit::{self, Exit, Failure},
    shutdown::signal,
    stdout,
    telemetry::tracing,
};
use serde::Serialize;
use toml::Table;

use crate::{
    panics,
    settings::WorkerConfig,
    worker::{Worker, WorkerBuilder},
};

/// Flags of every worker. They set fields of [`WorkerConfig`].
#[derive(Debug, clap::Args, Serialize)]
pub struct WorkerArgs {
    #[command(flatten)]
    #[serde(skip)]
    common: CommonArgs,
    #[command(flatten)]
    #[serde(skip)]
    lanes: LaneArgs,
    /// Sink that stores results: stdout, results, or one that this program adds; repeatable [default: none]
    #[arg(long = "sink", value_name = "SINK")]
    #[serde(skip)]
    sinks: Vec<String>,
    /// Shutdown mode: light, soft, soft-timeout or hard [default: soft-timeout]
    #[arg(long, value_name = "MODE")]
    shutdown_mode: Option<String>,
    /// Time after which soft-timeout becomes hard [default: 25s]
    #[arg(long, value_name = "TIME")]
    shutdown_timeout: Option<String>,
    /// Time that a hard stop waits for tasks to return [default: 2s]
    #[arg(long, value_name = "TIME")]
    hard_grace: Option<String>,
    /// File for the shutdown receipt, besides stderr
    #[arg(long, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    receipt: Option<String>,
    /// Name in logs, results and listings, unique in the fleet [default: host name and a random part]
    #[arg(long, value_name = "NAME")]
    worker_id: Option<String>,
    /// Maximum number of attempts for kinds that set none [default: 5]
    #[arg(long, value_name = "N")]
    max_attempts: Option<String>,
    /// Largest body that is processed; larger ones become dead letters [default: 4MiB]
    #[arg(long, value_name = "SIZE")]
    max_payload: Option<String>,
}

impl WorkerArgs {
    /// The settings from these flags and the program's `own` flags, the environment and the file.
    ///
    /// # Errors
    /// The first invalid setting.
    pub fn config<C: Settings>(&self, mut own: Table) -> Result<C, ConfigError> {
        self.lanes.add_to(&mut own)?;
        if !self.sinks.is_empty() {
            own.insert("sinks".into(), self.sinks.join(",").into());
        }
        own.extend(Table::try_from(self).expect("flags are texts"));
        config::load(self.common.sources(own))
    }

    /// Runs a worker until a signal or the admin port stops it. `own` are the program's own flags; `build` makes a
    /// worker of the settings.
    ///
    /// # Errors
    /// The reason why the worker did not start, with the exit code.
    pub async fn run<C>(
        self,
        own: Table,
        build: impl FnOnce(C) -> Result<WorkerBuilder, Failure>,
    ) -> Result<Exit, Failure>
    where
        C: Settings + AsRef<WorkerConfig>,
    {
        let config: C = self.config(own)?;
        if self.common.print_config {
            stdout::print(config::print_config(&config))?;
            return Ok(Exit::Done);
        }
        let worker = config.as_ref();
        tracing::init(&worker.common)?;
        panics::install_hook();
        let (sender, commands) = signal::commands(worker.shutdown_mode).map_err(anyhow::Error::from)?;
        let receipt_file = worker.receipt.clone();
        let worker = build(config)?.build()?;
        let receipt = worker.run(sender, commands).await?;
        match receipt_file {
            Some(path) => receipt.write_to(&path).map_err(anyhow::Error::from)?,
            None => receipt.print(),
        }
        Ok(receipt.exit())
    }
}

/// Consumes tasks, runs their handlers and settles them.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(flatten)]
    worker: WorkerArgs,
}

/// The `main` of a worker: parses the command line, adds handlers with `register`, and runs until a signal or the
/// admin port stops it. `program` begins the line on stderr that says why a start failed.
///
/// ```no_run
/// # use garenne::{Exit, TaskContext, TaskError, cli, json_payload};
/// # #[derive(serde::Deserialize)]
/// # struct Greet { name: String }
/// # json_payload!(Greet, "demo.greet");
/// # async fn greet(_: TaskContext, greet: Greet) -> Result<String, TaskError> { Ok(greet.name) }
/// fn main() -> Exit {
///     cli::run("greeter", |worker| Ok(worker.handle(greet)))
/// }
/// ```
pub fn run(program: &str, register: impl FnOnce(WorkerBuilder) -> Result<WorkerBuilder, Failure>) -> Exit {
    let Cli { worker } = Cli::parse();
    block_on(program, worker.run(Table::new(), |config| register(Worker::builder(config))))
}

/// Runs a worker's future on the runtime that a worker needs: one thread for the broker's side. Handlers have a runtime
/// of their own.
///
/// # Panics
/// If the operating system starts no thread.
pub fn block_on(program: &str, run: impl Future<Output = Result<Exit, Failure>>) -> Exit {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("broker")
        .enable_all()
        .build()
        .expect("the operating system starts threads");
    let exit = exit::report(program, runtime.block_on(run));
    // The process ends now. A shutdown would cancel a connection attempt of lapin, which panics then and would print
    // that after the receipt.
    std::mem::forget(runtime);
    exit
}
