//! The settings of a drill.

use std::path::Path;

use garenne_common::config::{Common, Invalid, SecretUrl, Settings, scheme};
use garenne_operator::settings::FleetSettings;
use serde::{Deserialize, Serialize};

/// Settings of `garenne-drill`. Settings of other programs in a shared file are ignored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DrillConfig {
    /// The settings by which the fleet is reached.
    #[serde(flatten)]
    pub fleet: FleetSettings,
    /// The broker's URL for the workers of a drill, if they use another user than the drill.
    pub worker_amqp_url: Option<SecretUrl>,
}

impl Settings for DrillConfig {
    fn common_mut(&mut self) -> &mut Common {
        &mut self.fleet.common
    }

    fn validate(&self) -> Result<(), Invalid> {
        self.fleet.validate()?;
        self.worker_amqp_url.as_ref().map_or(Ok(()), |url| scheme("worker_amqp_url", url, ["amqp", "amqps"]))
    }

    fn read_from(&mut self, setting: &str, file: &Path) {
        match (setting, &mut self.worker_amqp_url) {
            ("worker_amqp_url", Some(url)) => url.read_from(file),
            _ => self.fleet.read_from(setting, file),
        }
    }
}
