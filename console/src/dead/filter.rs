//! Selects dead letters.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use clap::Args;
use garenne_common::{
    exit::{Exit, Failure},
    text::printable,
};
use garenne_protocol::task::{DeadReason, epoch_ms, matches_binding};

use super::dead_letter::{BROKER_REASONS, DeadLetter, UNKNOWN};
use crate::args::duration;

/// Conditions on dead letters. All of them must hold; of a repeated one, any value.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
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
        *self == Self::default()
    }

    /// The filter with these conditions.
    ///
    /// # Errors
    /// A reason that no dead letter can have.
    pub fn filter(&self) -> Result<Filter, Failure> {
        let known = DeadReason::ALL.iter().map(|reason| reason.as_str());
        let known: BTreeSet<&str> = known.chain(BROKER_REASONS).chain([UNKNOWN]).collect();
        if let Some(given) = self.reason.iter().find(|reason| !known.contains(reason.as_str())) {
            let known = known.into_iter().collect::<Vec<_>>().join(", ");
            let problem = format!("unknown reason {given:?}; expected one of {known}");
            return Err(Failure::new(Exit::Usage, problem));
        }
        Ok(Filter { conditions: self.clone(), exact_kind: None })
    }
}

/// Conditions with known reasons, and a kind that is not a pattern.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    conditions: FilterArgs,
    exact_kind: Option<String>,
}

impl Filter {
    /// Matches these task ids only.
    pub fn of_ids(ids: &[String]) -> Self {
        let conditions = FilterArgs { id: ids.to_vec(), ..FilterArgs::default() };
        Self { conditions, exact_kind: None }
    }

    /// Matches this exact kind only, if one is given. Publishers choose kinds, so that one may look like a pattern.
    #[must_use]
    pub fn of_kind(self, kind: Option<String>) -> Self {
        Self { exact_kind: kind, ..self }
    }

    /// Whether a dead letter meets every condition at `now`. One without a time never meets a condition on its age.
    pub fn matches(&self, letter: &DeadLetter, now: SystemTime) -> bool {
        let FilterArgs { kind, reason, older_than, newer_than, error, id } = &self.conditions;
        let age = letter
            .died_at
            .map(|at| Duration::from_millis(epoch_ms(now).saturating_sub(at).max(0).unsigned_abs()));
        let contains = |error: &str, text: &str| error.to_lowercase().contains(&text.to_lowercase());
        (kind.is_empty() || kind.iter().any(|pattern| matches_binding(pattern, &letter.kind)))
            && self.exact_kind.as_ref().is_none_or(|kind| *kind == letter.kind)
            && (reason.is_empty() || reason.contains(&letter.reason))
            && (id.is_empty() || letter.id.as_ref().is_some_and(|it| is_among(id, it)))
            && older_than.is_none_or(|span| age.is_some_and(|age| age >= span))
            && newer_than.is_none_or(|span| age.is_some_and(|age| age <= span))
            && error
                .as_ref()
                .is_none_or(|text| letter.error.as_ref().is_some_and(|error| contains(error, text)))
    }
}

/// Compares an id exactly and as displayed: hidden characters are hard to type.
fn is_among(given: &[String], id: &str) -> bool {
    let shown = printable(id);
    given.iter().any(|given| *given == id || *given == shown)
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
        args.filter().unwrap().matches(&letter, UNIX_EPOCH + Duration::from_secs(1_060))
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
            args.filter().unwrap_err().to_string(),
            "unknown reason \"conflicts\"; expected one of attempts-exhausted, conflict, delivery_limit, \
             expired, invalid-payload, malformed, maxlen, poison, rejected, stopped, too-large, unknown, unknown-kind"
        );
    }

    #[test]
    fn of_kind_matches_a_kind_that_looks_like_a_pattern_exactly() {
        let is_taken =
            |kind: &str| Filter::default().of_kind(Some("#".into())).matches(&letter(kind, &[]), UNIX_EPOCH);
        assert!(is_taken("#"));
        assert!(!is_taken("reading.process"));
    }

    #[test]
    fn an_id_matches_exactly_and_as_displayed() {
        let mut foreign = letter("k", &[]);
        foreign.id = Some("a\u{1b}[2J\u{202e}".into());
        for (given, taken) in [("a\u{1b}[2J\u{202e}", true), (r"a\u{1b}[2J\u{202e}", true), ("a", false)] {
            assert_eq!(Filter::of_ids(&[given.to_owned()]).matches(&foreign, UNIX_EPOCH), taken, "{given}");
        }
    }
}
