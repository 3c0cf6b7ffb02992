//! Settings of `garenne-producer`.

use std::path::Path;

use garenne_common::config::{Common, Invalid, Settings};
use garenne_gateway::GatewaySettings;
use garenne_mqtt::MqttSettings;
use garenne_publish::BrokerSettings;
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
    /// Settings of `mqtt`.
    pub mqtt: MqttSettings,
}

impl Settings for ProducerSettings {
    fn common_mut(&mut self) -> &mut Common {
        &mut self.broker.common
    }

    fn validate(&self) -> Result<(), Invalid> {
        self.broker.validate()?;
        self.gateway.validate()?;
        self.mqtt.validate()
    }

    fn read_from(&mut self, setting: &str, file: &Path) {
        let url = match setting {
            "mqtt.url" => &mut self.mqtt.url,
            "forward.url" => &mut self.gateway.forward.url,
            _ => &mut None,
        };
        match url {
            Some(url) => url.read_from(file),
            None => self.broker.common.read_from(setting, file),
        }
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
            ("GARENNE_MAPS", "plant.toml,/etc/garenne/site.toml"),
            ("GARENNE_GATEWAY__MAX_RECORDS", "7"),
            ("GARENNE_GROUP_COMMIT__RECORDS", "3"),
        ])
        .unwrap();
        assert_eq!(
            (settings.broker.common.prefix.as_str(), settings.broker.connect_timeout.as_secs()),
            ("test", 5)
        );
        assert_eq!((settings.gateway.listen.port(), settings.gateway.server.as_str()), (9, "worker-pool"));
        assert_eq!(settings.gateway.maps, [Path::new("plant.toml"), Path::new("/etc/garenne/site.toml")]);
        assert_eq!((settings.gateway.limits.max_records, settings.gateway.group_commit.records), (7, 3));
    }

    #[test]
    fn settings_of_the_spool_are_read_and_checked() {
        let settings = load(&[
            ("GARENNE_SPOOL", "/var/lib/garenne/spool"),
            ("GARENNE_SPOOL_MAX_BYTES", "20MiB"),
            ("GARENNE_SPOOL_MAX_AGE", "2h"),
            ("GARENNE_SPOOL_DRAIN_RATE", "0"),
        ]);
        let spool = settings.unwrap().gateway.spool;
        assert_eq!(spool.spool.as_deref(), Some(Path::new("/var/lib/garenne/spool")));
        assert_eq!((spool.spool_max_bytes.to_string(), spool.spool_drain_rate), ("20MiB".to_owned(), 0));
        assert_eq!(spool.spool_max_age.as_secs(), 7200);
        let refused = |name: &str, value: &str| load(&[(name, value)]).unwrap_err();
        assert_eq!(
            refused("GARENNE_SPOOL_MAX_BYTES", "10KiB"),
            "setting spool_max_bytes = 10KiB (environment GARENNE_SPOOL_MAX_BYTES) is refused: expected at least 1MiB"
        );
        assert_eq!(
            refused("GARENNE_SPOOL_AFTER", "2m"),
            "setting spool_after = 2m (environment GARENNE_SPOOL_AFTER) is refused: expected more than 0s, at most 60s"
        );
        let message = refused("GARENNE_SPOOL_DRAIN_RATE", "fast");
        assert!(message.contains("GARENNE_SPOOL_DRAIN_RATE"), "{message}");
    }

    #[test]
    fn settings_of_the_mqtt_bridge_are_read_and_its_password_may_be_in_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "mqtts://bridge:s3cret@broker\n").unwrap();
        let settings = load(&[
            ("GARENNE_MQTT__URL_FILE", file.path().to_str().unwrap()),
            ("GARENNE_MQTT__SUBSCRIBE", "zigbee2mqtt/+, tele/#"),
            ("GARENNE_MQTT__MAPS", "builtin:zigbee2mqtt,/etc/garenne/site.toml"),
            ("GARENNE_MQTT__VERSION", "5"),
            ("GARENNE_MQTT__TLS__CA", "ca.pem"),
        ]);
        let mqtt = settings.unwrap().mqtt;
        let url = mqtt.url.unwrap();
        assert_eq!((url.masked(), url.file()), ("mqtts://bridge:***@broker", Some(file.path())));
        assert_eq!(mqtt.subscribe, ["zigbee2mqtt/+", "tele/#"]);
        assert_eq!(mqtt.maps, ["builtin:zigbee2mqtt", "/etc/garenne/site.toml"]);
        assert_eq!((mqtt.version, mqtt.tls.ca.is_some()), (garenne_mqtt::Version::V5, true));
        let refused = load(&[("GARENNE_MQTT__VERSION", "4")]).unwrap_err();
        assert!(refused.contains("3.1.1") && refused.contains("GARENNE_MQTT__VERSION"), "{refused}");
        assert_eq!(
            load(&[("GARENNE_MQTT__SUBSCRIBE", "a/#/b")]).unwrap_err(),
            "setting mqtt.subscribe = \"a/#/b\" (environment GARENNE_MQTT__SUBSCRIBE) is refused: expected an MQTT filter \
             such as zigbee2mqtt/+ or $share/garenne/zigbee2mqtt/#"
        );
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
            "setting tls_key = unset (the default) is refused: required because tls_cert is set"
        );
        assert_eq!(
            refused("GARENNE_PROXY_PROTOCOL", "true"),
            "setting trusted_proxies = unset (the default) is refused: required because proxy_protocol is set"
        );
        assert_eq!(
            refused("GARENNE_TLS_ONLY", "true"),
            "setting tls_cert = unset (the default) is refused: required because tls_only is set"
        );
        assert_eq!(
            refused("GARENNE_ALLOWED_ORIGINS", "https://a.example,*"),
            "setting allowed_origins = \"*\" (environment GARENNE_ALLOWED_ORIGINS) is refused: expected a scheme, a host \
             and a port unless it is the scheme's own, such as https://app.example.org"
        );
        for (name, value) in [("GARENNE_TLS_MIN_VERSION", "1.1"), ("GARENNE_TRUSTED_PROXIES", "10.0.0.0/33")]
        {
            let message = refused(name, value);
            assert!(message.contains(name) && message.contains(value), "{message}");
        }
    }

    #[test]
    fn lists_of_networks_and_origins_are_read_from_text_with_commas() {
        let settings = load(&[
            ("GARENNE_TRUSTED_PROXIES", "10.0.0.0/8, fd00::/8"),
            ("GARENNE_PROXY_PROTOCOL", "true"),
            ("GARENNE_ALLOWED_ORIGINS", "https://a.example,http://b.example:8080"),
            ("GARENNE_TLS_MIN_VERSION", "1.3"),
        ]);
        let gateway = settings.unwrap().gateway;
        assert_eq!((gateway.trusted_proxies.len(), gateway.proxy_protocol), (2, true));
        assert_eq!(gateway.allowed_origins, ["https://a.example", "http://b.example:8080"]);
        assert_eq!(gateway.tls_min_version.to_string(), "1.3");
    }
}
