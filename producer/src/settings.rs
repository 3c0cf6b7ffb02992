//! Settings of `garenne-producer`.

use std::net::{Ipv4Addr, SocketAddr};

use garenne_common::{
    config::{Common, Invalid, Lanes, Settings},
    topology::{BrokerVersion, Ladder, LaneSpec, Names, Topology},
};
use serde::{Deserialize, Serialize};

use crate::gateway::{Limits, Routes, ServerKind};

/// Everything that can be set, by flag, environment or file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProducerSettings {
    /// What every program has.
    #[serde(flatten)]
    pub common: Common,
    /// The lanes: their bindings decide which kinds are taken.
    pub lanes: Lanes,
    /// Where sensors connect.
    pub listen: SocketAddr,
    /// Who runs their connections.
    pub server: ServerKind,
    /// Limits.
    pub gateway: Limits,
}

impl Default for ProducerSettings {
    fn default() -> Self {
        Self {
            common: Common::default(),
            lanes: Lanes::default(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            server: ServerKind::default(),
            gateway: Limits::default(),
        }
    }
}

impl Settings for ProducerSettings {
    fn validate(&self) -> Result<(), Invalid> {
        self.common.validate()?;
        self.lanes.validate()?;
        self.gateway.validate()
    }
}

impl ProducerSettings {
    /// Names on the broker.
    pub fn names(&self) -> Names {
        Names::new(&self.common.prefix)
    }

    /// Which kinds are taken.
    pub fn routes(&self) -> Routes {
        Routes::new(self.lanes.defined().flat_map(|(_, lane)| lane.bindings.clone()))
    }

    /// What must exist on a broker of this version.
    pub fn topology(&self, version: BrokerVersion) -> Topology {
        let lanes: Vec<LaneSpec> = self
            .lanes
            .defined()
            .map(|(name, lane)| LaneSpec {
                name: name.to_owned(),
                bindings: lane.bindings.clone(),
                consumer_timeout: lane.consumer_timeout,
            })
            .collect();
        Topology::new(&self.names(), &lanes, &Ladder::default(), version)
    }
}
