//! The settings of the stock worker.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use garenne::WorkerConfig;
use garenne_common::config::{Certificates, Common, Invalid, SecretUrl, Settings, validate_certificates};
use garenne_database::Database;
use garenne_handlers::Handlers;
use garenne_postgres::{OnConflict, PostgresSink, StoredResults};
use garenne_protocol::sensor::{Limits, Timestamp};
use garenne_sensors::AlertSettings;
use serde::{Deserialize, Serialize};

/// The settings of the stock worker: those of every worker, and those of its kinds and of its sink `postgres`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct StockConfig {
    /// Settings that every worker has.
    #[serde(flatten)]
    pub worker: WorkerConfig,
    /// The database of the sink `postgres`.
    pub postgres_url: Option<SecretUrl>,
    /// Certificates for the database, if its URL asks for TLS.
    pub postgres_tls: Certificates,
    /// Whether a worker changes tables of an older version at its start, if its user has the rights.
    pub postgres_migrate: bool,
    /// How a reading is treated whose key is stored with another value.
    pub on_conflict: OnConflict,
    /// Which results get a row in Postgres.
    pub postgres_results: StoredResults,
    /// The step in which the figures of lanes are stored in Postgres, in whole seconds; 0 for none.
    #[serde(with = "humantime_serde")]
    pub postgres_lane_history: Duration,
    /// Whether the `bench.*` kinds are added.
    pub enable_bench: bool,
    /// How far ahead of this machine's clock a reading's time may be; 0 for no limit. Gateways have the same setting; see
    /// [`reading::register`](garenne_sensors::reading::register) for the tolerance that a worker adds.
    #[serde(with = "humantime_serde")]
    pub max_clock_skew: Duration,
    /// The earliest time that a reading may have. Gateways have the same setting.
    pub min_time: Timestamp,
    /// Calibration of `reading.process`, TOML.
    pub calibration: Option<PathBuf>,
    /// Alarm rules for stored readings, TOML. They need the sink `postgres`.
    pub rules: Option<PathBuf>,
    /// Hosts and webhooks that `alert.notify` may send to.
    pub alert: AlertSettings,
    /// Handlers in other languages, by name.
    pub handlers: Handlers,
}

impl Default for StockConfig {
    fn default() -> Self {
        Self {
            worker: WorkerConfig::default(),
            postgres_url: None,
            postgres_tls: Certificates::default(),
            postgres_migrate: true,
            on_conflict: OnConflict::default(),
            postgres_results: StoredResults::default(),
            postgres_lane_history: Duration::from_secs(60),
            enable_bench: false,
            max_clock_skew: Duration::from_secs(600),
            min_time: Timestamp::DEFAULT_MIN,
            calibration: None,
            rules: None,
            alert: AlertSettings::default(),
            handlers: Handlers::new(),
        }
    }
}

impl Settings for StockConfig {
    const PER_LANE: &'static [&'static str] = WorkerConfig::PER_LANE;

    fn common_mut(&mut self) -> &mut Common {
        &mut self.worker.common
    }

    fn validate(&self) -> Result<(), Invalid> {
        self.worker.validate()?;
        self.alert.validate()?;
        garenne_handlers::validate(&self.handlers)?;
        if self.stores_in_postgres() && self.postgres_url.is_none() {
            let problem = "the sink postgres needs it, such as postgres://user:password@host/database";
            return Err(Invalid::new("postgres_url", "unset", problem));
        }
        let step = self.postgres_lane_history;
        let is_step = (1..=600).contains(&step.as_secs()) && step.subsec_nanos() == 0;
        if !is_step && !step.is_zero() {
            let problem = "expected 1s to 10m in whole seconds, or 0s to store no figures of lanes";
            return Err(Invalid::new("postgres_lane_history", format!("{step:?}"), problem));
        }
        let database = self.database().transpose().map_err(|error| {
            let url = self.postgres_url.as_ref().map(SecretUrl::masked).unwrap_or_default();
            Invalid::new("postgres_url", format_args!("{url:?}"), error)
        })?;
        let plain = "is for sslmode=require or verify-full and postgres_url has neither";
        let encrypted = database.is_some_and(|database| database.is_encrypted());
        validate_certificates(&self.postgres_tls, "postgres_tls", (!encrypted).then_some(plain))?;
        if let Some(rules) = &self.rules
            && !self.stores_in_postgres()
        {
            let problem = "the sink postgres is needed: new readings are judged together with stored ones";
            return Err(Invalid::new("rules", rules.display(), problem));
        }
        Ok(())
    }

    fn read_from(&mut self, setting: &str, file: &Path) {
        match &mut self.postgres_url {
            Some(url) if setting == "postgres_url" => url.read_from(file),
            _ => {
                self.alert.read_from(setting, file);
                self.worker.read_from(setting, file);
            }
        }
    }
}

impl AsRef<WorkerConfig> for StockConfig {
    fn as_ref(&self) -> &WorkerConfig {
        &self.worker
    }
}

impl StockConfig {
    /// The database of `postgres_url`, if it is set.
    pub fn database(&self) -> Option<Result<Database, String>> {
        self.postgres_url.clone().map(|url| Database::new(url, self.postgres_tls.clone()))
    }

    /// The bounds of readings' times.
    pub fn record_limits(&self) -> Limits {
        Limits::of_times(self.max_clock_skew, self.min_time)
    }

    pub(crate) fn stores_in_postgres(&self) -> bool {
        self.worker.sinks.iter().any(|sink| sink.0 == PostgresSink::NAME)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use garenne_common::config::{Sources, load_with};

    use super::*;

    #[test]
    fn a_step_of_the_lane_history_outside_its_bounds_is_refused() {
        let load = |step: &str| {
            let variable = (OsString::from("GARENNE_POSTGRES_LANE_HISTORY"), OsString::from(step));
            load_with::<StockConfig>(Sources::default(), [variable]).map_err(|error| error.to_string())
        };
        for step in ["0s", "1s", "10m"] {
            load(step).unwrap();
        }
        for (step, value) in [("500ms", "500ms"), ("1500ms", "1.5s"), ("601s", "601s")] {
            let problem = format!(
                "setting postgres_lane_history = {value} (environment GARENNE_POSTGRES_LANE_HISTORY) is refused: expected 1s to 10m in whole \
                 seconds, or 0s to store no figures of lanes"
            );
            assert_eq!(load(step).unwrap_err(), problem);
        }
    }

    #[test]
    fn a_handler_that_is_refused_is_named_with_its_source() {
        let flags = toml::toml! { [handlers."image.resize"]
        command = "no-such-program" };
        let sources = Sources { flags, ..Sources::default() };
        let error = load_with::<StockConfig>(sources, []).unwrap_err().to_string();
        let problem = "setting handlers.image.resize.command = \"no-such-program\" (flag --handler) is refused: \
                       no executable file in PATH has this name";
        assert_eq!(error, problem);
    }

    #[test]
    fn the_secret_of_a_webhook_can_come_from_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
        let variable = |name: &str, value: OsString| (OsString::from(name), value);
        let config: StockConfig = load_with(
            Sources::default(),
            [
                variable("GARENNE_ALERT__WEBHOOKS__OPS__URL", "https://example.com/hook".into()),
                variable("GARENNE_ALERT__WEBHOOKS__OPS__SECRET_FILE", file.path().into()),
            ],
        )
        .unwrap();
        let webhook = &config.alert.webhooks["ops"];
        assert!(webhook.secret.is_some());
        assert_eq!(webhook.files["secret"], file.path());
    }
}
