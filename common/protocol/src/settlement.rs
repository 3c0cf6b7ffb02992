//! How a delivery ends.

use strum::{EnumCount, IntoStaticStr, VariantArray};

/// How a delivery ended. Each delivery has exactly one settlement. Receipt fields and metric labels use the same
/// names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EnumCount, IntoStaticStr, VariantArray)]
#[repr(usize)]
#[strum(serialize_all = "snake_case")]
pub enum Settlement {
    /// Succeeded and acknowledged.
    Acked,
    /// Requeued; this is not an attempt.
    Requeued,
    /// Copied to be run later or by another worker, then acknowledged.
    Retried,
    /// Copied to the dead-letter queue, then acknowledged.
    Dead,
    /// Copied to the quarantine, then acknowledged.
    Quarantined,
    /// The connection was lost before the broker is known to have the settlement; the broker may redeliver.
    #[strum(serialize = "lost_settlements")]
    LostSettlement,
    /// Still running when the process ended; the broker redelivers.
    Abandoned,
}

impl Settlement {
    /// All settlements, in the order of the receipt's fields.
    pub const ALL: [Self; Self::COUNT] = *Self::VARIANTS.as_array().expect("COUNT is the number of VARIANTS");

    /// The name of the receipt's field and the value of the metric label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
