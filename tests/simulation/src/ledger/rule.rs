//! The rules that the ledger checks.

use std::fmt;

/// A rule that a client broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A confirmed message is in no queue, unacked nowhere, and had no effect.
    Lost,
    /// A message is in two places, and nothing on record explains it.
    InTwoPlaces,
    /// A delivery was acked before its effect took place or its copy was confirmed.
    AckedTooEarly,
    /// A delivery was acked after its effect, and a follow-up that a run of it requested is not confirmed.
    AckedBeforeItsFollowUps,
    /// A copy was published again although the first one is confirmed or may still be.
    CopiedTwice,
    /// A delivery was requeued although its copy is confirmed.
    RequeuedAfterItsCopy,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lost => "is lost: a publisher has its confirm, and it is in no queue, unacked nowhere and had no effect",
            Self::InTwoPlaces => "is in two places, and nothing on record made that inevitable",
            Self::AckedTooEarly => "was acked before its effect took place or its copy was confirmed",
            Self::AckedBeforeItsFollowUps => "was acked before its follow-ups were confirmed",
            Self::CopiedTwice => "was copied twice from one delivery, although the first copy is confirmed or may still be",
            Self::RequeuedAfterItsCopy => "was requeued after the confirm of its copy",
        })
    }
}
