//! The console's settings.

use std::net::{Ipv4Addr, SocketAddr};

use garenne_common::config::{Common, Invalid, Lanes, Retry, SecretUrl, Settings, scheme};
use serde::{Deserialize, Serialize};

use crate::scale::Goal;

/// Settings of `garenne`. Settings of other programs in a shared file are ignored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsoleConfig {
    /// Settings of every program.
    #[serde(flatten)]
    pub common: Common,
    /// The fleet's lanes, from which the topology is derived.
    pub lanes: Lanes,
    /// The retry ladder.
    pub retry: Retry,
    /// The workers' database, for audits.
    pub postgres_url: Option<SecretUrl>,
    /// The broker's URL for the workers of a drill, if they use another user than the drill.
    pub worker_amqp_url: Option<SecretUrl>,
    /// The dashboard.
    pub dashboard: DashboardConfig,
    /// The scaling objective. A request to `/scale/{lane}` can override it.
    pub scale: Goal,
}

/// The settings `dashboard.*`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DashboardConfig {
    /// Address to listen on, for browsers, Prometheus and autoscalers.
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
