//! Settings of `garenne-producer`.

use std::path::Path;

use garenne_common::config::{Common, Invalid, Settings};
use garenne_gateway::{BrokerSettings, GatewaySettings};
use serde::{Deserialize, Serialize};

/// The settings of all commands. One file or environment serves all of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProducerSettings {
    /// Settings of every command.
    #[serde(flatten)]
    pub broker: BrokerSettings,
    /// Settings of `serve`.
    #[serde(flatten)]
    pub gateway: GatewaySettings,
}

impl Settings for ProducerSettings {
    fn common_mut(&mut self) -> &mut Common {
        &mut self.broker.common
    }

    fn validate(&self) -> Result<(), Invalid> {
        self.broker.validate()?;
        self.gateway.validate()
    }

    fn read_from(&mut self, setting: &str, file: &Path) {
        self.broker.read_from(setting, file);
    }
}
