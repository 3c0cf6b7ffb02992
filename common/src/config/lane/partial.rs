//! Deserializes lanes that contain only some settings.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::{Lane, Lanes, ONLY};
use crate::config::{Concurrency, list};

/// The given settings of a lane.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PartialLane {
    #[serde(deserialize_with = "prefetch")]
    prefetch: Option<u16>,
    concurrency: Option<Concurrency>,
    #[serde(deserialize_with = "shards")]
    shards: Option<u16>,
    bindings: Option<ListOfKeys>,
    default_kind: Option<String>,
    #[serde(with = "humantime_serde")]
    consumer_timeout: Option<Duration>,
}

#[derive(Debug, Deserialize)]
struct ListOfKeys(#[serde(with = "list")] Vec<String>);

#[derive(Deserialize)]
struct ListOfNames(#[serde(with = "list")] Vec<String>);

fn prefetch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    number(deserializer, "prefetch", super::MOST_PREFETCH)
}

fn shards<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    number(deserializer, "shards", garenne_protocol::topology::MOST_SHARDS)
}

/// Numbers over 65535 get the same error as those over `most`. Flags and variables give text, which serde does not
/// convert inside a flattened table.
fn number<'de, D: Deserializer<'de>>(
    deserializer: D,
    name: &str,
    most: u16,
) -> Result<Option<u16>, D::Error> {
    let number = deserializer.deserialize_any(WholeNumber).ok().and_then(|number| u16::try_from(number).ok());
    let refused = || serde::de::Error::custom(format!("{name} out of range, expected 1 to {most}"));
    number.map(Some).ok_or_else(refused)
}

/// A whole number, or text that is one.
struct WholeNumber;

impl Visitor<'_> for WholeNumber {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number from 0")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
        u64::try_from(number).map_err(E::custom)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        text.parse().map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Lanes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(LanesVisitor)
    }
}

struct LanesVisitor;

impl<'de> Visitor<'de> for LanesVisitor {
    type Value = Lanes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table for each lane")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Lanes, A::Error> {
        let mut lanes = Lanes::default();
        let mut partial: BTreeMap<String, PartialLane> = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == ONLY {
                lanes.only = Some(map.next_value::<ListOfNames>()?.0);
            } else {
                partial.insert(name, map.next_value()?);
            }
        }
        for (name, given) in partial {
            if given.bindings.is_none() && !lanes.defined.contains_key(&name) {
                lanes.unbound.push(name.clone());
            }
            overlay(lanes.defined.entry(name).or_default(), given);
        }
        Ok(lanes)
    }
}

fn overlay(lane: &mut Lane, given: PartialLane) {
    if let Some(prefetch) = given.prefetch {
        lane.prefetch = prefetch;
    }
    if let Some(concurrency) = given.concurrency {
        lane.concurrency = concurrency;
    }
    if let Some(shards) = given.shards {
        lane.shards = shards;
    }
    if let Some(ListOfKeys(bindings)) = given.bindings {
        lane.bindings = bindings;
    }
    if given.default_kind.is_some() {
        lane.default_kind = given.default_kind;
    }
    if given.consumer_timeout.is_some() {
        lane.consumer_timeout = given.consumer_timeout;
    }
}
