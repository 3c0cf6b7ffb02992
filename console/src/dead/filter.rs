//! Which dead letters.

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

use super::letter::{Letter, UNKNOWN};
use crate::args::duration;

/// What the broker itself gives as reasons for dead-lettering.
const BROKER_REASONS: [&str; 4] = ["expired", "rejected", "maxlen", "delivery_limit"];

/// Which letters: all conditions must hold; of one repeated, any.
#[derive(Args, Clone, Debug, Default)]
pub struct FilterArgs {
    /// Kind, or a pattern as in bindings (`reading.#`); repeatable
    #[arg(long, value_name = "KIND")]
    pub kind: Vec<String>,
    /// Reason, such as attempts-exhausted, conflict, or the broker's own; repeatable
    #[arg(long, value_name = "REASON")]
    pub reason: Vec<String>,
    /// Died at least this long ago
    #[arg(long, value_name = "SPAN", value_parser = duration)]
    pub older_than: Option<Duration>,
    /// Died at most this long ago
    #[arg(long, value_name = "SPAN", value_parser = duration)]
    pub newer_than: Option<Duration>,
    /// The error contains this text, in any case
    #[arg(long, value_name = "TEXT")]
    pub error: Option<String>,
    /// Task id, exactly or as it is shown; repeatable
    #[arg(long, value_name = "ID")]
    pub id: Vec<String>,
}

impl FilterArgs {
    /// Whether no condition is given, so that every letter matches.
    pub fn is_empty(&self) -> bool {
        let Self { kind, reason, older_than, newer_than, error, id } = self;
        kind.is_empty()
            && reason.is_empty()
            && id.is_empty()
            && older_than.is_none()
            && newer_than.is_none()
            && error.is_none()
    }

    /// The filter they describe.
    ///
    /// # Errors
    /// An unknown reason.
    pub fn filter(&self) -> Result<Filter, PatternError> {
        Filter::new(self)
    }
}

/// Conditions on dead letters; all must hold, of each set any.
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

/// A reason nobody gives, in all likelihood a slip of the keyboard.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("--reason {given:?} is none, expected one of {known}")]
pub struct PatternError {
    given: String,
    known: String,
}

impl HasExit for PatternError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }
}

impl Filter {
    pub(super) fn new(args: &FilterArgs) -> Result<Self, PatternError> {
        let known: BTreeSet<&str> = DeadReason::ALL
            .iter()
            .map(|reason| reason.as_str())
            .chain(BROKER_REASONS)
            .chain([UNKNOWN])
            .collect();
        if let Some(given) = args.reason.iter().find(|reason| !known.contains(reason.as_str())) {
            let known = known.into_iter().collect::<Vec<_>>().join(", ");
            return Err(PatternError { given: given.clone(), known });
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

    /// Only these tasks.
    pub fn of_ids(ids: impl IntoIterator<Item = String>) -> Self {
        Self { ids: ids.into_iter().collect(), ..Self::default() }
    }

    /// The letters of this very kind, even if it looks like a pattern, as one that others wrote may.
    #[must_use]
    pub fn of_kind(mut self, kind: String) -> Self {
        self.exact_kind = Some(kind);
        self
    }

    /// An id as it is, or as it is shown: what hidden characters are in it can hardly be typed.
    fn names(&self, id: &str) -> bool {
        self.ids.contains(id) || matches!(printable(id), Cow::Owned(shown) if self.ids.contains(&shown))
    }

    /// Whether a letter meets every condition at `now`. One without a time of death is neither older
    /// nor newer than anything.
    pub fn takes(&self, letter: &Letter, now: SystemTime) -> bool {
        let age = letter
            .died_at
            .map(|at| Duration::from_millis(epoch_ms(now).saturating_sub(at).max(0).unsigned_abs()));
        let any_of = |set: &BTreeSet<String>, value: &str| set.is_empty() || set.contains(value);
        (self.kinds.is_empty() || self.kinds.iter().any(|pattern| matches_binding(pattern, &letter.kind)))
            && self.exact_kind.as_ref().is_none_or(|kind| *kind == letter.kind)
            && any_of(&self.reasons, &letter.reason)
            && (self.ids.is_empty() || letter.id.as_ref().is_some_and(|id| self.names(id)))
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

    use super::{super::letter::tests::letter, *};

    fn takes(args: FilterArgs) -> bool {
        let letter = letter(
            "reading.process",
            &[
                (header::REASON, long("conflict")),
                (header::ERROR, long("Value 3 is stored, 4 came")),
                (header::DIED_AT, AMQPValue::LongLongInt(1_000_000)),
            ],
        );
        Filter::new(&args).unwrap().takes(&letter, UNIX_EPOCH + Duration::from_secs(1_060))
    }

    #[test]
    fn every_condition_must_hold() {
        let text = |text: &str| vec![text.to_owned()];
        let minute = Some(Duration::from_secs(60));
        let more = Some(Duration::from_secs(61));
        assert!(takes(FilterArgs::default()));
        assert!(takes(FilterArgs {
            kind: text("reading.#"),
            reason: text("conflict"),
            older_than: minute,
            newer_than: minute,
            error: Some("VALUE 3".into()),
            id: text("7"),
        }));
        assert!(!takes(FilterArgs { kind: text("window.#"), ..FilterArgs::default() }));
        assert!(!takes(FilterArgs { reason: text("poison"), ..FilterArgs::default() }));
        assert!(!takes(FilterArgs { older_than: more, ..FilterArgs::default() }));
        assert!(!takes(FilterArgs { error: Some("timeout".into()), ..FilterArgs::default() }));
        assert!(!takes(FilterArgs { id: text("8"), ..FilterArgs::default() }));
        assert!(!takes(FilterArgs { newer_than: Some(Duration::from_secs(59)), ..FilterArgs::default() }));
    }

    #[test]
    fn a_reason_nobody_gives_is_refused() {
        let args = FilterArgs { reason: vec!["conflicts".into()], ..FilterArgs::default() };
        assert_eq!(
            Filter::new(&args).unwrap_err().to_string(),
            "--reason \"conflicts\" is none, expected one of attempts-exhausted, conflict, delivery_limit, \
             expired, invalid-payload, malformed, maxlen, poison, rejected, stopped, too-large, unknown, unknown-kind"
        );
    }

    #[test]
    fn a_kind_that_looks_like_a_pattern_can_be_meant_as_it_is() {
        let is_taken =
            |kind: &str| Filter::default().of_kind("#".into()).takes(&letter(kind, &[]), UNIX_EPOCH);
        assert!(is_taken("#"));
        assert!(!is_taken("reading.process"));
    }

    #[test]
    fn an_id_is_found_as_it_is_and_as_it_is_shown() {
        let mut foreign = letter("k", &[]);
        foreign.id = Some("a\u{1b}[2J\u{202e}".into());
        for (given, taken) in [("a\u{1b}[2J\u{202e}", true), (r"a\u{1b}[2J\u{202e}", true), ("a", false)] {
            assert_eq!(Filter::of_ids([given.to_owned()]).takes(&foreign, UNIX_EPOCH), taken, "{given}");
        }
    }
}
