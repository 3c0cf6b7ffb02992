//! Which internal headers of a delivery are trusted, by the delivery's origin.
//!
//! Senders of foreign messages know nothing of Garenne, so none of its headers is trusted there. Any client can publish to
//! the tasks exchange, so headers that only workers write are ignored there. Copies
//! and follow-ups are published directly to a queue, but so can be messages of any client that may write to the
//! default exchange: in these, internal headers are validated ([`Envelope::read`](super::Envelope::read)).

use amq_protocol::{protocol::BasicProperties, types::FieldTable};

use super::header::{ALL, WRITTEN_INTO, WrittenInto};

/// How a delivery was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Through an exchange whose messages were not written for Garenne.
    Foreign,
    /// Through an exchange that no worker publishes tasks to.
    Publisher,
    /// Directly to a lane: a retry, a deferral, a follow-up or a replay.
    Lane,
    /// Directly to the quarantine.
    Quarantine,
}

/// The common metric label of all headers that start with [`QUARANTINE_PREFIX`].
const QUARANTINE_LABEL: &str = "garenne-quarantine";
/// The prefix of the headers that workers write into tasks in the quarantine.
const QUARANTINE_PREFIX: &str = "garenne-quarantine-";

impl Origin {
    /// All labels that [`believable`](Self::believable) can return.
    pub fn labels() -> impl Iterator<Item = &'static str> {
        let is_separate = |name: &&str| !name.starts_with(QUARANTINE_PREFIX);
        ALL.iter().copied().filter(is_separate).chain([QUARANTINE_LABEL])
    }

    /// The properties without the headers that are not trusted from this origin, and the metric labels of the
    /// removed headers. `None` if nothing has to be removed.
    pub fn believable(self, properties: &BasicProperties) -> Option<(BasicProperties, Vec<&'static str>)> {
        let headers = properties.headers().as_ref()?.inner();
        let ignored: Vec<_> = headers.keys().filter_map(|name| self.ignored_label(name.as_str())).collect();
        if ignored.is_empty() {
            return None;
        }
        let mut kept = FieldTable::default();
        for (name, value) in headers.iter().filter(|(name, _)| self.ignored_label(name.as_str()).is_none()) {
            kept.insert(name.clone(), value.clone());
        }
        Some((properties.clone().with_headers(kept), ignored))
    }

    /// The metric label of the header if it is not trusted from this origin, else `None`.
    fn ignored_label(self, name: &str) -> Option<&'static str> {
        if name.starts_with(QUARANTINE_PREFIX) {
            return (self != Self::Quarantine).then_some(QUARANTINE_LABEL);
        }
        let (label, written_into) = WRITTEN_INTO.iter().find(|(known, _)| *known == name)?;
        let is_trusted = match written_into {
            WrittenInto::Publisher => self != Self::Foreign,
            WrittenInto::Lane => matches!(self, Self::Lane | Self::Quarantine),
            WrittenInto::Quarantine => self == Self::Quarantine,
            WrittenInto::DeadLetter => false,
        };
        (!is_trusted).then_some(label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::header;

    fn kept(origin: Origin) -> Vec<String> {
        let mut headers = FieldTable::default();
        let public = [header::GROUP, header::KEY, header::DELAY_MS, header::TIMEOUT_MS, header::TRACEPARENT];
        let internal = WRITTEN_INTO.iter().filter(|(_, into)| *into != WrittenInto::Publisher);
        for name in internal.map(|(name, _)| *name).chain(public).chain(["mine"]) {
            headers.insert(name.into(), header::long("forged"));
        }
        let (properties, ignored) =
            origin.believable(&BasicProperties::default().with_headers(headers)).unwrap();
        let labels: Vec<_> = Origin::labels().collect();
        assert!(ignored.iter().all(|label| labels.contains(label)), "{ignored:?}");
        let kept = properties.headers().as_ref().unwrap().inner();
        kept.keys().map(|name| name.as_str().to_owned()).collect()
    }

    #[test]
    fn worker_headers_from_a_publisher_are_ignored() {
        let public =
            ["garenne-delay-ms", "garenne-group", "garenne-key", "garenne-timeout-ms", "mine", "traceparent"];
        assert_eq!(kept(Origin::Publisher), public);
    }

    #[test]
    fn every_header_with_a_meaning_is_ignored_in_a_foreign_message() {
        assert_eq!(kept(Origin::Foreign), ["mine"]);
    }

    #[test]
    fn quarantine_and_dead_letter_headers_are_ignored_in_a_lane() {
        let in_lane = kept(Origin::Lane);
        assert!(in_lane.contains(&header::ATTEMPT.to_owned()), "{in_lane:?}");
        let is_ignored = |name: &str| {
            name.starts_with(QUARANTINE_PREFIX) || name == header::LANE || name == header::REASON
        };
        assert!(!in_lane.iter().any(|name| is_ignored(name)), "{in_lane:?}");
        let in_quarantine = kept(Origin::Quarantine);
        assert!(in_quarantine.contains(&header::QUARANTINE_WORKER.to_owned()), "{in_quarantine:?}");
        assert!(in_quarantine.contains(&header::LANE.to_owned()), "{in_quarantine:?}");
        assert!(!in_quarantine.contains(&header::REASON.to_owned()), "{in_quarantine:?}");
    }

    #[test]
    fn properties_without_ignored_headers_are_not_copied() {
        assert!(Origin::Publisher.believable(&BasicProperties::default()).is_none());
        let mut headers = FieldTable::default();
        headers.insert(header::GROUP.into(), header::long("g"));
        assert!(Origin::Publisher.believable(&BasicProperties::default().with_headers(headers)).is_none());
    }
}
