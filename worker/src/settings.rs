//! The settings of the stock worker.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use garenne::WorkerConfig;
use garenne_common::config::{Certificates, Common, Invalid, SecretUrl, Settings};
use garenne_database::Database;
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
            enable_bench: false,
            max_clock_skew: Duration::from_secs(600),
            min_time: Timestamp::DEFAULT_MIN,
            calibration: None,
            rules: None,
            alert: AlertSettings::default(),
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
        if self.stores_in_postgres() && self.postgres_url.is_none() {
            let problem = "the sink postgres needs it, such as postgres://user:password@host/database";
            return Err(Invalid::new("postgres_url", "unset", problem));
        }
        let database = self.database().transpose().map_err(|error| {
            let url = self.postgres_url.as_ref().map(SecretUrl::masked).unwrap_or_default();
            Invalid::new("postgres_url", format_args!("{url:?}"), error)
        })?;
        let plain = "is for sslmode=require or verify-full and postgres_url has neither";
        let encrypted = database.is_some_and(|database| database.is_encrypted());
        self.postgres_tls.validate("postgres_tls", (!encrypted).then_some(plain))?;
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
    ///
    /// # Errors
    /// The URL cannot be parsed, or asks for an unsupported mode.
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
