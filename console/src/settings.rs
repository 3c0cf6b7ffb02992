//! The console's settings.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use axum::http::HeaderName;
use garenne_common::config::{Common, Invalid, Settings, list, validate_server_tls};
use garenne_operator::settings::FleetSettings;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::scale::Goal;

/// Settings of `garenne`. Settings of other programs in a shared file are ignored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsoleConfig {
    /// The settings by which the fleet is reached.
    #[serde(flatten)]
    pub fleet: FleetSettings,
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
    /// File of the people who may log in; unset, everybody logs in with the admin token.
    pub operators: Option<PathBuf>,
    /// Whether the pages and their data need a login too.
    pub require_login: bool,
    /// Whether commands are refused; nothing is then written to the broker.
    pub read_only: bool,
    /// Networks of the reverse proxies whose headers name the person and the client's address.
    #[serde(with = "list")]
    pub trusted_proxies: Vec<IpNet>,
    /// The header in which a trusted proxy names the person.
    pub user_header: String,
    /// The header in which a trusted proxy lists the person's groups, with commas between them.
    pub groups_header: String,
    /// The groups whose members are operators.
    #[serde(with = "list")]
    pub operator_groups: Vec<String>,
    /// Certificate chain in PEM; with it and the key the port speaks TLS only.
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key in PEM.
    pub tls_key: Option<PathBuf>,
}

impl Default for DashboardConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9465)),
            operators: None,
            require_login: false,
            read_only: false,
            trusted_proxies: Vec::new(),
            user_header: "X-Forwarded-User".to_owned(),
            groups_header: "X-Forwarded-Groups".to_owned(),
            operator_groups: Vec::new(),
            tls_cert: None,
            tls_key: None,
        }
    }
}

impl DashboardConfig {
    fn validate(&self) -> Result<(), Invalid> {
        if let Some(network) = self.trusted_proxies.iter().find(|network| network.prefix_len() == 0) {
            let problem =
                "every client would be a trusted proxy; expected the proxies' networks, such as 10.1.2.0/24";
            return Err(Invalid::new("dashboard.trusted_proxies", network, problem));
        }
        let headers =
            [("dashboard.user_header", &self.user_header), ("dashboard.groups_header", &self.groups_header)];
        for (setting, header) in headers {
            let valid = header.parse::<HeaderName>().is_ok();
            Invalid::unless(valid, setting, format_args!("{header:?}"), "expected the name of a header")?;
        }
        validate_server_tls("dashboard.tls", self.tls_cert.as_deref(), self.tls_key.as_deref())
    }
}

impl Settings for ConsoleConfig {
    fn common_mut(&mut self) -> &mut Common {
        &mut self.fleet.common
    }

    fn validate(&self) -> Result<(), Invalid> {
        self.fleet.validate()?;
        self.dashboard.validate()?;
        let Common { admin_token_file, .. } = &self.fleet.common;
        let DashboardConfig { operators, trusted_proxies, require_login, .. } = &self.dashboard;
        let login = operators.is_some() || admin_token_file.is_some() || !trusted_proxies.is_empty();
        let problem =
            "no login is configured: set dashboard.operators, dashboard.trusted_proxies or admin_token_file";
        Invalid::unless(login || !require_login, "dashboard.require_login", require_login, problem)?;
        self.scale.validate()
    }

    fn read_from(&mut self, setting: &str, file: &Path) {
        self.fleet.read_from(setting, file);
    }
}
