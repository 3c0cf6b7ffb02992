//! A delivered task between its admission and its settlement.

use std::sync::Arc;

use garenne_protocol::task::Envelope;

use crate::{consumer::Delivery, spans::AttemptSpan};

/// A task that was delivered and is not settled yet.
///
/// Each method of [`Settler`](super::Settler) that decides about a task consumes it. Dropping it hands the
/// delivery back to the broker.
pub(crate) struct InFlight {
    /// The lane that the task was delivered to.
    pub(crate) lane: Arc<str>,
    pub(crate) delivery: Delivery,
    pub(crate) envelope: Arc<Envelope>,
    /// The span of the attempt. Nothing is recorded unless the task starts or becomes a dead letter.
    pub(crate) span: AttemptSpan,
}
