//! The reasons for dead letters, as named in metrics, receipts and headers.

use strum::{Display, EnumString, IntoStaticStr, VariantArray};

/// Why a task is in the dead-letter queue. The text form is the header `garenne-reason` and the
/// metric label.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Display, EnumString, IntoStaticStr, VariantArray,
)]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = unknown_reason)]
#[non_exhaustive]
pub enum DeadReason {
    /// The message is not a valid task: an invalid property or header, or a body that is not JSON.
    Malformed,
    /// The body is over the worker's limit, or no copy of the message fits a frame.
    TooLarge,
    /// No handler is registered for the kind.
    UnknownKind,
    /// The body is JSON, but not a valid payload of the kind.
    InvalidPayload,
    /// The handler returned a permanent error.
    Rejected,
    /// All attempts failed.
    AttemptsExhausted,
    /// An operator stopped the task.
    Stopped,
    /// The task expired before its start.
    Expired,
    /// The workers that ran the task crashed.
    Poison,
    /// The task's result contradicts a stored one.
    Conflict,
    /// No map makes a reading of a foreign payload.
    Unmapped,
}

impl DeadReason {
    /// Every reason.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The reason's name in the header and in metric labels.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

fn unknown_reason(text: &str) -> String {
    let all: Vec<_> = DeadReason::ALL.iter().map(|reason| reason.as_str()).collect();
    format!("unknown reason {text:?}; expected one of {}", all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_parses_from_its_name() {
        for reason in DeadReason::ALL {
            assert_eq!(reason.as_str().parse(), Ok(*reason));
        }
        let error = "odd".parse::<DeadReason>().unwrap_err();
        assert!(error.starts_with("unknown reason \"odd\"; expected one of malformed,"), "{error}");
    }
}
