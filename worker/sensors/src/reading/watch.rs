//! `reading.watch`: detects that a device stopped sending.
//!
//! A missing reading starts no task, so a task has to check for it. The first reading of a device's metric
//! that a `silent_for` rule matches starts one `reading.watch` task. The task waits in the retry ladder until
//! the silence would be long enough, checks the store, and waits again. The broker keeps the time, so no
//! worker holds state, and there is one message per device, metric and rule regardless of the number of
//! readings.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::store::{SilenceCheck, SilenceDetector};
use garenne::{
    handler::{TaskContext, TaskError},
    json_payload,
    worker::WorkerBuilder,
};

/// The kind.
pub const KIND: &str = "reading.watch";

/// The payload; written by the sink that stores readings.
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

/// The result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Watched {
    /// Whether the device was silent for too long; false if the watch was no longer needed.
    pub silent: bool,
}

/// Registers the kind.
pub fn register(builder: WorkerBuilder, detector: Arc<dyn SilenceDetector>) -> WorkerBuilder {
    builder.handle(move |cx: TaskContext, watch: Watch| {
        let detector = Arc::clone(&detector);
        async move { check(&cx, &*detector, watch).await }
    })
}

async fn check(cx: &TaskContext, detector: &dyn SilenceDetector, watch: Watch) -> Result<Watched, TaskError> {
    let Watch { device, metric, rule } = watch;
    let outcome = detector.check(cx.id().as_str(), &device, &metric, &rule).await;
    match outcome.map_err(TaskError::retry)? {
        SilenceCheck::CheckAgain(wait) => Err(TaskError::snooze(wait)),
        SilenceCheck::Ended => Ok(Watched { silent: false }),
        SilenceCheck::Silent(starts) => {
            for start in starts {
                let payload: &RawValue = serde_json::from_slice(&start.body).map_err(TaskError::reject)?;
                cx.follow_up_as(start.id, start.kind.as_str(), &payload)?;
            }
            Ok(Watched { silent: true })
        }
    }
}
