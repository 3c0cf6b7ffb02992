//! The console's settings: where the broker is, and what the fleet's lanes are called.

use garenne_common::{
    config::{Common, Invalid, Lanes, SecretUrl, Settings},
    topology::LaneSpec,
};
use serde::{Deserialize, Serialize};

/// Settings of `garenne`. A fleet can share one file: what only its workers know is passed over.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsoleConfig {
    /// What every program has.
    #[serde(flatten)]
    pub common: Common,
    /// The fleet's lanes; the topology follows from them.
    pub lanes: Lanes,
    /// Where the workers store readings, for audits.
    pub postgres_url: Option<SecretUrl>,
}

impl Settings for ConsoleConfig {
    fn validate(&self) -> Result<(), Invalid> {
        self.common.validate()?;
        self.lanes.validate()
    }
}

impl ConsoleConfig {
    /// The lanes as the topology sees them.
    pub fn lane_specs(&self) -> Vec<LaneSpec> {
        let spec = |(name, lane): (&str, &garenne_common::config::Lane)| LaneSpec {
            name: name.to_owned(),
            bindings: lane.bindings.clone(),
            consumer_timeout: lane.consumer_timeout,
        };
        self.lanes.defined().map(spec).collect()
    }
}
