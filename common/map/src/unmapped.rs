//! Why no reading comes out of a payload.

use garenne_protocol::sensor::{BadRecord, Fault};
use strum::IntoStaticStr;

use crate::limits::{MAX_DEPTH, MAX_NODE_METRICS, MAX_PAYLOAD_BYTES, MAX_SOURCE_BYTES, MAX_VALUES};

/// Most characters of a field's name in a refusal.
const MAX_FIELD: usize = 64;

/// Why no reading comes out of a payload. The text is one line.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{}{reason}", rule.map(|rule| format!("rule {rule}: ")).unwrap_or_default())]
pub struct Unmapped {
    /// The number of the rule that matched, from 1. `None` if none did.
    pub rule: Option<usize>,
    /// The reason.
    pub reason: Reason,
}

/// The reason of [`Unmapped`].
#[derive(Debug, Clone, PartialEq, IntoStaticStr, thiserror::Error)]
#[strum(serialize_all = "kebab-case")]
#[non_exhaustive]
pub enum Reason {
    /// No rule matches the source and the payload.
    #[error("no rule matches")]
    NoRule,
    /// The payload is not in the form that the rule expects.
    #[error("{0}")]
    Malformed(String),
    /// The payload is larger than [`MAX_PAYLOAD_BYTES`].
    #[error("the payload is {0} bytes long; {MAX_PAYLOAD_BYTES} are allowed")]
    TooLarge(usize),
    /// The source is longer than [`MAX_SOURCE_BYTES`].
    #[error("the source is {0} bytes long; {MAX_SOURCE_BYTES} are allowed")]
    LongSource(usize),
    /// The payload is nested deeper than [`MAX_DEPTH`].
    #[error("the payload has more than {MAX_DEPTH} levels")]
    TooDeep,
    /// The payload has more than [`MAX_VALUES`] values.
    #[error("the payload has more than {MAX_VALUES} values")]
    TooManyValues,
    /// More readings than [`Limits::records`](garenne_protocol::sensor::Limits::records).
    #[error("more than {0} readings")]
    TooManyReadings(usize),
    /// The payload or the source lacks what a field of the rule needs.
    #[error("{field}: {what} is missing")]
    Missing {
        /// The field of the rule.
        field: &'static str,
        /// The missing pointer or capture.
        what: String,
    },
    /// A value has the wrong type: an object where a text is needed, or a text where an object is needed.
    #[error("{field}: {what} is {given}, expected {expected}")]
    WrongType {
        /// The field of the rule.
        field: &'static str,
        /// Where the value is.
        what: String,
        /// The value.
        given: String,
        /// The type that is needed.
        expected: &'static str,
    },
    /// A value is not a finite number, true, false, or in the rule's `enum`.
    #[error("value of {metric}: {given} is not a number")]
    NotANumber {
        /// The metric.
        metric: String,
        /// The value.
        given: String,
    },
    /// A value is a number that is not finite: `NaN`, `Infinity`, or beyond a double.
    #[error("value of {0}: not a finite number")]
    NotFinite(String),
    /// A time is in none of the rule's formats.
    #[error("time: {0}")]
    BadTime(String),
    /// A device, a metric, a unit or a time is not allowed in a reading.
    #[error("{0}")]
    Invalid(BadRecord),
    /// Two readings have the same device, metric and time, and different values.
    #[error(
        "two readings of device {device:?} and metric {metric:?} have the same time and different values"
    )]
    Duplicate {
        /// The device.
        device: String,
        /// The metric.
        metric: String,
    },
    /// The payload is empty, or has no number.
    #[error("no value is a number")]
    NoValue,
    /// A Sparkplug metric has only an alias, and the birth that announces it was not seen.
    #[error("metric alias {alias} of {node:?} is unknown; its birth was not seen, request a rebirth")]
    UnknownAlias {
        /// The alias.
        alias: u64,
        /// Group and edge node.
        node: String,
    },
    /// The births of a Sparkplug edge node have more than [`MAX_NODE_METRICS`] metrics.
    #[error("the births of an edge node have more than {MAX_NODE_METRICS} metrics")]
    TooManyMetrics,
}

impl Reason {
    /// The machine-readable name, such as `no-rule`.
    pub fn code(&self) -> &'static str {
        self.into()
    }

    /// Whether it is a reason to refuse the whole payload. Any other refuses a value, or an element of `each`.
    pub(crate) const fn is_about_payload(&self) -> bool {
        matches!(
            self,
            Self::NoRule
                | Self::Malformed(_)
                | Self::TooLarge(_)
                | Self::LongSource(_)
                | Self::TooDeep
                | Self::TooManyValues
                | Self::TooManyReadings(_)
                | Self::TooManyMetrics
                | Self::NoValue
        )
    }

    /// The refusal of the value at a position, which the payload has in `field`.
    pub(crate) fn in_record(&self, index: usize, field: &str) -> BadRecord {
        let (code, message) = match self {
            Self::Invalid(bad) => (bad.code, format!("{}: {}", bad.field, bad.message)),
            Self::NotFinite(_) => (Fault::NotFinite, "not a finite number".to_owned()),
            Self::NotANumber { given, .. } => (Fault::NotNumeric, format!("{given} is not a number")),
            Self::BadTime(_) => (Fault::BadTime, self.to_string()),
            Self::WrongType { .. } => (Fault::WrongType, self.to_string()),
            Self::Duplicate { .. } => (Fault::Duplicate, self.to_string()),
            _ => (Fault::MissingField, self.to_string()),
        };
        let field: String =
            field.chars().take(MAX_FIELD).map(|c| if c.is_control() { '?' } else { c }).collect();
        BadRecord { index, field: field.into(), message, code }
    }
}
