//! Settings of `garenne-producer mqtt`.

use std::time::Duration;

use garenne_common::config::{Certificates, Invalid, SecretUrl, Size, list, scheme, validate_certificates};
use garenne_protocol::sensor::Limits;
use garenne_publish::{GroupCommitConfig, SpoolSettings};
use rumqttc::mqttbytes::valid_filter;
use serde::{Deserialize, Serialize};

use crate::{endpoint::Endpoint, version::Version};

/// The largest text of MQTT, in bytes: its length has two bytes.
const MAX_TEXT: usize = u16::MAX as usize;
/// Largest `linger`.
const MAX_LINGER: Duration = Duration::from_secs(1);

/// Settings of the gateway that the bridge uses too.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Bounds of group commit.
    pub group_commit: GroupCommitConfig,
    /// The bounds of readings' times.
    pub records: Limits,
    /// The spool.
    pub spool: SpoolSettings,
}

/// Settings of the bridge, besides those of the AMQP broker: the table `mqtt`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MqttSettings {
    /// The MQTT broker, with user and password if it needs them.
    pub url: Option<SecretUrl>,
    /// The filters of the topics to subscribe to.
    #[serde(with = "list")]
    pub subscribe: Vec<String>,
    /// The maps, tried in this order: files, or shipped ones such as `builtin:zigbee2mqtt`.
    #[serde(with = "list")]
    pub maps: Vec<String>,
    /// The version of the protocol.
    pub version: Version,
    /// The client id, which names the session on the MQTT broker. By default it is made of the prefix and the host's
    /// name.
    pub client_id: Option<String>,
    /// Certificates for `mqtts`.
    pub tls: Certificates,
    /// Takes retained messages too, which the MQTT broker sends at each subscription.
    pub retained: bool,
    /// Most messages that are received and not stored yet.
    pub in_flight: u16,
    /// How long a message waits for others, which are published together with it.
    #[serde(with = "humantime_serde")]
    pub linger: Duration,
    /// Largest packet. A message in a larger one becomes a dead letter without its payload.
    pub max_packet: Size,
    /// How often the connection is checked.
    #[serde(with = "humantime_serde")]
    pub keep_alive: Duration,
    /// How long the MQTT broker keeps the session without a connection, with MQTT 5. With MQTT 3.1.1 the broker decides.
    #[serde(with = "humantime_serde")]
    pub session_expiry: Duration,
    /// How long a stop waits for the confirms of received messages.
    #[serde(with = "humantime_serde")]
    pub drain_timeout: Duration,
}

impl Default for MqttSettings {
    fn default() -> Self {
        Self {
            url: None,
            subscribe: Vec::new(),
            maps: Vec::new(),
            version: Version::default(),
            client_id: None,
            tls: Certificates::default(),
            retained: false,
            in_flight: 256,
            linger: Duration::from_millis(2),
            max_packet: Size::mib(4),
            keep_alive: Duration::from_secs(30),
            session_expiry: Duration::from_secs(7 * 24 * 3600),
            drain_timeout: Duration::from_secs(20),
        }
    }
}

impl MqttSettings {
    /// Checks every setting. The error is the first invalid one.
    pub fn validate(&self) -> Result<(), Invalid> {
        if let Some(url) = &self.url {
            scheme("mqtt.url", url, ["mqtt", "mqtts"])?;
            Endpoint::parse(url)
                .map_err(|problem| Invalid::new("mqtt.url", format_args!("{:?}", url.masked()), problem))?;
            let plain = (url.scheme() != "mqtts").then_some("needs an mqtt.url with mqtts://");
            validate_certificates(&self.tls, "mqtt.tls", plain)?;
        }
        for filter in &self.subscribe {
            let expected = "expected an MQTT filter such as zigbee2mqtt/+ or $share/garenne/zigbee2mqtt/#";
            Invalid::unless(is_filter(filter), "mqtt.subscribe", format_args!("{filter:?}"), expected)?;
        }
        if let Some(id) = &self.client_id {
            let fits = (1..=MAX_TEXT).contains(&id.len()) && !id.contains(char::is_control);
            let expected = format!("expected 1 to {MAX_TEXT} bytes without control characters");
            Invalid::unless(fits, "mqtt.client_id", format_args!("{id:?}"), expected)?;
        }
        Invalid::unless(self.in_flight > 0, "mqtt.in_flight", self.in_flight, "expected 1 to 65535")?;
        Invalid::unless(
            self.linger <= MAX_LINGER,
            "mqtt.linger",
            format_args!("{:?}", self.linger),
            "expected 0s to 1s, such as 2ms",
        )?;
        let sizes = Size::kib(1)..=Size::mib(256);
        Invalid::unless(
            (sizes.start().0..sizes.end().0).contains(&self.max_packet.0),
            "mqtt.max_packet",
            self.max_packet,
            "expected 1KiB to less than 256MiB",
        )?;
        let seconds = |setting, value: Duration, most: u64| {
            let fits = (1..=most).contains(&value.as_secs()) && value.subsec_nanos() == 0;
            Invalid::unless(
                fits,
                setting,
                format_args!("{value:?}"),
                format!("expected whole seconds, 1 to {most}"),
            )
        };
        seconds("mqtt.keep_alive", self.keep_alive, u16::MAX.into())?;
        seconds("mqtt.session_expiry", self.session_expiry, u32::MAX.into())
    }

    /// The settings that have no default. Fails if one of them is unset.
    pub(crate) fn required(&self) -> Result<&SecretUrl, Invalid> {
        let missing = |setting| Invalid::new(setting, "unset", "garenne-producer mqtt needs it");
        let url = self.url.as_ref().ok_or_else(|| missing("mqtt.url"))?;
        Invalid::unless(
            !self.subscribe.is_empty(),
            "mqtt.subscribe",
            "unset",
            "garenne-producer mqtt needs it",
        )?;
        Invalid::unless(!self.maps.is_empty(), "mqtt.maps", "unset", "garenne-producer mqtt needs it")?;
        Ok(url)
    }
}

/// Whether the filter is valid, also as a shared subscription.
fn is_filter(filter: &str) -> bool {
    let topics = match filter.strip_prefix("$share/") {
        None => filter,
        Some(shared) => match shared.split_once('/') {
            Some((group, topics)) if !group.is_empty() && !group.contains(['+', '#']) => topics,
            _ => return false,
        },
    };
    !topics.is_empty() && filter.len() <= MAX_TEXT && !filter.contains('\0') && valid_filter(topics)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut MqttSettings)) -> MqttSettings {
        let mut settings = MqttSettings { url: Some("mqtt://broker".parse().unwrap()), ..Default::default() };
        change(&mut settings);
        settings
    }

    #[test]
    fn filters_are_checked_also_in_shared_subscriptions() {
        for filter in ["a", "a/+/b", "#", "$share/g/a/#", "$SYS/#", "a/"] {
            assert!(is_filter(filter), "{filter}");
        }
        for filter in ["", "a/#/b", "a+/b", "$share/g", "$share//a", "$share/+/a", "$share/g/", "a\0"] {
            assert!(!is_filter(filter), "{filter}");
        }
    }

    #[test]
    fn an_invalid_setting_is_named() {
        let refused = |change: fn(&mut MqttSettings)| with(change).validate().unwrap_err();
        assert_eq!(refused(|it| it.url = Some("http://x".parse().unwrap())).setting, "mqtt.url");
        assert_eq!(refused(|it| it.url = Some("mqtt://x/topic".parse().unwrap())).setting, "mqtt.url");
        assert_eq!(refused(|it| it.tls.ca = Some("ca.pem".into())).setting, "mqtt.tls.ca");
        assert_eq!(refused(|it| it.subscribe = vec!["a/#/b".into()]).setting, "mqtt.subscribe");
        assert_eq!(refused(|it| it.client_id = Some(String::new())).setting, "mqtt.client_id");
        assert_eq!(refused(|it| it.in_flight = 0).setting, "mqtt.in_flight");
        assert_eq!(refused(|it| it.linger = Duration::from_secs(2)).setting, "mqtt.linger");
        assert_eq!(refused(|it| it.max_packet = Size::mib(256)).setting, "mqtt.max_packet");
        assert_eq!(refused(|it| it.keep_alive = Duration::from_millis(1500)).setting, "mqtt.keep_alive");
        assert_eq!(refused(|it| it.session_expiry = Duration::ZERO).setting, "mqtt.session_expiry");
        assert!(with(|_| ()).validate().is_ok());
    }

    #[test]
    fn the_bridge_needs_a_broker_a_filter_and_a_map() {
        let missing = |change: fn(&mut MqttSettings)| with(change).required().unwrap_err().setting;
        assert_eq!(missing(|it| it.url = None), "mqtt.url");
        assert_eq!(missing(|_| ()), "mqtt.subscribe");
        assert_eq!(missing(|it| it.subscribe = vec!["#".into()]), "mqtt.maps");
    }
}
