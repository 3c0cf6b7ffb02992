//! `alert.notify` as a task: long, and mostly waiting for I/O.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_protocol::sensor::Timestamp;

use super::{
    Alert, AlertSettings, Delivered, delivery_error::DeliveryError, outgoing_alert::OutgoingAlert,
    webhook_sender::WebhookSender,
};
use garenne::{
    handler::{RetryPolicy, TaskContext, TaskError, TaskOptions},
    json_payload,
    worker::WorkerBuilder,
};

json_payload!(Alert, "alert.notify");

/// The kind.
pub const KIND: &str = "alert.notify";

/// Time limit of a task: the batch window and a few requests of the longest timeout.
const DEADLINE: Duration = Duration::from_secs(300);

/// The shortest deferral while the circuit of the host is open.
const MIN_DEFERRAL: Duration = Duration::from_secs(1);

/// Retries for more than half a day, at most an hour apart, so that an operator has time to repair the receiver.
fn retry_policy() -> RetryPolicy {
    RetryPolicy { attempts: Some(20), first: Duration::from_secs(5), ..RetryPolicy::default() }
}

/// Registers the kind.
pub fn register(builder: WorkerBuilder, settings: AlertSettings) -> WorkerBuilder {
    let sender = Arc::new(WebhookSender::new(settings));
    let handler = move |cx: TaskContext, alert: Alert| {
        let sender = Arc::clone(&sender);
        async move { notify(&cx, &sender, alert).await }
    };
    builder.handle_with(handler, TaskOptions::long().deadline(DEADLINE).retry(retry_policy()))
}

async fn notify(cx: &TaskContext, sender: &WebhookSender, alert: Alert) -> Result<Delivered, TaskError> {
    alert.check().map_err(TaskError::invalid)?;
    let Alert { webhook, url, kind, time, data } = alert;
    let destination = sender.destination(webhook.as_deref(), url.as_deref()).map_err(TaskError::reject)?;
    let time = time.or_else(now).ok_or_else(|| TaskError::retry("the system clock is out of range"))?;
    let alert = OutgoingAlert::new(cx.id().clone(), kind, time, data).with_trace(cx.trace(), cx.traces());
    let delivered = tokio::select! {
        delivered = sender.deliver(destination, alert) => delivered,
        // The batch may still be sent. The receiver recognizes the repetition by the alert's id.
        () = cx.token().cancelled() => return Err(TaskError::interrupted()),
    };
    delivered.map_err(|error| match &*error {
        DeliveryError::InvalidDestination(_) | DeliveryError::Rejected { .. } => TaskError::reject(error),
        DeliveryError::ServerError { retry_after: Some(wait), .. } => TaskError::retry_after(&error, *wait),
        DeliveryError::ServerError { retry_after: None, .. } | DeliveryError::Unreachable { .. } => {
            TaskError::retry(error)
        }
        // No request was made, so the task is deferred without counting an attempt.
        DeliveryError::CircuitOpen { remaining, .. } => TaskError::snooze((*remaining).max(MIN_DEFERRAL)),
        DeliveryError::Closed => TaskError::interrupted(),
    })
}

fn now() -> Option<Timestamp> {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Timestamp::from_micros(i64::try_from(since_epoch.as_micros()).ok()?).ok()
}
