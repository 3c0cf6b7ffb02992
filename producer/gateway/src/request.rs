//! The way of every request, from its sender's credentials to its answer.

use std::sync::Arc;

use crate::{
    auth::Caller,
    context::GatewayContext,
    ingest::{Format, Stored},
    payload::Payload,
    record_tasks::RequestProperties,
    refusal::Refusal,
};

/// A request over HTTP, a line, or several lines of InfluxDB.
pub(super) trait Request: Sized + Send {
    /// The format of its body.
    type Format: Format;
    type Answer;

    /// Who sends it.
    fn authenticate(&mut self, gateway: &GatewayContext) -> Result<Arc<Caller>, Refusal>;

    /// Its body and the format of it, and the properties that its tasks have of it.
    fn read(
        &mut self,
        gateway: &GatewayContext,
        caller: Arc<Caller>,
    ) -> impl Future<Output = Result<(RequestProperties, Self::Format, Payload), Refusal>> + Send;

    /// Answers it.
    fn answer(self, gateway: &GatewayContext, stored: StoredBy<Self>) -> Self::Answer;
}

/// What became of a request.
pub(super) type StoredBy<R> = Result<Stored<<<R as Request>::Format as Format>::Notes>, Refusal>;

/// Handles a request: authenticates its sender, parses its body, records what the sender may send as tasks, sends or spools
/// them, and answers.
pub(super) async fn handle<R: Request>(gateway: &GatewayContext, mut request: R) -> R::Answer {
    let stored = async {
        let caller = request.authenticate(gateway)?;
        let (properties, format, body) = request.read(gateway, caller).await?;
        let ingest = Arc::clone(&gateway.ingest);
        let (task_sender, count) = (ingest.task_sender_for(&format)?, format.count(&properties));
        let recording = Arc::clone(&ingest);
        let tasks = body.parsed_and_recorded(&ingest.offload, &ingest.limits, count, move |bytes| {
            let parsed = format.parse(bytes, &properties, &recording)?;
            recording.record(parsed, &properties)
        });
        ingest.send_or_spool(task_sender, tasks.await?).await
    };
    let stored = stored.await;
    request.answer(gateway, stored)
}
