//! `window.analyze` as a task: values in the payload, or read back from the store.

use std::{sync::Arc, time::Duration};

use super::{Answer, Payload, Series, Source, analyze};
use crate::store::ReadingStore;
use garenne::{
    handler::{TaskContext, TaskError, TaskOptions},
    json_payload,
    worker::WorkerBuilder,
};

json_payload!(Payload, "window.analyze");

/// Time limit of a task. Covers a million values read back over a slow connection.
const DEADLINE: Duration = Duration::from_secs(60);

/// Registers the kind. Without a store, tasks that give `from` and `to` are rejected.
pub fn register(builder: WorkerBuilder, store: Option<Arc<dyn ReadingStore>>) -> WorkerBuilder {
    let handler = move |_: TaskContext, payload: Payload| {
        let store = store.clone();
        async move { answer(payload, store.as_deref()).await }
    };
    builder.handle_with(handler, TaskOptions::long().deadline(DEADLINE))
}

async fn answer(payload: Payload, store: Option<&dyn ReadingStore>) -> Result<Answer, TaskError> {
    match payload.source().map_err(TaskError::invalid)? {
        Source::Inline(series) => analyze(series, payload.exact).map_err(TaskError::invalid),
        Source::Stored(from, to) => {
            let store = store.ok_or_else(|| {
                TaskError::reject("from and to need stored readings, and this worker has no postgres_url")
            })?;
            let window = store.window(&payload.device, &payload.metric, from, to).await;
            let window = window.map_err(TaskError::retry)?;
            let series = Series { times: &window.times, values: &window.values };
            analyze(series, payload.exact).map_err(TaskError::reject)
        }
    }
}
