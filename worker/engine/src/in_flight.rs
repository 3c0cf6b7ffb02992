//! A task in flight: it was delivered and is not settled yet.

use std::sync::Arc;

use garenne_protocol::{settlement::Settlement, task::Envelope};

use crate::{batch::Batch, consumer::Delivery, spans::AttemptSpan};

/// A task that was delivered and is not settled yet: a message, a batch, or a record that left its batch.
///
/// It owns the delivery from the admission to the settlement, which consumes it. Dropping it hands the delivery back to
/// the broker.
pub(crate) struct InFlight {
    /// The lane that the task was delivered to.
    pub(crate) lane: Arc<str>,
    pub(crate) delivery: Delivery,
    pub(crate) envelope: Arc<Envelope>,
    /// The span of the attempt. Nothing is recorded unless the task starts or becomes a dead letter.
    pub(crate) span: AttemptSpan,
    /// The records, if this is a batch.
    pub(crate) batch: Option<Arc<Batch>>,
}

impl InFlight {
    /// Returns the task to its queue without spending an attempt.
    pub(crate) fn hand_back(self) {
        self.span.end(Settlement::Requeued, None);
    }

    /// Leaves the delivery unsettled until its connection closes, when the broker requeues it.
    pub(crate) fn abandon(self) {
        self.span.end(Settlement::Abandoned, None);
        self.delivery.settle(Settlement::Abandoned);
    }

    /// The task itself, or the records of the batch as tasks of their own. Each has a share of the batch's delivery, which
    /// is settled once all shares are.
    pub(crate) fn into_tasks(self) -> Vec<Self> {
        let Some(batch) = &self.batch else { return vec![self] };
        let payloads = batch.records.iter().map(|record| record.payload.clone());
        let shares = self.delivery.split(payloads).zip(&batch.records);
        let task = |(delivery, record): (Delivery, &crate::batch::Record)| Self {
            lane: Arc::clone(&self.lane),
            delivery,
            envelope: Arc::clone(&record.envelope),
            span: record.span.clone(),
            batch: None,
        };
        shares.map(task).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settlement::tests::settler_of;

    #[tokio::test]
    async fn a_record_leaves_its_batch_with_its_own_id_and_payload() {
        let test = settler_of(Vec::new());
        let tasks = test.batch_of(&["a", "b"]).into_tasks();
        let own = |task: &InFlight| (task.envelope.id.to_string(), task.delivery.body.to_vec());
        let expected = [("a", "\"a\""), ("b", "\"b\"")].map(|(id, body)| (id.to_owned(), body.into()));
        assert_eq!(tasks.iter().map(own).collect::<Vec<_>>(), expected);
        drop(tasks);
        assert_eq!(test.generation.requested_settlements(), [(1, Settlement::Requeued)]);
    }
}
