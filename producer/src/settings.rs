//! Settings of `garenne-producer`.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use garenne_common::config::{Common, Invalid, Lanes, Retry, Settings};
use garenne_protocol::topology::{BrokerVersion, Names, Topology};
use serde::{Deserialize, Serialize};

use crate::{
    gateway::{Limits, READING, Routes, ServerKind},
    outlet::gather::GatherConfig,
};

/// The default of `max_clock_skew`.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(600);

/// Everything that can be set, by flag, environment or file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProducerSettings {
    /// What every program has.
    #[serde(flatten)]
    pub common: Common,
    /// The lanes: their bindings decide which kinds are taken.
    pub lanes: Lanes,
    /// The retry ladder, whose rungs are queues that must exist.
    pub retry: Retry,
    /// Where sensors connect.
    pub listen: SocketAddr,
    /// Who runs their connections.
    pub server: ServerKind,
    /// File with token hashes; unset, everybody may send.
    pub tokens: Option<PathBuf>,
    /// Certificate chain in PEM; with it and a key the port also speaks TLS.
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key in PEM.
    pub tls_key: Option<PathBuf>,
    /// Who signs the sensors' certificates; with it every TLS client needs one.
    pub tls_client_ca: Option<PathBuf>,
    /// How far ahead of the clock here a reading's time may be; 0 for any time. Workers have the same setting.
    #[serde(with = "humantime_serde")]
    pub max_clock_skew: Duration,
    /// Limits.
    pub gateway: Limits,
    /// What the gateway gathers into one message.
    pub group_commit: GatherConfig,
    /// How long the broker may be away at the start.
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
}

impl Default for ProducerSettings {
    fn default() -> Self {
        Self {
            common: Common::default(),
            lanes: Lanes::default(),
            retry: Retry::default(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            server: ServerKind::default(),
            tokens: None,
            tls_cert: None,
            tls_key: None,
            tls_client_ca: None,
            max_clock_skew: MAX_CLOCK_SKEW,
            gateway: Limits::default(),
            group_commit: GatherConfig::default(),
            connect_timeout: Duration::from_secs(30),
        }
    }
}

impl Settings for ProducerSettings {
    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    fn validate(&self) -> Result<(), Invalid> {
        self.common.validate()?;
        self.lanes.validate()?;
        self.retry.ladder()?;
        self.gateway.validate()?;
        self.group_commit.validate()?;
        if self.tls_cert.is_some() != self.tls_key.is_some() {
            let (missing, given) =
                if self.tls_cert.is_some() { ("tls_key", "tls_cert") } else { ("tls_cert", "tls_key") };
            return Err(Invalid::new(missing, "nothing", format!("{given} is set and needs it")));
        }
        if self.tls_client_ca.is_some() && self.tls_cert.is_none() {
            return Err(Invalid::new("tls_cert", "nothing", "tls_client_ca is set and needs it"));
        }
        Ok(())
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
            .spreading(self.lanes.spread(READING))
    }

    /// What must exist on a broker of this version.
    pub fn topology(&self, version: BrokerVersion) -> Topology {
        let ladder = self.retry.ladder().expect("validated with the settings");
        Topology::new(&self.names(), &self.lanes.specs(), &ladder, version)
    }
}
