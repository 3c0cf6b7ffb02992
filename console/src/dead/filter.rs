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
use garenne_operator::{
    args::duration,
    dead::{BROKER_REASONS, DeadLetter, UNKNOWN},
};
use garenne_protocol::task::{DeadReason, epoch_ms, matches_binding};

use super::error_pattern::error_pattern;

/// Conditions on the messages of any queue. All of them must hold; of a repeated one, any value.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Kind, or a binding pattern such as `reading.#`; repeatable
    #[arg(long, value_name = "KIND")]
    pub kind: Vec<String>,
    /// Exactly this kind, even if it looks like a pattern: publishers choose kinds
    #[arg(long, value_name = "KIND")]
    pub exact_kind: Option<String>,
    /// Group of the task; repeatable
    #[arg(long, value_name = "NAME")]
    pub group: Vec<String>,
    /// At least this old, by the time that the list shows
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub older_than: Option<Duration>,
    /// At most this old, by the time that the list shows
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub newer_than: Option<Duration>,
    /// Task id, exact or as displayed; repeatable
    #[arg(long, value_name = "ID")]
    pub id: Vec<String>,
}

impl Conditions {
    /// Whether a message meets every condition at `now`. One without a time never meets a condition on its age.
    fn matches(&self, letter: &DeadLetter, now: SystemTime) -> bool {
        let Self { kind, exact_kind, group, older_than, newer_than, id } = self;
        let age = letter
            .died_at
            .map(|at| Duration::from_millis(epoch_ms(now).saturating_sub(at).max(0).unsigned_abs()));
        (kind.is_empty() || kind.iter().any(|pattern| matches_binding(pattern, &letter.kind)))
            && exact_kind.as_ref().is_none_or(|kind| *kind == letter.kind)
            && (group.is_empty() || letter.group.as_ref().is_some_and(|it| is_among(group, it)))
            && (id.is_empty() || letter.id.as_ref().is_some_and(|it| is_among(id, it)))
            && older_than.is_none_or(|span| age.is_some_and(|age| age >= span))
            && newer_than.is_none_or(|span| age.is_some_and(|age| age <= span))
    }
}

/// Conditions on dead letters. All of them must hold; of a repeated one, any value.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Conditions on messages of any queue.
    #[command(flatten)]
    pub conditions: Conditions,
    /// Reason, such as attempts-exhausted, conflict, or a reason of the broker; repeatable
    #[arg(long, value_name = "REASON")]
    pub reason: Vec<String>,
    /// The error contains this text, ignoring case
    #[arg(long, value_name = "TEXT")]
    pub error: Option<String>,
    /// The error is this one, whatever its values and ids: words with digits are not compared, except for whole numbers
    /// up to 999
    #[arg(long, value_name = "TEXT")]
    pub error_like: Option<String>,
    /// Kind, error, group or id contain this text, ignoring case
    #[arg(long, value_name = "TEXT")]
    pub text: Option<String>,
}

impl From<Conditions> for Filter {
    fn from(conditions: Conditions) -> Self {
        Self { conditions, ..Self::default() }
    }
}

impl Filter {
    /// Whether there is no condition, so that every dead letter matches.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks the reasons. Returns the filter itself.
    pub fn check(&self) -> Result<&Self, Failure> {
        let known = DeadReason::ALL.iter().map(|reason| reason.as_str());
        let known: BTreeSet<&str> = known.chain(BROKER_REASONS).chain([UNKNOWN]).collect();
        let Some(given) = self.reason.iter().find(|reason| !known.contains(reason.as_str())) else {
            return Ok(self);
        };
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        Err(Failure::new(Exit::Usage, format!("unknown reason {given:?}; expected one of {known}")))
    }

    /// Whether a dead letter meets every condition at `now`.
    pub fn matches(&self, letter: &DeadLetter, now: SystemTime) -> bool {
        let Self { conditions, reason, error, error_like, text } = self;
        let of_letter = letter.error.as_deref();
        let texts = [Some(letter.kind.as_str()), of_letter, letter.group.as_deref(), letter.id.as_deref()];
        conditions.matches(letter, now)
            && (reason.is_empty() || reason.contains(&letter.reason))
            && error.as_ref().is_none_or(|text| of_letter.is_some_and(|error| contains(error, text)))
            && error_like
                .as_ref()
                .is_none_or(|like| error_pattern(of_letter.unwrap_or_default()) == error_pattern(like))
            && text.as_ref().is_none_or(|text| texts.into_iter().flatten().any(|it| contains(it, text)))
    }
}

/// Whether a value contains a text, exactly or as displayed, ignoring case.
fn contains(value: &str, text: &str) -> bool {
    let text = text.to_lowercase();
    value.to_lowercase().contains(&text) || printable(value).to_lowercase().contains(&text)
}

/// Compares an id or a group exactly and as displayed: hidden characters are hard to type.
fn is_among(given: &[String], id: &str) -> bool {
    let shown = printable(id);
    given.iter().any(|given| *given == id || *given == shown)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use garenne_protocol::task::header::{self, long};
    use lapin::types::AMQPValue;

    use super::{super::tests::letter, *};

    fn matches(args: Filter) -> bool {
        let letter = letter(
            "reading.process",
            &[
                (header::REASON, long("conflict")),
                (header::ERROR, long("Value 3 is stored, 4 came")),
                (header::GROUP, long("import-7")),
                (header::DIED_AT, AMQPValue::LongLongInt(1_000_000)),
            ],
        );
        args.check().unwrap().matches(&letter, UNIX_EPOCH + Duration::from_secs(1_060))
    }

    #[test]
    fn every_condition_must_hold() {
        let text = |text: &str| vec![text.to_owned()];
        let minute = Some(Duration::from_secs(60));
        let more = Some(Duration::from_secs(61));
        assert!(matches(Filter::default()));
        let conditions = Conditions {
            kind: text("reading.#"),
            older_than: minute,
            newer_than: minute,
            id: text("7"),
            exact_kind: Some("reading.process".into()),
            group: text("import-7"),
        };
        let error = Some("VALUE 3".into());
        assert!(matches(Filter { conditions, reason: text("conflict"), error, ..Filter::default() }));
        let none = Conditions::default;
        assert!(!matches(Conditions { group: text("import-8"), ..none() }.into()));
        assert!(!matches(Conditions { kind: text("window.#"), ..none() }.into()));
        assert!(!matches(Filter { reason: text("poison"), ..Filter::default() }));
        assert!(!matches(Conditions { older_than: more, ..none() }.into()));
        assert!(!matches(Filter { error: Some("timeout".into()), ..Filter::default() }));
        for (like, taken) in [("Value 3 is stored, 4 came", true), ("Value 3 is stored, 5 came", false)] {
            assert_eq!(
                matches(Filter { error_like: Some(like.into()), ..Filter::default() }),
                taken,
                "{like}"
            );
        }
        for (part, taken) in
            [("PROCESS", true), ("import", true), ("4 Came", true), ("7", true), ("fast", false)]
        {
            assert_eq!(matches(Filter { text: Some(part.into()), ..Filter::default() }), taken, "{part}");
        }
        assert!(!matches(Conditions { id: text("8"), ..none() }.into()));
        assert!(!matches(Conditions { newer_than: Some(Duration::from_secs(59)), ..none() }.into()));
    }

    #[test]
    fn an_unknown_reason_is_refused() {
        let args = Filter { reason: vec!["conflicts".into()], ..Filter::default() };
        assert_eq!(
            args.check().unwrap_err().to_string(),
            "unknown reason \"conflicts\"; expected one of attempts-exhausted, conflict, delivery_limit, \
             expired, invalid-payload, malformed, maxlen, poison, rejected, stopped, too-large, unknown, unknown-kind, \
             unmapped"
        );
    }

    #[test]
    fn an_exact_kind_that_looks_like_a_pattern_is_none() {
        let filter = Filter::from(Conditions { exact_kind: Some("#".into()), ..Conditions::default() });
        let is_taken = |kind: &str| filter.matches(&letter(kind, &[]), UNIX_EPOCH);
        assert!(is_taken("#"));
        assert!(!is_taken("reading.process"));
    }

    #[test]
    fn an_id_matches_exactly_and_as_displayed() {
        let mut foreign = letter("k", &[]);
        foreign.id = Some("a\u{1b}[2J\u{202e}".into());
        for (given, taken) in [("a\u{1b}[2J\u{202e}", true), (r"a\u{1b}[2J\u{202e}", true), ("a", false)] {
            let filter = Filter::from(Conditions { id: vec![given.to_owned()], ..Conditions::default() });
            assert_eq!(filter.matches(&foreign, UNIX_EPOCH), taken, "{given}");
        }
    }
}
