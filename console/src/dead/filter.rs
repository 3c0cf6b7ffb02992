//! Selects dead letters.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use clap::Args;
use garenne_common::{
    exit::{Exit, HasExit},
    text::printable,
};
use garenne_protocol::task::{DeadReason, epoch_ms, matches_binding};
use thiserror::Error;

use super::dead_letter::{DeadLetter, UNKNOWN};
use crate::args::duration;

/// The broker's own reasons for dead-lettering.
const BROKER_REASONS: [&str; 4] = ["expired", "rejected", "maxlen", "delivery_limit"];

/// Conditions on dead letters. All of them must hold; of a repeated one, any value.
#[derive(Args, Clone, Debug, Default)]
pub struct FilterArgs {
    /// Kind, or a binding pattern such as `reading.#`; repeatable
    #[arg(long, value_name = "KIND")]
    pub kind: Vec<String>,
    /// Reason, such as attempts-exhausted, conflict, or a reason of the broker; repeatable
    #[arg(long, value_name = "REASON")]
    pub reason: Vec<String>,
    /// Dead-lettered at least this long ago
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub older_than: Option<Duration>,
    /// Dead-lettered at most this long ago
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub newer_than: Option<Duration>,
    /// The error contains this text, ignoring case
    #[arg(long, value_name = "TEXT")]
    pub error: Option<String>,
    /// Task id, exact or as displayed; repeatable
    #[arg(long, value_name = "ID")]
    pub id: Vec<String>,
}

impl FilterArgs {
    /// Whether there is no condition, so that every dead letter matches.
    pub fn is_empty(&self) -> bool {
        let Self { kind, reason, older_than, newer_than, error, id } = self;
        kind.is_empty()
            && reason.is_empty()
            && id.is_empty()
            && older_than.is_none()
            && newer_than.is_none()
            && error.is_none()
    }

    /// The filter with these conditions.
    ///
    /// # Errors
    /// An unknown reason.
    pub fn filter(&self) -> Result<Filter, UnknownReason> {
        Filter::new(self)
    }
}

/// Conditions on dead letters. All of them must hold; of a set, any value.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    kinds: Vec<String>,
    exact_kind: Option<String>,
    reasons: BTreeSet<String>,
    older_than: Option<Duration>,
    newer_than: Option<Duration>,
    error: Option<String>,
    ids: BTreeSet<String>,
}

/// A reason that no dead letter can have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown reason {given:?}; expected one of {known}")]
pub struct UnknownReason {
    given: String,
    known: String,
}

impl HasExit for UnknownReason {
    fn exit(&self) -> Exit {
        Exit::Usage
    }
}

impl Filter {
    pub(super) fn new(args: &FilterArgs) -> Result<Self, UnknownReason> {
        let known: BTreeSet<&str> = DeadReason::ALL
            .iter()
            .map(|reason| reason.as_str())
            .chain(BROKER_REASONS)
            .chain([UNKNOWN])
            .collect();
        if let Some(given) = args.reason.iter().find(|reason| !known.contains(reason.as_str())) {
            let known = known.into_iter().collect::<Vec<_>>().join(", ");
            return Err(UnknownReason { given: given.clone(), known });
        }
        Ok(Self {
            kinds: args.kind.clone(),
            exact_kind: None,
            reasons: args.reason.iter().cloned().collect(),
            older_than: args.older_than,
            newer_than: args.newer_than,
            error: args.error.as_ref().map(|text| text.to_lowercase()),
            ids: args.id.iter().cloned().collect(),
        })
    }

    /// Matches these task ids only.
    pub fn of_ids(ids: impl IntoIterator<Item = String>) -> Self {
        Self { ids: ids.into_iter().collect(), ..Self::default() }
    }

    /// Matches this exact kind. Publishers choose kinds, so that one may look like a pattern.
    #[must_use]
    pub fn of_kind(mut self, kind: String) -> Self {
        self.exact_kind = Some(kind);
        self
    }

    /// Compares an id exactly and as displayed: hidden characters are hard to type.
    fn has_id(&self, id: &str) -> bool {
        self.ids.contains(id) || matches!(printable(id), Cow::Owned(shown) if self.ids.contains(&shown))
    }

    /// Whether a dead letter meets every condition at `now`. One without a time never meets a condition on its age.
    pub fn matches(&self, letter: &DeadLetter, now: SystemTime) -> bool {
        let age = letter
            .died_at
            .map(|at| Duration::from_millis(epoch_ms(now).saturating_sub(at).max(0).unsigned_abs()));
        let any_of = |set: &BTreeSet<String>, value: &str| set.is_empty() || set.contains(value);
        (self.kinds.is_empty() || self.kinds.iter().any(|pattern| matches_binding(pattern, &letter.kind)))
            && self.exact_kind.as_ref().is_none_or(|kind| *kind == letter.kind)
            && any_of(&self.reasons, &letter.reason)
            && (self.ids.is_empty() || letter.id.as_ref().is_some_and(|id| self.has_id(id)))
            && self.older_than.is_none_or(|span| age.is_some_and(|age| age >= span))
            && self.newer_than.is_none_or(|span| age.is_some_and(|age| age <= span))
            && self.error.as_ref().is_none_or(|text| {
                letter.error.as_ref().is_some_and(|error| error.to_lowercase().contains(text))
            })
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use garenne_protocol::task::header::{self, long};
    use lapin::types::AMQPValue;

    use super::{super::dead_letter::tests::letter, *};

    fn matches(args: FilterArgs) -> bool {
        let letter = letter(
            "reading.process",
            &[
                (header::REASON, long("conflict")),
                (header::ERROR, long("Value 3 is stored, 4 came")),
                (header::DIED_AT, AMQPValue::LongLongInt(1_000_000)),
            ],
        );
        Filter::new(&args).unwrap().matches(&letter, UNIX_EPOCH + Duration::from_secs(1_060))
    }

    #[test]
    fn every_condition_must_hold() {
        let text = |text: &str| vec![text.to_owned()];
        let minute = Some(Duration::from_secs(60));
        let more = Some(Duration::from_secs(61));
        assert!(matches(FilterArgs::default()));
        assert!(matches(FilterArgs {
            kind: text("reading.#"),
            reason: text("conflict"),
            older_than: minute,
            newer_than: minute,
            error: Some("VALUE 3".into()),
            id: text("7"),
        }));
        assert!(!matches(FilterArgs { kind: text("window.#"), ..FilterArgs::default() }));
        assert!(!matches(FilterArgs { reason: text("poison"), ..FilterArgs::default() }));
        assert!(!matches(FilterArgs { older_than: more, ..FilterArgs::default() }));
        assert!(!matches(FilterArgs { error: Some("timeout".into()), ..FilterArgs::default() }));
        assert!(!matches(FilterArgs { id: text("8"), ..FilterArgs::default() }));
        assert!(!matches(FilterArgs { newer_than: Some(Duration::from_secs(59)), ..FilterArgs::default() }));
    }

    #[test]
    fn an_unknown_reason_is_refused() {
        let args = FilterArgs { reason: vec!["conflicts".into()], ..FilterArgs::default() };
        assert_eq!(
            Filter::new(&args).unwrap_err().to_string(),
            "unknown reason \"conflicts\"; expected one of attempts-exhausted, conflict, delivery_limit, \
             expired, invalid-payload, malformed, maxlen, poison, rejected, stopped, too-large, unknown, unknown-kind"
        );
    }

    #[test]
    fn of_kind_matches_a_kind_that_looks_like_a_pattern_exactly() {
        let is_taken =
            |kind: &str| Filter::default().of_kind("#".into()).matches(&letter(kind, &[]), UNIX_EPOCH);
        assert!(is_taken("#"));
        assert!(!is_taken("reading.process"));
    }

    #[test]
    fn an_id_matches_exactly_and_as_displayed() {
        let mut foreign = letter("k", &[]);
        foreign.id = Some("a\u{1b}[2J\u{202e}".into());
        for (given, taken) in [("a\u{1b}[2J\u{202e}", true), (r"a\u{1b}[2J\u{202e}", true), ("a", false)] {
            assert_eq!(Filter::of_ids([given.to_owned()]).matches(&foreign, UNIX_EPOCH), taken, "{given}");
        }
    }
}
