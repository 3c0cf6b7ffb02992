//! `window.analyze` as a task: values in the payload, or read back from Postgres.

use std::{sync::Arc, time::Duration};

use super::{Answer, Payload, Series, Source, analyze};
use crate::postgres::StoredReadings;
use garenne::{
    handler::{TaskContext, TaskError, TaskOptions},
    json_payload,
    worker::WorkerBuilder,
};

json_payload!(Payload, "window.analyze");

/// Enough for a million values, read back over a slow line.
const DEADLINE: Duration = Duration::from_secs(60);

/// Adds the kind; without a store only windows with their values inline are taken.
pub fn register(builder: WorkerBuilder, store: Option<StoredReadings>) -> WorkerBuilder {
    let store = store.map(Arc::new);
    let handler = move |_: TaskContext, payload: Payload| {
        let store = store.clone();
        async move { answer(payload, store.as_deref()).await }
    };
    builder.handle_with(handler, TaskOptions::long().deadline(DEADLINE))
}

async fn answer(payload: Payload, store: Option<&StoredReadings>) -> Result<Answer, TaskError> {
    match payload.source().map_err(TaskError::invalid)? {
        Source::Inline(series) => analyze(series, payload.exact).map_err(TaskError::invalid),
        Source::Stored(from, to) => {
            let store = store.ok_or_else(|| {
                TaskError::reject("from and to need stored readings, and this worker has no postgres_url")
            })?;
            let window = store.window(&payload.device, &payload.metric, from, to).await;
            let (times, values) = window.map_err(TaskError::retry)?;
            analyze(Series { times: &times, values: &values }, payload.exact).map_err(TaskError::reject)
        }
    }
}
