//! The stock worker's command line.

use std::{ops::Not, sync::Arc};

use clap::{Parser, ValueHint};
use garenne::{Payload, Worker, WorkerArgs, WorkerBuilder};
use garenne_alarms::alarm::Rules;
use garenne_common::{
    config::{Invalid, Lanes},
    exit::{Exit, Failure},
};
use garenne_map::MapChain;
use garenne_postgres::{OnConflict, PostgresReadingStore, PostgresSink, SinkOptions};
use garenne_sensors::{
    alert,
    message::{self, LaneMaps},
    reading::{self, Readings},
    spectrum, window,
};
use serde::Serialize;
use toml::Table;

use crate::{bench, settings::StockConfig};

/// The kinds that have stock handlers.
const STOCK_KINDS: &[&str] = &["reading.#", "window.#", "spectrum.#", "alert.#"];

/// Consumes tasks, runs their handlers and settles them.
#[derive(Debug, Parser, Serialize)]
#[command(name = "garenne-worker", version, about, after_help = EXAMPLES)]
pub struct Cli {
    #[command(flatten)]
    #[serde(skip)]
    worker: WorkerArgs,
    /// Database of the sink postgres, such as postgres://user:password@127.0.0.1/garenne
    #[arg(long, value_name = "URL")]
    postgres_url: Option<String>,
    /// Calibration of reading.process, TOML
    #[arg(long, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    calibration: Option<String>,
    /// Alarm rules for stored readings, TOML; needs --sink postgres
    #[arg(long, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    rules: Option<String>,
    /// Program that runs the tasks of a kind, or of a pattern such as image.*: image.resize='python3 resize.py'; repeatable
    #[arg(long = "handler", value_name = "KIND=COMMAND")]
    #[serde(skip)]
    handlers: Vec<String>,
    /// Add the bench.* kinds, which can block, panic and abort on request
    #[arg(long)]
    #[serde(skip_serializing_if = "Not::not")]
    enable_bench: bool,
}

const EXAMPLES: &str = "\
Examples:
  garenne-worker --amqp-url amqp://guest:guest@127.0.0.1:5672/%2f --sink stdout
  garenne-worker --lane fast:prefetch=500,concurrency=2..16 --lane slow --shutdown-mode soft
  garenne-worker --sink postgres --postgres-url postgres://garenne@127.0.0.1/garenne --receipt /tmp/receipt.json
  garenne-worker --handler image.resize='python3 resize.py'";

impl Cli {
    /// Runs the stock worker until a signal or the admin port stops it.
    pub async fn run(self) -> Result<Exit, Failure> {
        let mut own = Table::try_from(&self).expect("flags are texts and switches");
        if !self.handlers.is_empty() {
            own.insert("handlers".into(), handlers(&self.handlers)?.into());
        }
        self.worker.run(own, stock).await
    }
}

/// A worker with the stock kinds and the sink `postgres`, as the settings say.
pub fn stock(mut config: StockConfig) -> Result<WorkerBuilder, Failure> {
    garenne_handlers::fit_lanes(&mut config.worker, &config.handlers, STOCK_KINDS);
    let calibration = config.calibration.as_deref().map(reading::Calibration::load).transpose();
    let calibration = calibration.map_err(invalid)?.unwrap_or_default();
    let prefix = config.worker.common.prefix.clone();
    let database = config.database().transpose().map_err(invalid)?;
    let store = database.clone().map(|database| Arc::new(PostgresReadingStore::new(database, &prefix)) as _);
    let rules = rules(&config)?.map(Arc::new);

    let mut builder = Worker::builder(config.worker.clone());
    // With `replace`, the last of several records of a task is the latest version.
    let contradictions = match config.on_conflict {
        OnConflict::Dead => reading::Contradictions::Refused,
        OnConflict::Replace => reading::Contradictions::Processed,
    };
    builder = reading::register(builder, calibration, config.record_limits(), contradictions);
    let maps = lane_maps(&config)?;
    if !maps.is_empty() {
        builder = message::register(builder, maps, config.record_limits());
    }
    builder = message::register_unmapped(builder);
    builder = window::register(builder, store);
    builder = spectrum::register(builder);
    builder = alert::register(builder, config.alert.clone(), config.stores_in_postgres())?;
    if config.stores_in_postgres() {
        builder = alert::register_notified(builder);
    }
    if let Some(database) = database {
        let options = SinkOptions {
            on_conflict: config.on_conflict,
            results: config.postgres_results,
            migrate: config.postgres_migrate,
            rules: rules.unwrap_or_default(),
            notice_wait: config.alert.notice_wait,
            lane_history: config.postgres_lane_history,
        };
        let timeout = config.worker.connect_timeout;
        builder = builder.named_sink(PostgresSink::NAME, move || {
            let (database, prefix, options) = (database.clone(), prefix.clone(), options.clone());
            async move { Ok(PostgresSink::connect(database, &prefix, options, timeout).await? as _) }
        });
    }
    builder = garenne_handlers::register(builder, &config.handlers);
    Ok(if config.enable_bench { bench::register(builder) } else { builder })
}

/// The table `handlers` of the flags.
fn handlers(flags: &[String]) -> Result<Table, Failure> {
    let mut handlers = Table::new();
    for flag in flags {
        let refused = |problem| Failure::from(Invalid::new("--handler", format_args!("{flag:?}"), problem));
        let (kind, command) = flag.split_once('=').ok_or_else(|| {
            refused("expected a kind and a command, such as image.resize='python3 resize.py'")
        })?;
        let command = Table::from_iter([("command".to_owned(), command.into())]);
        if handlers.insert(kind.to_owned(), command.into()).is_some() {
            return Err(refused("another --handler has this kind"));
        }
    }
    Ok(handlers)
}

/// The maps of the lanes that this worker consumes. A lane must take the readings that they make.
fn lane_maps(config: &StockConfig) -> Result<LaneMaps, Failure> {
    let lanes = &config.worker.lanes;
    let mut maps = LaneMaps::new();
    for (name, lane) in lanes.iter().filter(|(_, lane)| lane.is_mapped()) {
        let refused = |value: &str, problem: String| {
            Invalid::new(format!("lanes.{name}.maps"), format_args!("{value:?}"), problem)
        };
        let chain = MapChain::load(&lane.maps).map_err(|error| refused(&error.file, error.problem))?;
        if lanes.taking(Readings::KIND).is_none() {
            let problem = format!("no lane is bound to {}, which maps make", Readings::KIND);
            return Err(refused(&lane.maps.join(","), problem).into());
        }
        maps.insert(name.to_owned(), chain);
    }
    Ok(maps)
}

/// The alarm rules of the settings, if there are any. The kinds and webhooks that they use must exist.
fn rules(config: &StockConfig) -> Result<Option<Rules>, Failure> {
    let Some(path) = &config.rules else { return Ok(None) };
    let lanes: &Lanes = &config.worker.lanes;
    let rules = Rules::load(path).map_err(invalid)?;
    if lanes.taking(alert::KIND).is_none() {
        let problem = format!("setting rules: no lane is bound to {}, which rules publish", alert::KIND);
        return Err(invalid(problem));
    }
    // A worker of another lane may know webhooks that this one does not; one of this lane must.
    let consumed = lanes.taking(alert::KIND).is_some_and(|lane| lanes.get(lane).is_some());
    let unknown = |name: &str| consumed && !config.alert.webhooks.contains_key(name);
    if let Some((rule, webhook)) = rules.webhooks().find(|(_, name)| unknown(name)) {
        let problem =
            format!("rule {rule:?}: unknown webhook {webhook:?}, alert.webhooks.{webhook}.url is not set");
        return Err(invalid(problem));
    }
    Ok(Some(rules))
}

fn invalid(problem: String) -> Failure {
    Failure::new(Exit::Config, problem)
}
