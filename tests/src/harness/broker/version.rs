//! The version of a broker.

use std::fmt::{self, Display};

/// A broker's version. Versions are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BrokerVersion(pub u16, pub u16, pub u16);

impl BrokerVersion {
    pub(super) fn parse(text: &str) -> Option<Self> {
        // Release candidates and distributions add a suffix: 4.3.0-rc.1, 4.0.5+dfsg.
        let core = text.split(['-', '+']).next()?;
        let mut parts = core.split('.').map(str::parse);
        Some(Self(parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?))
    }
}

impl Display for BrokerVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.0, self.1, self.2)
    }
}
