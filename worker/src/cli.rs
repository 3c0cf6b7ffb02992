//! The stock worker's command line.

use std::{path::PathBuf, sync::Arc};

use clap::Parser;
use garenne_common::{
    config::{self, CommonArgs, LaneArgs, flag},
    exit::{Exit, Failure},
    shutdown::signal,
    telemetry::tracing,
};
use toml::Table;

use crate::{
    alarm::Rules,
    builtin, panics,
    settings::WorkerConfig,
    sink::postgres::{Silences, StoredReadings},
    worker::{Worker, WorkerBuilder},
};

/// Consumes tasks, runs them, settles them.
#[derive(Debug, Parser)]
#[command(name = "garenne-worker", version, about, after_help = EXAMPLES)]
pub struct Cli {
    #[command(flatten)]
    common: CommonArgs,
    #[command(flatten)]
    lanes: LaneArgs,
    /// Where results go: stdout, results or postgres; repeatable [default: nowhere]
    #[arg(long = "sink", value_name = "SINK")]
    sinks: Vec<String>,
    /// Postgres for that sink, such as postgres://user:password@127.0.0.1/garenne
    #[arg(long, value_name = "URL")]
    postgres_url: Option<String>,
    /// How to stop: light, soft, soft-timeout or hard [default: soft-timeout]
    #[arg(long, value_name = "MODE")]
    shutdown_mode: Option<String>,
    /// What soft-timeout waits before it turns hard [default: 25s]
    #[arg(long, value_name = "TIME")]
    shutdown_timeout: Option<String>,
    /// What a hard stop waits for tasks to return [default: 2s]
    #[arg(long, value_name = "TIME")]
    hard_grace: Option<String>,
    /// File for the shutdown receipt, besides stderr
    #[arg(long, value_name = "FILE")]
    receipt: Option<PathBuf>,
    /// Name in logs, results and listings, unique in the fleet [default: host name and a random part]
    #[arg(long, value_name = "NAME")]
    worker_id: Option<String>,
    /// Attempts at most where a kind names no number [default: 5]
    #[arg(long, value_name = "N")]
    max_attempts: Option<String>,
    /// Largest body that is tried; larger ones are dead letters [default: 4MiB]
    #[arg(long, value_name = "SIZE")]
    max_payload: Option<String>,
    /// Calibration of reading.process, TOML
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    /// Rules that stored readings are watched with, TOML; needs --sink postgres
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Take the bench.* kinds too, which can be told to block, panic and abort
    #[arg(long)]
    enable_bench: bool,
}

const EXAMPLES: &str = "\
Examples:
  garenne-worker --amqp-url amqp://guest:guest@127.0.0.1:5672/%2f --sink stdout
  garenne-worker --lane fast:prefetch=500,concurrency=2..16 --lane slow --shutdown-mode soft
  garenne-worker --sink postgres --postgres-url postgres://garenne@127.0.0.1/garenne --receipt /tmp/receipt.json";

impl Cli {
    /// The settings these flags, the environment and the file give.
    fn config(&self) -> Result<WorkerConfig, config::ConfigError> {
        let mut own = Table::new();
        self.lanes.add_to(&mut own)?;
        if !self.sinks.is_empty() {
            own.insert("sinks".into(), self.sinks.join(",").into());
        }
        flag(&mut own, "postgres_url", self.postgres_url.as_ref());
        flag(&mut own, "shutdown_mode", self.shutdown_mode.as_ref());
        flag(&mut own, "shutdown_timeout", self.shutdown_timeout.as_ref());
        flag(&mut own, "hard_grace", self.hard_grace.as_ref());
        flag(&mut own, "receipt", self.receipt.as_ref().map(|path| path.display()));
        flag(&mut own, "worker_id", self.worker_id.as_ref());
        flag(&mut own, "max_attempts", self.max_attempts.as_ref());
        flag(&mut own, "max_payload", self.max_payload.as_ref());
        flag(&mut own, "calibration", self.calibration.as_ref().map(|path| path.display()));
        flag(&mut own, "rules", self.rules.as_ref().map(|path| path.display()));
        flag(&mut own, "enable_bench", self.enable_bench.then_some(true));
        config::load(self.common.sources(own))
    }

    /// Runs a worker whose handlers `register` adds, until a signal or the admin port stops it.
    ///
    /// # Errors
    /// What kept it from starting, with the code to exit with.
    pub async fn run(
        self,
        register: impl FnOnce(WorkerBuilder) -> Result<WorkerBuilder, Failure>,
    ) -> Result<Exit, Failure> {
        let config = self.config()?;
        if self.common.print_config {
            print!("{}", config::print_config(&config));
            return Ok(Exit::Done);
        }
        tracing::init(config.common.log_format)?;
        panics::in_one_line();
        let (sender, commands) = signal::commands(config.shutdown_mode).map_err(anyhow::Error::from)?;
        let receipt_file = config.receipt.clone();
        let worker = register(Worker::builder(config))?.build().map_err(crate::WorkerError::from)?;
        let receipt = worker.run(sender, commands).await?;
        match receipt_file {
            Some(path) => receipt.write_to(&path).map_err(anyhow::Error::from)?,
            None => receipt.print(),
        }
        Ok(receipt.exit())
    }
}

/// Adds the stock kinds, as the settings say.
///
/// # Errors
/// A calibration file that cannot be used.
pub fn stock(builder: WorkerBuilder) -> Result<WorkerBuilder, Failure> {
    let config = builder.config();
    let (calibration, bench) = (config.calibration.clone(), config.enable_bench);
    let calibration = match calibration {
        Some(path) => {
            builtin::reading::Calibration::load(&path).map_err(|e| Failure::new(Exit::Config, e))?
        }
        None => builtin::reading::Calibration::default(),
    };
    let config = builder.config();
    let stored = |database| StoredReadings::new(database?, &config.common.prefix);
    let store = config.database().map(stored).transpose().map_err(crate::WorkerError::from)?;
    let builder = builtin::reading::task::register(builder, calibration);
    let builder = watched(builder)?;
    let builder = builtin::window::task::register(builder, store);
    let builder = builtin::spectrum::task::register(builder);
    let alert = builder.config().alert.clone();
    let builder = builtin::alert::task::register(builder, alert);
    Ok(if bench { builtin::bench::register(builder) } else { builder })
}

/// Adds the rules of the settings, and what looks for silence.
fn watched(builder: WorkerBuilder) -> Result<WorkerBuilder, Failure> {
    let config = builder.config();
    let (Some(path), Some(database)) = (&config.rules, config.database()) else { return Ok(builder) };
    let rules = Rules::load(path).map_err(|e| Failure::new(Exit::Config, e))?;
    for kind in [builtin::alert::task::KIND, builtin::reading::watch::KIND] {
        if config.lanes.taking(kind).is_none() {
            let problem = format!("setting rules: no lane takes {kind}, which rules start");
            return Err(Failure::new(Exit::Config, problem));
        }
    }
    // A worker of another lane may know webhooks that this one does not; one of this lane must.
    let here =
        config.lanes.taking(builtin::alert::task::KIND).is_some_and(|lane| config.lanes.get(lane).is_some());
    if let Some((rule, webhook)) =
        rules.webhooks().find(|(_, name)| here && !config.alert.webhooks.contains_key(*name))
    {
        let problem =
            format!("rule {rule:?}: no webhook {webhook:?}, alert.webhooks.{webhook}.url is not set");
        return Err(Failure::new(Exit::Config, problem));
    }
    let rules = Arc::new(rules);
    let silences = database
        .and_then(|database| Silences::new(database, &config.common.prefix, Arc::clone(&rules)))
        .map_err(crate::WorkerError::from)?;
    Ok(builtin::reading::watch::register(builder.rules(rules), silences))
}
