//! `reading.watch`: detects that a device stopped sending.
//!
//! A missing reading starts no task, so a task has to check for it. The first reading of a device's metric
//! that a `silent_for` rule matches starts one `reading.watch` task. The task waits in the retry ladder until
//! the silence would be long enough, checks the store, and waits again. The broker keeps the time, so no
//! worker holds state, and there is one message per device, metric and rule regardless of the number of
//! readings.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use garenne::{TaskContext, TaskError, WorkerBuilder, json_payload, sink::FollowUp};

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

/// The result of one check for silence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SilenceCheck {
    /// The device is not silent, or not certainly so: check again after this time.
    CheckAgain(Duration),
    /// The device is silent: start these tasks. The watch ends.
    Silent(Vec<FollowUp>),
    /// The watch ends without an alarm: another watch replaced it, or the rule or the readings are gone.
    Ended,
}

/// Decides whether a device has stopped sending.
pub trait SilenceDetector: Send + Sync + 'static {
    /// Compares the age of the newest stored reading of a device's metric with the watch's rule. `watch_id` is the id
    /// of the task that asks. A repeated call for a watch that found silence returns the same tasks.
    ///
    /// # Errors
    /// The store is unavailable or refuses the query.
    fn check<'a>(
        &'a self,
        watch_id: &'a str,
        watch: &'a Watch,
    ) -> BoxFuture<'a, Result<SilenceCheck, TaskError>>;
}

/// Registers the kind.
pub fn register(builder: WorkerBuilder, detector: Arc<dyn SilenceDetector>) -> WorkerBuilder {
    builder.handle(move |cx: TaskContext, watch: Watch| {
        let detector = Arc::clone(&detector);
        async move {
            match detector.check(cx.id().as_str(), &watch).await? {
                SilenceCheck::CheckAgain(wait) => Err(TaskError::snooze(wait)),
                SilenceCheck::Ended => Ok(Watched { silent: false }),
                SilenceCheck::Silent(starts) => {
                    for start in starts {
                        let payload: &RawValue =
                            serde_json::from_slice(&start.body).map_err(TaskError::reject)?;
                        cx.follow_up_as(start.id, start.kind.as_str(), &payload)?;
                    }
                    Ok(Watched { silent: true })
                }
            }
        }
    })
}
