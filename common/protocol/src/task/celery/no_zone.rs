//! The zone of calls in a program that is built without the feature `celery`, which has no lanes of them.

use std::str::FromStr;

use amq_protocol::types::FieldTable;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use thiserror::Error;

use super::BadCall;

/// The zone of times that have no offset: UTC. Others need the feature `celery`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CeleryZone(());

/// A zone other than UTC.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("expected \"UTC\": this program is built without the feature `celery`")]
pub struct BadZone;

impl FromStr for CeleryZone {
    type Err = BadZone;

    fn from_str(name: &str) -> Result<Self, BadZone> {
        if name.eq_ignore_ascii_case("UTC") { Ok(Self(())) } else { Err(BadZone) }
    }
}

impl Serialize for CeleryZone {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("UTC")
    }
}

impl<'de> Deserialize<'de> for CeleryZone {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl CeleryZone {
    /// Whether this program is built with what reads times.
    pub const IS_SUPPORTED: bool = false;

    #[expect(clippy::unused_self, reason = "it is a method where there are zones")]
    pub(super) fn header_ms(&self, _: &Option<FieldTable>, _: &str) -> Result<Option<i64>, BadCall> {
        Err(BadCall(BadZone.to_string()))
    }
}
