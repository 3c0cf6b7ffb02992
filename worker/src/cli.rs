//! The stock worker's command line.

use std::{path::PathBuf, sync::Arc};

use clap::Parser;
use garenne::{Worker, WorkerArgs, WorkerBuilder};
use garenne_common::{
    config::{Lanes, flag},
    exit::{Exit, Failure},
};
use garenne_postgres::{Database, PostgresReadingStore, PostgresSilenceDetector, PostgresSink};
use garenne_sensors::{alarm::Rules, alert, reading, spectrum, store::ReadingStore, window};
use toml::Table;

use crate::{bench, settings::StockConfig};

/// Consumes tasks, runs their handlers and settles them.
#[derive(Debug, Parser)]
#[command(name = "garenne-worker", version, about, after_help = EXAMPLES)]
pub struct Cli {
    #[command(flatten)]
    worker: WorkerArgs,
    /// Database of the sink postgres, such as postgres://user:password@127.0.0.1/garenne
    #[arg(long, value_name = "URL")]
    postgres_url: Option<String>,
    /// Calibration of reading.process, TOML
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    /// Alarm rules for stored readings, TOML; needs --sink postgres
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Add the bench.* kinds, which can block, panic and abort on request
    #[arg(long)]
    enable_bench: bool,
}

const EXAMPLES: &str = "\
Examples:
  garenne-worker --amqp-url amqp://guest:guest@127.0.0.1:5672/%2f --sink stdout
  garenne-worker --lane fast:prefetch=500,concurrency=2..16 --lane slow --shutdown-mode soft
  garenne-worker --sink postgres --postgres-url postgres://garenne@127.0.0.1/garenne --receipt /tmp/receipt.json";

impl Cli {
    /// Runs the stock worker until a signal or the admin port stops it.
    ///
    /// # Errors
    /// The reason why the worker did not start, with the exit code.
    pub async fn run(self) -> Result<Exit, Failure> {
        let mut own = Table::new();
        flag(&mut own, "postgres_url", self.postgres_url.as_ref());
        flag(&mut own, "calibration", self.calibration.as_ref().map(|path| path.display()));
        flag(&mut own, "rules", self.rules.as_ref().map(|path| path.display()));
        flag(&mut own, "enable_bench", self.enable_bench.then_some(true));
        self.worker.run(own, stock).await
    }
}

/// A worker with the stock kinds and the sink `postgres`, as the settings say.
///
/// # Errors
/// A calibration or rules file that cannot be used, or a database URL that cannot be parsed.
pub fn stock(config: StockConfig) -> Result<WorkerBuilder, Failure> {
    let calibration = match &config.calibration {
        Some(path) => reading::Calibration::load(path).map_err(|e| Failure::new(Exit::Config, e))?,
        None => reading::Calibration::default(),
    };
    let prefix = &config.worker.common.prefix;
    let database = config.database().transpose()?;
    let store = database.clone().map(|database| PostgresReadingStore::new(database, prefix)).transpose()?;
    let store = store.map(|store| Arc::new(store) as Arc<dyn ReadingStore>);
    let rules = rules(&config)?.map(Arc::new);

    let mut builder = Worker::builder(config.worker.clone());
    builder = reading::task::register(builder, calibration, config.max_clock_skew);
    builder = window::task::register(builder, store);
    builder = spectrum::task::register(builder);
    builder = alert::task::register(builder, config.alert.clone());
    if let Some(database) = database {
        if let Some(rules) = &rules {
            let detector = PostgresSilenceDetector::new(database.clone(), prefix, Arc::clone(rules))?;
            builder = reading::watch::register(builder, Arc::new(detector));
        }
        builder = with_postgres(builder, &config, database, rules.unwrap_or_default());
    }
    Ok(if config.enable_bench { bench::register(builder) } else { builder })
}

/// Adds the sink `postgres`, opened when the worker starts.
fn with_postgres(
    builder: WorkerBuilder,
    config: &StockConfig,
    database: Database,
    rules: Arc<Rules>,
) -> WorkerBuilder {
    let (prefix, on_conflict) = (config.worker.common.prefix.clone(), config.on_conflict);
    let timeout = config.worker.connect_timeout;
    builder.named_sink(PostgresSink::NAME, move || {
        let (database, prefix, rules) = (database.clone(), prefix.clone(), Arc::clone(&rules));
        async move { Ok(PostgresSink::connect(database, &prefix, on_conflict, rules, timeout).await? as _) }
    })
}

/// The alarm rules of the settings, if there are any. The kinds and webhooks that they use must exist.
fn rules(config: &StockConfig) -> Result<Option<Rules>, Failure> {
    let Some(path) = &config.rules else { return Ok(None) };
    let lanes: &Lanes = &config.worker.lanes;
    let rules = Rules::load(path).map_err(|e| Failure::new(Exit::Config, e))?;
    for kind in [alert::task::KIND, reading::watch::KIND] {
        if lanes.taking(kind).is_none() {
            let problem = format!("setting rules: no lane is bound to {kind}, which rules publish");
            return Err(Failure::new(Exit::Config, problem));
        }
    }
    // A worker of another lane may know webhooks that this one does not; one of this lane must.
    let consumed = lanes.taking(alert::task::KIND).is_some_and(|lane| lanes.get(lane).is_some());
    let mut webhooks = rules.webhooks();
    if let Some((rule, webhook)) =
        webhooks.find(|(_, name)| consumed && !config.alert.webhooks.contains_key(*name))
    {
        let problem =
            format!("rule {rule:?}: unknown webhook {webhook:?}, alert.webhooks.{webhook}.url is not set");
        return Err(Failure::new(Exit::Config, problem));
    }
    drop(webhooks);
    Ok(Some(rules))
}
