//! Which internal headers of a delivery can be true, by where it came from.
//!
//! A publisher's exchange is open to any client, so what only workers write is not believed there. Straight to a
//! queue come copies and follow-ups, but also any client with the right to write to the default exchange:
//! there internal headers are validated instead ([`Envelope::read`](super::Envelope::read)).

use amq_protocol::{protocol::BasicProperties, types::FieldTable};

use super::header;

/// Where a delivery came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Through an exchange that no worker publishes tasks to.
    Publisher,
    /// Straight to a lane: a retry, a deferral, a follow-up or a replay.
    Lane,
    /// Straight to the quarantine.
    Quarantine,
}

/// The label of every header whose name begins with [`QUARANTINE`].
const QUARANTINE_LABEL: &str = "garenne-quarantine";
/// The marks of a task that may kill its worker.
const QUARANTINE: &str = "garenne-quarantine-";

/// Written by workers and by `garenne dead replay` into tasks that go to a lane.
const IN_LANES: [&str; 10] = [
    header::ATTEMPT,
    header::DEPTH,
    header::DROPPED,
    header::DROPPED_BYTES,
    header::EXPIRES_AT,
    header::FIRST_SEEN,
    header::NOT_BEFORE,
    header::PARENT,
    header::REPLAYED_AT,
    header::USER_ID,
];
/// Written by workers into dead letters only.
const IN_DEAD_LETTERS: [&str; 4] = [header::DIED_AT, header::ERROR, header::REASON, header::WORKER];

impl Origin {
    /// What [`believable`](Self::believable) may name, for a metric's label.
    pub fn labels() -> impl Iterator<Item = &'static str> {
        IN_LANES.into_iter().chain(IN_DEAD_LETTERS).chain([header::LANE, QUARANTINE_LABEL])
    }

    /// The properties without the headers that nobody can have written who is believed here, and the labels of
    /// these headers; nothing where there are none.
    pub fn believable(self, properties: &BasicProperties) -> Option<(BasicProperties, Vec<&'static str>)> {
        let headers = properties.headers().as_ref()?.inner();
        let ignored: Vec<_> = headers.keys().filter_map(|name| self.ignores(name.as_str())).collect();
        if ignored.is_empty() {
            return None;
        }
        let mut kept = FieldTable::default();
        for (name, value) in headers.iter().filter(|(name, _)| self.ignores(name.as_str()).is_none()) {
            kept.insert(name.clone(), value.clone());
        }
        Some((properties.clone().with_headers(kept), ignored))
    }

    /// The label of a header that is ignored here.
    fn ignores(self, name: &str) -> Option<&'static str> {
        if !name.starts_with("garenne-") {
            return None;
        }
        let of = |names: &[&'static str]| names.iter().find(|one| **one == name).copied();
        let quarantine = || {
            let is = name.starts_with(QUARANTINE);
            is.then_some(QUARANTINE_LABEL).or_else(|| of(&[header::LANE]))
        };
        let dead = || of(&IN_DEAD_LETTERS);
        match self {
            Self::Publisher => of(&IN_LANES).or_else(quarantine).or_else(dead),
            Self::Lane => quarantine().or_else(dead),
            Self::Quarantine => dead(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(origin: Origin) -> Vec<String> {
        let mut headers = FieldTable::default();
        let theirs = [header::GROUP, header::KEY, header::DELAY_MS, header::TIMEOUT_MS, header::TRACEPARENT];
        let marks = [header::QUARANTINE_WORKER, header::QUARANTINE_RUNS, header::LANE];
        for name in IN_LANES.into_iter().chain(IN_DEAD_LETTERS).chain(theirs).chain(marks).chain(["mine"]) {
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
    fn a_publisher_is_believed_nothing_that_only_workers_write() {
        let theirs =
            ["garenne-delay-ms", "garenne-group", "garenne-key", "garenne-timeout-ms", "mine", "traceparent"];
        assert_eq!(kept(Origin::Publisher), theirs);
    }

    #[test]
    fn marks_of_the_quarantine_and_of_dead_letters_mean_nothing_in_a_lane() {
        let in_lane = kept(Origin::Lane);
        assert!(in_lane.contains(&header::ATTEMPT.to_owned()), "{in_lane:?}");
        let of = |name: &str| name.starts_with(QUARANTINE) || name == header::LANE || name == header::REASON;
        assert!(!in_lane.iter().any(|name| of(name)), "{in_lane:?}");
        let alone = kept(Origin::Quarantine);
        assert!(
            alone.contains(&header::QUARANTINE_WORKER.to_owned()) && alone.contains(&header::LANE.to_owned())
        );
        assert!(!alone.contains(&header::REASON.to_owned()), "{alone:?}");
    }

    #[test]
    fn what_has_nothing_to_ignore_is_not_copied() {
        assert!(Origin::Publisher.believable(&BasicProperties::default()).is_none());
        let mut headers = FieldTable::default();
        headers.insert(header::GROUP.into(), header::long("g"));
        assert!(Origin::Publisher.believable(&BasicProperties::default().with_headers(headers)).is_none());
    }
}
