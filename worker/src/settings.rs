//! The worker's settings.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use garenne_common::{
    config::{Certificates, Common, Invalid, Lanes, Retry, SecretUrl, Settings, Size, host_name, list},
    shutdown::Mode,
};
use serde::{Deserialize, Serialize};

use crate::{
    builtin::AlertSettings,
    sink::postgres::{Database, OnConflict, PostgresError},
};

/// A sink by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SinkName {
    /// One JSON line a result on standard output.
    Stdout,
    /// One message a result on the results exchange.
    Results,
    /// Tables in Postgres.
    Postgres,
}

/// Everything a worker can be told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerConfig {
    /// Broker, prefix, logs, admin port.
    #[serde(flatten)]
    pub common: Common,
    /// The lanes, and which of them this worker works on.
    pub lanes: Lanes,
    /// The retry ladder.
    pub retry: Retry,
    /// Where results go; none means that a task is acked once its handler succeeded.
    #[serde(with = "list")]
    pub sinks: Vec<SinkName>,
    /// Where Postgres is, for that sink.
    pub postgres_url: Option<SecretUrl>,
    /// Certificates for it, where its URL asks for TLS.
    pub postgres_tls: Certificates,
    /// What becomes of a reading whose key is stored with another value.
    pub on_conflict: OnConflict,
    /// How it stops when told nothing else.
    pub shutdown_mode: Mode,
    /// What soft-timeout waits before it turns hard.
    #[serde(with = "humantime_serde")]
    pub shutdown_timeout: Duration,
    /// What a hard stop waits for short tasks, and a long one that was told to stop for any.
    #[serde(with = "humantime_serde")]
    pub hard_grace: Duration,
    /// What the orchestrator grants a stopping worker before it kills it; checked against the above.
    #[serde(with = "humantime_serde")]
    pub termination_grace: Option<Duration>,
    /// Where the shutdown receipt goes besides stderr.
    pub receipt: Option<PathBuf>,
    /// The worker's name, unique in the fleet; host name and a random part when absent.
    pub worker_id: Option<String>,
    /// Attempts at most where a kind names no number, 1 or more.
    pub max_attempts: u32,
    /// The largest body that is tried, bytes.
    pub max_payload: Size,
    /// Whether the `bench.*` kinds are there.
    pub enable_bench: bool,
    /// Whether `reply_to` is answered; needs write on `amq.default`.
    pub replies: bool,
    /// How far ahead of the clock here a reading's time may be; 0 for any time. Gateways have the same setting; see
    /// [`reading::task`](crate::builtin::reading::task) for what a worker allows beyond it.
    #[serde(with = "humantime_serde")]
    pub max_clock_skew: Duration,
    /// Calibration of `reading.process`, TOML.
    pub calibration: Option<PathBuf>,
    /// Rules that stored readings are watched with, TOML; needs the sink postgres.
    pub rules: Option<PathBuf>,
    /// Where `alert.notify` may send to.
    pub alert: AlertSettings,
    /// How long the broker may be away at the start.
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            common: Common::default(),
            lanes: Lanes::default(),
            retry: Retry::default(),
            sinks: Vec::new(),
            postgres_url: None,
            postgres_tls: Certificates::default(),
            on_conflict: OnConflict::default(),
            shutdown_mode: Mode::default(),
            shutdown_timeout: Duration::from_secs(25),
            hard_grace: Duration::from_secs(2),
            termination_grace: None,
            receipt: None,
            worker_id: None,
            max_attempts: 5,
            max_payload: Size::mib(4),
            enable_bench: false,
            replies: false,
            max_clock_skew: Duration::from_secs(600),
            calibration: None,
            rules: None,
            alert: AlertSettings::default(),
            connect_timeout: Duration::from_secs(30),
        }
    }
}

/// The longest worker id: its control queue's name holds it.
const LONGEST_ID: usize = 64;

impl Settings for WorkerConfig {
    const PER_LANE: &'static [&'static str] = &["prefetch", "concurrency"];

    fn validate(&self) -> Result<(), Invalid> {
        self.common.validate()?;
        self.lanes.validate()?;
        self.retry.ladder()?;
        self.alert.validate()?;
        if self.sinks.contains(&SinkName::Postgres) && self.postgres_url.is_none() {
            let problem = "the sink postgres needs it, such as postgres://user:password@host/database";
            return Err(Invalid::new("postgres_url", "nothing", problem));
        }
        let database = self.database().transpose().map_err(|error| {
            let url = self.postgres_url.as_ref().map(SecretUrl::masked).unwrap_or_default();
            Invalid::new("postgres_url", format_args!("{url:?}"), error.to_string())
        })?;
        let plain = "is for sslmode=require or verify-full and postgres_url has neither";
        let encrypted = database.is_some_and(|database| database.is_encrypted());
        self.postgres_tls.validate("postgres_tls", (!encrypted).then_some(plain))?;
        if let Some(rules) = &self.rules
            && !self.sinks.contains(&SinkName::Postgres)
        {
            let problem = "the sink postgres is needed: what is new is judged with what is stored";
            return Err(Invalid::new("rules", rules.display(), problem));
        }
        if self.max_attempts == 0 {
            return Err(Invalid::new("max_attempts", "0", "expected 1 or more"));
        }
        if self.max_payload.bytes() == 0 {
            return Err(Invalid::new("max_payload", "0", "expected 1B or more"));
        }
        match &self.worker_id {
            Some(id) if !fits(id) => {
                let problem = format!("expected 1 to {LONGEST_ID} of a-z A-Z 0-9 . _ -");
                Err(Invalid::new("worker_id", format_args!("{id:?}"), problem))
            }
            _ => Ok(()),
        }
    }

    fn read_from(&mut self, setting: &str, file: &Path) {
        match &mut self.postgres_url {
            Some(url) if setting == "postgres_url" => url.read_from(file),
            _ => self.common.read_from(setting, file),
        }
    }
}

fn fits(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=LONGEST_ID).contains(&id.len()) && id.bytes().all(allowed)
}

impl WorkerConfig {
    /// Where Postgres is, if anywhere.
    ///
    /// # Errors
    /// A URL that cannot be read, or asks for what there is not.
    pub fn database(&self) -> Option<Result<Database, PostgresError>> {
        self.postgres_url.clone().map(|url| Database::new(url, self.postgres_tls.clone()))
    }

    /// The worker's name: the one set, else the host's with a random part, so that two workers on one
    /// host differ.
    pub fn name(&self) -> String {
        self.worker_id.clone().unwrap_or_else(|| {
            let host = host_name();
            let random: u32 = rand::random();
            format!("{}-{random:08x}", if host.is_empty() { "worker" } else { &host })
        })
    }
}
