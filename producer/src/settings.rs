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
        self.broker.common.read_from(setting, file);
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use garenne_common::config::{Sources, load_with};

    use super::*;

    fn load(variables: &[(&str, &str)]) -> Result<ProducerSettings, String> {
        let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        load_with(Sources::default(), variables).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_of_the_broker_and_the_gateway_are_read_from_one_source() {
        let settings = load(&[
            ("GARENNE_PREFIX", "test"),
            ("GARENNE_CONNECT_TIMEOUT", "5s"),
            ("GARENNE_LISTEN", "127.0.0.1:9"),
            ("GARENNE_SERVER", "worker-pool"),
            ("GARENNE_GATEWAY__MAX_RECORDS", "7"),
            ("GARENNE_GROUP_COMMIT__RECORDS", "3"),
        ])
        .unwrap();
        assert_eq!(
            (settings.broker.common.prefix.as_str(), settings.broker.connect_timeout.as_secs()),
            ("test", 5)
        );
        assert_eq!((settings.gateway.listen.port(), settings.gateway.server.as_str()), (9, "worker-pool"));
        assert_eq!((settings.gateway.limits.max_records, settings.gateway.group_commit.records), (7, 3));
    }

    #[test]
    fn an_invalid_setting_is_named_with_its_origin() {
        let refused = |name: &str, value: &str| load(&[(name, value)]).unwrap_err();
        assert_eq!(
            refused("GARENNE_SERVER", "sequential"),
            "setting server = \"sequential\" (environment GARENNE_SERVER) is refused: expected worker-pool or connection-pool"
        );
        assert_eq!(
            refused("GARENNE_GATEWAY__MAX_LINES", "1"),
            "setting gateway.max_lines (environment GARENNE_GATEWAY__MAX_LINES) is unknown: did you mean max_line?"
        );
        assert_eq!(
            refused("GARENNE_TLS_CERT", "cert.pem"),
            "setting tls_key = nothing (the default) is refused: tls_cert is set and needs it"
        );
    }
}
