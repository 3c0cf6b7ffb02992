//! A delivery that was decoded.

use std::sync::Arc;

use garenne_protocol::task::{DeadReason, Envelope};

use super::batch::records_of;
use crate::{
    batch::Record,
    settlement::{InFlight, Settler},
};

/// A decoded delivery: a task, or a batch and its records.
pub(super) enum Admitted {
    Task(InFlight),
    /// The envelope and the delivery are those of the batch.
    Batch(InFlight, Arc<[Record]>),
}

impl Admitted {
    pub(super) fn in_flight(&self) -> &InFlight {
        match self {
            Self::Task(task) => task,
            Self::Batch(batch, _) => batch,
        }
    }

    pub(super) fn into_in_flight(self) -> InFlight {
        match self {
            Self::Task(task) => task,
            Self::Batch(batch, _) => batch,
        }
    }

    pub(super) fn envelope(&self) -> &Arc<Envelope> {
        &self.in_flight().envelope
    }

    /// Dead-letters the task, or each record of the batch.
    pub(super) fn dead_letter(self, settler: &Arc<Settler>, reason: DeadReason, error: String) {
        match self {
            Self::Task(task) => settler.dead_letter(task, reason, error),
            Self::Batch(batch, records) => {
                for record in records_of(batch, &records) {
                    settler.dead_letter(record, reason, error.clone());
                }
            }
        }
    }
}
