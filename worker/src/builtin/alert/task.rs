//! `alert.notify` as a task: long, and waiting for others most of its time.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_protocol::sensor::Timestamp;

use super::{
    Alert, AlertSettings, Delivered,
    courier::{Courier, Item, Setback},
};
use garenne::{
    handler::{RetryPolicy, TaskContext, TaskError, TaskOptions},
    json_payload,
    worker::WorkerBuilder,
};

json_payload!(Alert, "alert.notify");

/// The kind.
pub const KIND: &str = "alert.notify";

/// A window, and a few requests of the longest timeout.
const DEADLINE: Duration = Duration::from_secs(300);

/// Over half a day, at up to an hour between two attempts: as long as somebody may need to find out
/// that the receiver is broken.
fn policy() -> RetryPolicy {
    RetryPolicy { attempts: Some(20), first: Duration::from_secs(5), ..RetryPolicy::default() }
}

/// The shortest time a task is put off for while its host is left alone.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);

/// Adds the kind.
pub fn register(builder: WorkerBuilder, settings: AlertSettings) -> WorkerBuilder {
    let courier = Arc::new(Courier::new(settings));
    let handler = move |cx: TaskContext, alert: Alert| {
        let courier = Arc::clone(&courier);
        async move { notify(&cx, &courier, alert).await }
    };
    builder.handle_with(handler, TaskOptions::long().deadline(DEADLINE).retry(policy()))
}

async fn notify(cx: &TaskContext, courier: &Courier, alert: Alert) -> Result<Delivered, TaskError> {
    alert.check().map_err(TaskError::invalid)?;
    let Alert { webhook, url, kind, time, data } = alert;
    let destination = courier.destination(webhook.as_deref(), url.as_deref()).map_err(TaskError::reject)?;
    let time = time.or_else(now).ok_or_else(|| TaskError::retry("this machine's clock is out of bounds"))?;
    let item = Item::new(cx.id().clone(), kind, time, data).within(cx.trace(), cx.traces());
    let delivered = tokio::select! {
        delivered = courier.deliver(destination, item) => delivered,
        // What is in a batch may be sent all the same; the receiver knows it again by its id.
        () = cx.token().cancelled() => return Err(TaskError::interrupted()),
    };
    delivered.map_err(|setback| match &*setback {
        Setback::Nowhere(_) | Setback::Refused { .. } => TaskError::reject(setback),
        Setback::Busy { after: Some(after), .. } => TaskError::retry_after(&setback, *after),
        Setback::Busy { after: None, .. } | Setback::Unreachable { .. } => TaskError::retry(setback),
        // Nothing was tried, so no attempt is spent.
        Setback::LeftAlone { left, .. } => TaskError::snooze((*left).max(SHORTEST_WAIT)),
        Setback::Closed => TaskError::interrupted(),
    })
}

fn now() -> Option<Timestamp> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Timestamp::from_micros(i64::try_from(since.as_micros()).ok()?).ok()
}
