//! The grant of an entry of the senders file.

use std::sync::Arc;

use garenne_common::pattern::NamePattern;
use garenne_publish::READING_KIND;
use time::OffsetDateTime;

use super::rate::Rate;

/// Kinds with this start make a worker send signed requests to webhooks. Only a pattern with the same start allows them;
/// `*` does not.
const ALERTS: &str = "alert.";

/// The messages that an entry of the senders file allows.
pub(super) struct Grant {
    /// The name of the entry.
    pub(super) name: Arc<str>,
    pub(super) kinds: Vec<NamePattern>,
    pub(super) devices: Devices,
    /// From then on nothing is allowed.
    pub(super) expires: Option<OffsetDateTime>,
    pub(super) rate: Option<Rate>,
    /// Whether it may forward tasks of others, under the ids that they have.
    pub(super) forward: bool,
}

/// The devices that a sender may send records of.
pub(super) enum Devices {
    /// Those that a pattern matches.
    Matching(Vec<NamePattern>),
    /// The device that the sender's certificate names.
    OfCertificate,
}

impl Grant {
    /// Everything but alerts: a gateway without authentication.
    pub(super) fn open() -> Self {
        let any = || vec![NamePattern::any()];
        let devices = Devices::Matching(any());
        Self { name: "anonymous".into(), kinds: any(), devices, expires: None, rate: None, forward: true }
    }

    /// Readings of the device that the certificate names.
    pub(super) fn of_certificates() -> Self {
        let kinds = vec![NamePattern::of_name(READING_KIND)];
        Self {
            name: "certificates".into(),
            kinds,
            devices: Devices::OfCertificate,
            expires: None,
            rate: None,
            forward: false,
        }
    }

    pub(super) fn allows_kind(&self, kind: &str) -> bool {
        let is_alert = kind.starts_with(ALERTS);
        self.kinds
            .iter()
            .any(|pattern| pattern.matches(kind) && (!is_alert || pattern.as_str().starts_with(ALERTS)))
    }

    pub(super) fn allows_every_device(&self) -> bool {
        matches!(&self.devices, Devices::Matching(patterns) if patterns.iter().any(NamePattern::is_any))
    }

    /// Whether records of `device` are allowed for a sender whose certificate names the device `own`.
    pub(super) fn allows_device(&self, device: &str, own: Option<&str>) -> bool {
        match &self.devices {
            Devices::Matching(patterns) => patterns.iter().any(|pattern| pattern.matches(device)),
            Devices::OfCertificate => own == Some(device),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_are_allowed_by_patterns_of_alerts_only() {
        let allows = |pattern: &str, kind: &str| {
            let kinds = vec![NamePattern::parse(pattern).unwrap()];
            Grant { kinds, ..Grant::open() }.allows_kind(kind)
        };
        assert!(allows("*", "bench.noop") && allows("*", "reading.process") && allows("a*", "alerts"));
        assert!(
            !allows("*", "alert.notify") && !allows("a*", "alert.notify") && !allows("alert*", "alert.x")
        );
        assert!(allows("alert.*", "alert.notify") && allows("alert.notify", "alert.notify"));
    }
}
