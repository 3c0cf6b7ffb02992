//! The settings by which a fleet is reached.

use std::path::Path;

use garenne_common::config::{Certificates, Common, Invalid, Lanes, Retry, SecretUrl};
use serde::{Deserialize, Serialize};

/// The settings by which a fleet is reached; a program flattens them into its own.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FleetSettings {
    /// Settings of every program.
    #[serde(flatten)]
    pub common: Common,
    /// The fleet's lanes, from which the topology is derived.
    pub lanes: Lanes,
    /// The retry ladder.
    pub retry: Retry,
    /// The workers' database: its readings, results and alarms.
    pub postgres_url: Option<SecretUrl>,
    /// Certificates for the database, if its URL asks for TLS.
    pub postgres_tls: Certificates,
}

impl FleetSettings {
    /// Checks every setting. The error is the first invalid one.
    pub fn validate(&self) -> Result<(), Invalid> {
        self.common.validate()?;
        self.lanes.validate(&self.common.prefix)?;
        self.retry.ladder().map(drop)
    }

    /// Records the file that a setting was read from; see [`Settings::read_from`](garenne_common::config::Settings::read_from).
    pub fn read_from(&mut self, setting: &str, file: &Path) {
        match (setting, &mut self.postgres_url) {
            ("postgres_url", Some(url)) => url.read_from(file),
            _ => self.common.read_from(setting, file),
        }
    }
}
