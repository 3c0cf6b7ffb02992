//! The command line of a worker.
//!
//! [`run`] is the `main` of a worker with handlers of its own. A program with further flags or settings flattens
//! [`WorkerArgs`] into its own `clap` type and calls [`WorkerArgs::run`].

use clap::{CommandFactory, FromArgMatches, Parser, ValueHint};
use garenne_common::{
    config::{self, CommonArgs, ConfigError, LaneArgs, Settings},
    exit::{self, Exit, Failure, HasExit},
    shutdown::signal,
    stdout,
    telemetry::tracing,
};
use serde::Serialize;
use toml::Table;

use crate::{
    layer::Layer,
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
    /// The settings from these flags and the program's `own` flags, the environment and the file. `own` has the values of
    /// the own flags that were given, by setting name.
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
    pub async fn run<C, L>(
        self,
        own: Table,
        build: impl FnOnce(C) -> Result<WorkerBuilder<L>, Failure>,
    ) -> Result<Exit, Failure>
    where
        C: Settings + AsRef<WorkerConfig>,
        L: Layer,
    {
        self.run_logging(tracing::DEFAULT_FILTER, own, build).await
    }

    async fn run_logging<C, L>(
        self,
        log_filter: &str,
        own: Table,
        build: impl FnOnce(C) -> Result<WorkerBuilder<L>, Failure>,
    ) -> Result<Exit, Failure>
    where
        C: Settings + AsRef<WorkerConfig>,
        L: Layer,
    {
        let config: C = self.config(own)?;
        if self.common.print_config {
            stdout::print(config::print_config(&config))?;
            return Ok(Exit::Done);
        }
        let worker = config.as_ref();
        tracing::init_filtered(&worker.common, log_filter)?;
        panics::install_hook();
        let (sender, commands) = signal::commands(worker.shutdown_mode).map_err(anyhow::Error::from)?;
        let receipt_file = worker.receipt.clone();
        let worker = build(config)?.build()?.with_admin_port();
        let receipt = worker.run(sender, commands).await?;
        match receipt_file {
            Some(path) => receipt.write_to(&path).map_err(anyhow::Error::from)?,
            None => receipt.print(),
        }
        Ok(receipt.exit())
    }
}

/// A program, as its command line and its errors name it.
///
/// ```
/// let program = garenne::cli::Program::new("greeter").version(env!("CARGO_PKG_VERSION"));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Program {
    name: &'static str,
    version: Option<&'static str>,
    log_filter: Option<&'static str>,
}

impl Program {
    /// A program with this name. It has no flag `--version`.
    pub const fn new(name: &'static str) -> Self {
        Self { name, version: None, log_filter: None }
    }

    /// Sets what `--version` prints after the name.
    #[must_use]
    pub const fn version(self, version: &'static str) -> Self {
        Self { version: Some(version), ..self }
    }
}

impl Program {
    /// Sets what is logged if neither `GARENNE_LOG` nor `RUST_LOG` is set [default: from `info` on what the library and a crate with the
    /// program's name log, and warnings of others].
    #[must_use]
    pub const fn log_filter(self, log_filter: &'static str) -> Self {
        Self { log_filter: Some(log_filter), ..self }
    }

    fn command(&self) -> clap::Command {
        let command = Cli::command().name(self.name);
        match self.version {
            Some(version) => command.version(version),
            None => command,
        }
    }

    fn default_log_filter(&self) -> String {
        let own = self.name.replace('-', "_");
        match self.log_filter {
            Some(filter) => filter.to_owned(),
            None if own.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'_') => {
                format!("{},{own}=info", tracing::DEFAULT_FILTER)
            }
            None => tracing::DEFAULT_FILTER.to_owned(),
        }
    }
}

impl From<&'static str> for Program {
    fn from(name: &'static str) -> Self {
        Self::new(name)
    }
}

/// Consumes tasks, runs their handlers and settles them.
#[derive(Debug, Parser)]
#[command(about)]
struct Cli {
    #[command(flatten)]
    worker: WorkerArgs,
}

/// The `main` of a worker: parses the command line, adds layers, data and handlers with `register`, and runs until a signal
/// or the admin port stops it. The name of the `program` begins the line on stderr that says why a start failed.
///
/// `register` may return any error, through `?` too. The exit code is that of a [`Failure`], 78 for an error of a setting, and
/// 1 for any other.
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
pub fn run<L: Layer>(
    program: impl Into<Program>,
    register: impl FnOnce(WorkerBuilder) -> anyhow::Result<WorkerBuilder<L>>,
) -> Exit {
    let program = program.into();
    let (name, log_filter) = (program.name, program.default_log_filter());
    let parsed = Cli::from_arg_matches(&program.command().get_matches());
    let Cli { worker } = parsed.unwrap_or_else(|error| error.exit());
    let build = |config| register(Worker::builder(config)).map_err(failure);
    block_on(name, worker.run_logging(&log_filter, Table::new(), build))
}

/// The failure of a start, with the exit code of a setting if it is the error of one.
fn failure(error: anyhow::Error) -> Failure {
    match error.downcast_ref::<ConfigError>() {
        Some(setting) => Failure::new(setting.exit(), format_args!("{error:#}")),
        None => error.into(),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_and_log_filter_are_those_of_the_program() {
        let program = Program::new("mail-worker").version("1.2.3");
        let printed = program.command().try_get_matches_from(["mail-worker", "--version"]).unwrap_err();
        assert_eq!(printed.to_string(), "mail-worker 1.2.3\n");
        let unknown =
            Program::from("mail-worker").command().try_get_matches_from(["mail-worker", "--version"]);
        assert!(unknown.unwrap_err().to_string().contains("unexpected argument '--version'"));
        assert_eq!(program.default_log_filter(), "warn,garenne=info,lapin=off,mail_worker=info");
        assert_eq!(Program::new("a.b=c").default_log_filter(), "warn,garenne=info,lapin=off");
        assert_eq!(program.log_filter("debug").default_log_filter(), "debug");
    }
}
