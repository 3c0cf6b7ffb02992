//! A lane: one queue on the broker, or several shards, and one local pool whose capacity is their total prefetch.

#[cfg(feature = "cli")]
mod args;

use std::{collections::BTreeMap, time::Duration};

use garenne_protocol::{
    task::matches_binding,
    topology::{LaneSpec, MOST_SHARDS},
};
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use serde_json::{Map, Value};

use super::{Concurrency, Invalid, list, text_or_number::text_or_number};

#[cfg(feature = "cli")]
pub use args::LaneArgs;

/// Largest prefetch that quorum queues accept.
pub const MOST_PREFETCH: u16 = 2000;

/// Longest lane name, in bytes: `<prefix>.retry.<lane>.<delay>` must fit AMQP's 255 bytes.
pub const LONGEST_NAME: usize = 32;

/// The quarantine's name in lists of lanes.
const RESERVED: &str = "quarantine";

/// One lane's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lane {
    /// Most messages delivered and not yet settled, 1 to [`MOST_PREFETCH`]: AMQP prefetch and pool capacity.
    #[serde(deserialize_with = "up_to::<MOST_PREFETCH, _>")]
    pub prefetch: u16,
    /// Tasks that run concurrently; `max` is at most `prefetch`.
    pub concurrency: Concurrency,
    /// Most tasks of one key, such as a device, that run concurrently; at least 1. Unset, only kinds that say so are
    /// limited, to half of the lane's workers.
    #[serde(deserialize_with = "optional_count")]
    pub max_per_key: Option<u16>,
    /// Number of queues that share the lane's tasks by task key, 1 to [`MOST_SHARDS`] and at most `prefetch`, which
    /// is divided among them.
    #[serde(deserialize_with = "up_to::<MOST_SHARDS, _>")]
    pub shards: u16,
    /// Topic patterns of the routing keys that this lane receives; empty if tasks are only published to it
    /// directly.
    #[serde(with = "list")]
    pub bindings: Vec<String>,
    /// Whether the lane receives the tasks that no lane's bindings match; at most one lane.
    pub catch_all: bool,
    /// The kind of messages whose routing key and `type` property contain none.
    pub default_kind: Option<String>,
    /// The queue's consumer timeout: how long the broker waits for a settlement; unset, the broker's default (30
    /// min).
    #[serde(with = "humantime_serde")]
    pub consumer_timeout: Option<Duration>,
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            prefetch: 200,
            concurrency: Concurrency::default(),
            max_per_key: None,
            shards: 1,
            bindings: Vec::new(),
            catch_all: false,
            default_kind: None,
            consumer_timeout: None,
        }
    }
}

impl Lane {
    /// A lane with these bindings and default settings.
    pub fn bound_to(bindings: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { bindings: bindings.into_iter().map(Into::into).collect(), ..Self::default() }
    }
}

/// The lanes, sorted by name: `default`, `fast` and `slow` by default. `default` receives what the others do not.
///
/// Setting one field of a lane keeps its other fields. `only` (the flag `--lane`) selects the lanes that this process
/// works on; the others stay defined, because the topology contains all lanes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lanes {
    #[serde(flatten)]
    defined: BTreeMap<String, Lane>,
    #[serde(skip_serializing_if = "Option::is_none")]
    only: Option<Vec<String>>,
    /// New lanes without a `bindings` setting, most likely typos of existing lanes.
    #[serde(skip)]
    unbound: Vec<String>,
}

impl Default for Lanes {
    fn default() -> Self {
        [
            ("default".to_owned(), Lane { catch_all: true, ..Lane::default() }),
            ("fast".to_owned(), Lane::bound_to(["reading.#", "window.#", "bench.#"])),
            ("slow".to_owned(), Lane::bound_to(["spectrum.#", "alert.#"])),
        ]
        .into_iter()
        .collect()
    }
}

impl FromIterator<(String, Lane)> for Lanes {
    fn from_iter<I: IntoIterator<Item = (String, Lane)>>(lanes: I) -> Self {
        Self { defined: lanes.into_iter().collect(), only: None, unbound: Vec::new() }
    }
}

impl Lanes {
    /// The lanes this process works on.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Lane)> {
        self.defined().filter(|(name, _)| self.is_selected(name))
    }

    /// All lanes, selected or not.
    pub fn defined(&self) -> impl Iterator<Item = (&str, &Lane)> {
        self.defined.iter().map(|(name, lane)| (name.as_str(), lane))
    }

    /// All lanes for the topology. A process that works on some lanes declares all of them, because it may publish to
    /// the others.
    pub fn specs(&self) -> Vec<LaneSpec> {
        self.defined()
            .map(|(name, lane)| LaneSpec {
                name: name.to_owned(),
                bindings: lane.bindings.clone(),
                catch_all: lane.catch_all,
                shards: lane.shards,
                consumer_timeout: lane.consumer_timeout,
            })
            .collect()
    }

    /// A lane this process works on.
    pub fn get(&self, name: &str) -> Option<&Lane> {
        self.defined.get(name).filter(|_| self.is_selected(name))
    }

    /// The lane, selected or not, that receives a kind: the first whose bindings match it, or else the catch-all
    /// lane.
    pub fn taking(&self, kind: &str) -> Option<&str> {
        self.bound_to(kind).or_else(|| self.catch_all())
    }

    /// The first lane, selected or not, whose bindings match a kind.
    pub fn bound_to(&self, kind: &str) -> Option<&str> {
        let takes = |lane: &Lane| lane.bindings.iter().any(|binding| matches_binding(binding, kind));
        self.defined().find(|(_, lane)| takes(lane)).map(|(name, _)| name)
    }

    /// The lane, selected or not, that receives what no lane's bindings match.
    pub fn catch_all(&self) -> Option<&str> {
        self.defined().find(|(_, lane)| lane.catch_all).map(|(name, _)| name)
    }

    /// The number of a lane's queues, selected or not; 1 for an undefined lane.
    pub fn shards(&self, name: &str) -> u16 {
        self.defined.get(name).map_or(1, |lane| lane.shards)
    }

    /// Whether tasks of a kind are distributed over several queues, so that each should have a key.
    pub fn spread(&self, kind: &str) -> bool {
        // Fast path: called for each published task, and most fleets have no sharded lane.
        self.defined.values().any(|lane| lane.shards > 1)
            && self.taking(kind).is_some_and(|lane| self.shards(lane) > 1)
    }

    fn is_selected(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|one| one == name))
    }

    /// # Errors
    /// The first invalid field of a lane.
    pub fn validate(&self) -> Result<(), Invalid> {
        if let Some(only) = &self.only {
            self.validate_only(only)?;
        }
        let mut catch_all = self.defined().filter(|(_, lane)| lane.catch_all).map(|(name, _)| name);
        if let (Some(first), Some(second)) = (catch_all.next(), catch_all.next()) {
            let problem =
                format!("lane {first} is the catch-all lane, expected lanes.{first}.catch_all = false");
            return Err(Invalid::new(format!("lanes.{second}.catch_all"), "true", problem));
        }
        let mut lane_of_binding: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, lane) in self.defined() {
            validate_name(name)?;
            validate_lane(name, lane)?;
            let problem = format!(
                "expected lanes.{name}.bindings, a list of routing keys ([] where it is only published to directly), \
                 or one of the lanes {}",
                self.bound_names()
            );
            let path = format!("lanes.{name}");
            Invalid::unless(!self.is_unbound(name), path, "a lane without bindings", problem)?;
            for binding in &lane.bindings {
                if let Some(other) = lane_of_binding.insert(binding, name) {
                    let problem =
                        format!("lane {other} has the same routing key, and each task would run twice");
                    let (path, value) = (format!("lanes.{name}.bindings"), format_args!("{binding:?}"));
                    return Err(Invalid::new(path, value, problem));
                }
            }
        }
        Ok(())
    }

    fn validate_only(&self, only: &[String]) -> Result<(), Invalid> {
        let bound = self.bound_names();
        Invalid::unless(!only.is_empty(), "lanes.only", "[]", format!("expected at least one of {bound}"))?;
        only.iter().try_for_each(|name| {
            let exists = self.defined.contains_key(name) && !self.is_unbound(name);
            let problem =
                format!("no such lane, expected some of {bound}; a new one needs lanes.{name}.bindings");
            Invalid::unless(exists, "lanes.only", format_args!("{name:?}"), problem)
        })
    }

    fn is_unbound(&self, name: &str) -> bool {
        self.unbound.iter().any(|one| one == name)
    }

    fn bound_names(&self) -> String {
        let names = self.defined.keys().map(String::as_str).filter(|name| !self.is_unbound(name));
        names.collect::<Vec<_>>().join(", ")
    }
}

fn validate_name(name: &str) -> Result<(), Invalid> {
    let (path, value) = (format!("lanes.{name}"), format_args!("{name:?}"));
    Invalid::unless(name != RESERVED, &path, value, "the name is reserved, expected another one")?;
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    let valid = (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(allowed);
    Invalid::unless(
        valid,
        &path,
        value,
        format!("expected a lane name of 1 to {LONGEST_NAME} of a-z 0-9 - _"),
    )
}

fn validate_lane(name: &str, lane: &Lane) -> Result<(), Invalid> {
    let &Lane { prefetch, concurrency, shards, .. } = lane;
    let check = |valid: bool, setting: &str, value: u16, problem: String| {
        Invalid::unless(valid, format!("lanes.{name}.{setting}"), value, problem)
    };
    let in_range = (1..=MOST_PREFETCH).contains(&prefetch);
    check(in_range, "prefetch", prefetch, format!("expected 1 to {MOST_PREFETCH}"))?;
    let (most, of) = (concurrency.max, format!("lanes.{name}.concurrency = {concurrency}"));
    let problem = format!("expected at least {most}, the maximum of {of}");
    check(usize::from(prefetch) >= most, "prefetch", prefetch, problem)?;
    check((1..=MOST_SHARDS).contains(&shards), "shards", shards, format!("expected 1 to {MOST_SHARDS}"))?;
    let of = format!("lanes.{name}.shards = {shards}");
    check(lane.max_per_key != Some(0), "max_per_key", 0, "expected 1 or more".to_owned())?;
    let problem = format!("expected at least {shards}, one for each queue of {of}");
    check(prefetch >= shards, "prefetch", prefetch, problem)
}

/// A whole number, or text that is one. Numbers that do not fit the type get the same error as those over `MOST`.
fn up_to<'de, const MOST: u16, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    text_or_number(deserializer)
        .map_err(|_: D::Error| D::Error::custom(format!("out of range, expected 1 to {MOST}")))
}

/// A whole number, or text that is one, or nothing.
fn optional_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    #[derive(Deserialize)]
    struct Count(#[serde(deserialize_with = "text_or_number")] u16);

    let count = Option::<Count>::deserialize(deserializer);
    count
        .map(|count| count.map(|Count(count)| count))
        .map_err(|_: D::Error| D::Error::custom(format!("out of range, expected 1 to {}", u16::MAX)))
}

/// The lanes as the sources have them, with some settings of each.
#[derive(Deserialize)]
struct PartialLanes {
    #[serde(default, deserialize_with = "only_lanes")]
    only: Option<Vec<String>>,
    #[serde(flatten)]
    lanes: BTreeMap<String, Map<String, Value>>,
}

fn only_lanes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    list::deserialize(deserializer).map(Some)
}

impl<'de> Deserialize<'de> for Lanes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let given = PartialLanes::deserialize(deserializer)?;
        let mut lanes = Self { only: given.only, ..Self::default() };
        for (name, settings) in given.lanes {
            let is_bound = settings.contains_key("bindings") || lanes.defined.contains_key(&name);
            let lane = lanes.defined.entry(name.clone()).or_default();
            *lane = lane.with(settings).map_err(D::Error::custom)?;
            if !is_bound && !lane.catch_all {
                lanes.unbound.push(name);
            }
        }
        Ok(lanes)
    }
}

impl Lane {
    /// This lane with other values of some settings.
    fn with(&self, settings: Map<String, Value>) -> serde_json::Result<Self> {
        let mut all: Map<String, Value> = serde_json::from_value(serde_json::to_value(self)?)?;
        all.extend(settings);
        Self::deserialize(Value::Object(all))
    }
}

#[cfg(all(test, feature = "cli"))]
mod tests;
