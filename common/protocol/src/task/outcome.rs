//! How a delivery ends, in the words that metrics, receipts and dead letters use.

use std::{fmt, str::FromStr};

/// Why a task is in the dead-letter queue. The text form is the header `garenne-reason` and the
/// metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeadReason {
    /// The message is no task: broken header, body that is no JSON.
    Malformed,
    /// The body is over the worker's limit, or no copy of the message fits a frame.
    TooLarge,
    /// No handler for the kind.
    UnknownKind,
    /// JSON, but not what the kind's handler takes.
    InvalidPayload,
    /// The handler refused it for good.
    Rejected,
    /// Every attempt failed.
    AttemptsExhausted,
    /// An operator stopped it.
    Stopped,
    /// Its time was up before it started.
    Expired,
    /// It killed the workers that ran it.
    Poison,
    /// Its effect contradicts one that is stored.
    Conflict,
}

impl DeadReason {
    /// Every reason.
    pub const ALL: [Self; 10] = [
        Self::Malformed,
        Self::TooLarge,
        Self::UnknownKind,
        Self::InvalidPayload,
        Self::Rejected,
        Self::AttemptsExhausted,
        Self::Stopped,
        Self::Expired,
        Self::Poison,
        Self::Conflict,
    ];

    /// The reason as it stands on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::TooLarge => "too-large",
            Self::UnknownKind => "unknown-kind",
            Self::InvalidPayload => "invalid-payload",
            Self::Rejected => "rejected",
            Self::AttemptsExhausted => "attempts-exhausted",
            Self::Stopped => "stopped",
            Self::Expired => "expired",
            Self::Poison => "poison",
            Self::Conflict => "conflict",
        }
    }
}

impl fmt::Display for DeadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for DeadReason {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text).ok_or_else(|| {
            let all: Vec<_> = Self::ALL.iter().map(|reason| reason.as_str()).collect();
            format!("unknown reason {text:?}, one of {}", all.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_reads_back_as_written() {
        for reason in DeadReason::ALL {
            assert_eq!(reason.as_str().parse(), Ok(reason));
        }
        assert!(
            "odd".parse::<DeadReason>().unwrap_err().starts_with("unknown reason \"odd\", one of malformed,")
        );
    }
}
