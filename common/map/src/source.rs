//! Where a payload came from.

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
    /// The topic, path or routing key.
    pub const fn text(self) -> &'a str {
        match self {
            Self::Topic(text) | Self::Path(text) | Self::RoutingKey(text) => text,
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
