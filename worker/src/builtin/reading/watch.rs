//! `reading.watch`: waits for a device to go silent.
//!
//! A reading that does not come starts no task, so something has to look. The first reading of a device
//! and metric that a rule wants to hear of starts one such task; it is put off through the retry ladder
//! until the silence would be long enough, looks, and is put off again. So the clock is the broker's, no
//! worker has to be the one that remembers, and there is one message for each, however many readings.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::postgres::{Look, Silences};
use garenne::{
    handler::{TaskContext, TaskError},
    json_payload,
    worker::WorkerBuilder,
};

/// The kind.
pub const KIND: &str = "reading.watch";

/// The task; written by the sink that stores readings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Watch {
    /// The device that may go silent.
    pub device: String,
    /// What it measures.
    pub metric: String,
    /// The rule's name.
    pub rule: String,
}
json_payload!(Watch, KIND);

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Watched {
    /// Whether the device was silent for too long; else nobody wants to know any longer.
    pub silent: bool,
}

/// Adds the kind.
pub fn register(builder: WorkerBuilder, silences: Silences) -> WorkerBuilder {
    let silences = Arc::new(silences);
    builder.handle(move |cx: TaskContext, watch: Watch| {
        let silences = Arc::clone(&silences);
        async move { look(&cx, &silences, watch).await }
    })
}

async fn look(cx: &TaskContext, silences: &Silences, watch: Watch) -> Result<Watched, TaskError> {
    let Watch { device, metric, rule } = watch;
    let found = silences.look(cx.id().as_str(), &device, &metric, &rule).await.map_err(TaskError::retry)?;
    match found {
        Look::Again(wait) => Err(TaskError::snooze(wait)),
        Look::Over => Ok(Watched { silent: false }),
        Look::Silent(starts) => {
            for start in starts {
                let payload: &RawValue = serde_json::from_slice(&start.body).map_err(TaskError::reject)?;
                cx.follow_up_as(start.id, start.kind.as_str(), &payload)?;
            }
            Ok(Watched { silent: true })
        }
    }
}
