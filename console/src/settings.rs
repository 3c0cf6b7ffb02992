//! The console's settings: where the broker is, and what the fleet's lanes are called.

use std::net::{Ipv4Addr, SocketAddr};

use garenne_common::config::{Common, Invalid, Lanes, Retry, SecretUrl, Settings, scheme};
use serde::{Deserialize, Serialize};

use crate::scale::Goal;

/// Settings of `garenne`. A fleet can share one file: what only its workers know is passed over.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsoleConfig {
    /// What every program has.
    #[serde(flatten)]
    pub common: Common,
    /// The fleet's lanes; the topology follows from them.
    pub lanes: Lanes,
    /// The retry ladder, whose rungs are queues.
    pub retry: Retry,
    /// Where the workers store readings, for audits.
    pub postgres_url: Option<SecretUrl>,
    /// With which a drill's workers reach the broker, where they are another user there than the drill.
    pub worker_amqp_url: Option<SecretUrl>,
    /// The page, the exporter and the autoscaler's source.
    pub dashboard: DashboardConfig,
    /// What the autoscaler is to meet; each request may ask for something else.
    pub scale: Goal,
}

/// The settings `dashboard.*`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DashboardConfig {
    /// Where browsers, Prometheus and autoscalers find it.
    pub listen: SocketAddr,
}

impl Default for DashboardConfig {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9465)) }
    }
}

impl Settings for ConsoleConfig {
    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    fn validate(&self) -> Result<(), Invalid> {
        self.common.validate()?;
        if let Some(url) = &self.worker_amqp_url {
            scheme("worker_amqp_url", url, ["amqp", "amqps"])?;
        }
        self.lanes.validate()?;
        self.scale.validate()?;
        self.retry.ladder().map(drop)
    }
}
