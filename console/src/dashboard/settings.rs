//! The dashboard's settings.

use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

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
