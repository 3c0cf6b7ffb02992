//! The tasks of the kind `reading.watch`, which check whether a device still sends.

use garenne::json_payload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
