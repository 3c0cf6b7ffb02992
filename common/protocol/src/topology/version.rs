//! What differs between broker versions, in one place.

use std::{fmt, str::FromStr};

use thiserror::Error;

/// A RabbitMQ version, as far as Garenne's behaviour depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BrokerVersion {
    /// Major.
    pub major: u16,
    /// Minor.
    pub minor: u16,
}

/// A text that is no version.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("broker version {0:?} is not like \"4.0\" or \"3.13.7\"")]
pub struct VersionError(String);

impl BrokerVersion {
    /// The oldest broker with at-least-once dead-lettering.
    pub const OLDEST: Self = Self { major: 3, minor: 10 };

    /// What `x-delivery-limit` must be for redelivery without a limit: -1 from 4.0 on, where a limit
    /// of 20 is the default; absent before, where -1 would drop a message at its first return.
    pub fn unlimited_delivery(self) -> Option<i64> {
        (self.major >= 4).then_some(-1)
    }

    /// Whether `nack(requeue)` raises `x-delivery-count`. From 4.3 on only unclean returns do.
    pub fn counts_hand_backs(self) -> bool {
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

impl fmt::Display for BrokerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_order_by_number_and_decide_the_limit() {
        let v = |text: &str| text.parse::<BrokerVersion>().unwrap();
        assert!(v("3.9.1") < v("3.10.8"));
        assert_eq!((v("3.13.7").unlimited_delivery(), v("4.0.5").unlimited_delivery()), (None, Some(-1)));
        assert_eq!((v("4.2.0").counts_hand_backs(), v("4.3.6").counts_hand_backs()), (true, false));
        assert_eq!(
            "four".parse::<BrokerVersion>().unwrap_err().to_string(),
            "broker version \"four\" is not like \"4.0\" or \"3.13.7\""
        );
    }
}
