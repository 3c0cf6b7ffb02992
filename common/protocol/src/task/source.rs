//! Where a foreign payload came from.

use std::fmt;

/// Where a payload came from. The patterns of rules match it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source<'a> {
    /// An MQTT topic, such as `zigbee2mqtt/kitchen`.
    Topic(&'a str),
    /// The path of an HTTP request, such as `/v1/map/chirpstack`.
    Path(&'a str),
    /// An AMQP routing key. RabbitMQ's MQTT plugin makes it from a topic, with dots instead of slashes.
    RoutingKey(&'a str),
}

impl<'a> Source<'a> {
    /// Maximum size of a source that a map takes, in bytes.
    pub const MAX_BYTES: usize = 1_024;

    /// The topic, path or routing key.
    pub const fn text(self) -> &'a str {
        match self {
            Self::Topic(text) | Self::Path(text) | Self::RoutingKey(text) => text,
        }
    }

    /// The source as one text, such as `topic:plant/boiler`. [`Source::from_label`] reads it.
    ///
    /// A source over [`MAX_BYTES`](Self::MAX_BYTES) is cut to that size, followed by its whole size, such as
    /// `… (65000 bytes)`: a topic of MQTT can have 65,535 bytes, which do not fit into the headers of each message.
    pub fn to_label(self) -> String {
        let kind = match self {
            Self::Topic(_) => "topic",
            Self::Path(_) => "path",
            Self::RoutingKey(_) => "routing-key",
        };
        let text = self.text();
        if text.len() <= Self::MAX_BYTES {
            return format!("{kind}:{text}");
        }
        format!("{kind}:{}… ({} bytes)", &text[..text.floor_char_boundary(Self::MAX_BYTES)], text.len())
    }

    /// Whether it is too long for a map. So is every source that [`Source::to_label`] has cut.
    pub const fn is_too_long(self) -> bool {
        self.text().len() > Self::MAX_BYTES
    }

    /// The topic that RabbitMQ's MQTT plugin made this routing key of: it writes dots instead of slashes. A dot in a topic
    /// is read as a slash too, except that of Sparkplug's namespace, which the plugin writes as `spBv1.0`, or as `spBv1___0`
    /// with the setting `mqtt.sparkplug`.
    pub fn mqtt_topic(routing_key: &str) -> String {
        let sparkplug = ["spBv1.0.", "spBv1___0."].iter().find_map(|prefix| routing_key.strip_prefix(prefix));
        match sparkplug {
            Some(rest) => format!("spBv1.0/{}", rest.replace('.', "/")),
            None => routing_key.replace('.', "/"),
        }
    }

    /// Reads what [`Source::to_label`] wrote.
    pub fn from_label(label: &'a str) -> Option<Self> {
        match label.split_once(':')? {
            ("topic", text) => Some(Self::Topic(text)),
            ("path", text) => Some(Self::Path(text)),
            ("routing-key", text) => Some(Self::RoutingKey(text)),
            _ => None,
        }
    }
}

impl fmt::Display for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Topic(_) => "topic",
            Self::Path(_) => "path",
            Self::RoutingKey(_) => "routing key",
        };
        write!(f, "{kind} {:?}", self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_the_kind_and_the_whole_source() {
        for source in [Source::Topic("a:b/c"), Source::Path("/v1/map/x"), Source::RoutingKey("a.b")] {
            assert_eq!(Source::from_label(&source.to_label()), Some(source));
        }
        assert_eq!(Source::Topic("a/b").to_label(), "topic:a/b");
        assert_eq!(Source::from_label("queue:x"), None);
        assert_eq!(Source::from_label("a/b"), None);
    }

    #[test]
    fn a_long_source_is_cut_and_stays_too_long() {
        for (character, kept) in [("x", 1_024), ("é", 1_024), ("€", 1_023), ("🌡", 1_024), ("a🌡", 1_021)]
        {
            let topic = character.repeat(65_000 / character.len());
            let source = Source::Topic(&topic);
            let label = source.to_label();
            assert!(label.starts_with(&format!("topic:{}…", &topic[..kept])), "{label}");
            assert!(label.ends_with(&format!("… ({} bytes)", topic.len())), "{label}");
            assert!(label.len() <= 1_100, "{} bytes, more than an envelope reads", label.len());
            assert!(source.is_too_long() && Source::from_label(&label).unwrap().is_too_long());
        }
        let longest = "x".repeat(Source::MAX_BYTES);
        let label = Source::Topic(&longest).to_label();
        assert_eq!(Source::from_label(&label), Some(Source::Topic(&longest)));
        assert!(!Source::Topic(&longest).is_too_long());
    }

    #[test]
    fn the_dots_of_a_routing_key_are_the_slashes_of_a_topic() {
        for (key, topic) in [
            ("zigbee2mqtt.kitchen", "zigbee2mqtt/kitchen"),
            (".a..b", "/a//b"),
            ("spBv1.0.plant.NDATA.node", "spBv1.0/plant/NDATA/node"),
            ("spBv1___0.plant.NDATA.node", "spBv1.0/plant/NDATA/node"),
            ("spBv1.0", "spBv1/0"),
        ] {
            assert_eq!(Source::mqtt_topic(key), topic);
        }
    }
}
