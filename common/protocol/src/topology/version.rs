//! Differences between RabbitMQ versions that Garenne depends on.

use std::{fmt, str::FromStr};

use thiserror::Error;

/// A RabbitMQ version without its patch level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BrokerVersion {
    /// The major version.
    pub major: u16,
    /// The minor version.
    pub minor: u16,
}

impl fmt::Display for BrokerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A text is not a broker version.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid broker version {0:?}; expected a form like \"4.0\" or \"3.13.7\"")]
pub struct VersionError(String);

impl BrokerVersion {
    /// The value of `x-delivery-limit` for unlimited redelivery: -1 since 4.0, where the default limit is 20;
    /// absent before 4.0, where -1 would drop a message at its first redelivery.
    pub fn unlimited_delivery(self) -> Option<i64> {
        (self.major >= 4).then_some(-1)
    }

    /// Whether the broker cancels a consumer whose consumer timeout has passed. Earlier versions close the channel, and
    /// cancel only the consumers of a deleted queue.
    pub fn cancels_late_consumers(self) -> bool {
        self >= Self { major: 4, minor: 3 }
    }

    /// Whether the broker counts a message that a client returns on purpose as redelivered, like one that a crashed client
    /// held.
    pub fn counts_returns(self) -> bool {
        self < Self { major: 4, minor: 3 }
    }
}

impl FromStr for BrokerVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('.').map(str::parse);
        match (parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Ok(Self { major, minor }),
            _ => Err(VersionError(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_order_numerically_and_determine_the_delivery_limit() {
        let v = |text: &str| text.parse::<BrokerVersion>().unwrap();
        assert!(v("3.9.1") < v("3.10.8"));
        assert_eq!((v("3.13.7").unlimited_delivery(), v("4.0.5").unlimited_delivery()), (None, Some(-1)));
        assert!(!v("4.2.9").cancels_late_consumers() && v("4.3.0").cancels_late_consumers());
        assert!(v("4.2.9").counts_returns() && !v("4.3.0").counts_returns());
        assert_eq!(
            "four".parse::<BrokerVersion>().unwrap_err().to_string(),
            "invalid broker version \"four\"; expected a form like \"4.0\" or \"3.13.7\""
        );
    }
}
