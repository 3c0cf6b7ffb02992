//! The version of the MQTT protocol.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString};

/// The version of the MQTT protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, Serialize, Deserialize)]
pub enum Version {
    /// MQTT 3.1.1.
    #[default]
    #[serde(rename = "3.1.1")]
    #[strum(serialize = "3.1.1")]
    V3,
    /// MQTT 5.
    #[serde(rename = "5")]
    #[strum(serialize = "5")]
    V5,
}
