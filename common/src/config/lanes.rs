//! The lanes of a fleet.

#[cfg(feature = "cli")]
mod args;

use std::collections::BTreeMap;

use garenne_protocol::{task::bindings_meet, topology::LaneSpec};
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use serde_json::{Map, Value};

use super::{
    Invalid,
    lane::{Lane, validate_queues},
    list,
};

#[cfg(feature = "cli")]
pub use args::LaneArgs;

/// The lanes, sorted by name: `default`, `fast` and `slow` by default. `default` receives what the others do not.
///
/// Setting one field of a lane keeps its other fields. `only` (the flag `--lane`) selects the lanes that this process
/// works on; without it, a worker selects those that give it [kinds that it has](Self::serving). The others stay defined,
/// because the topology contains all lanes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lanes {
    #[serde(flatten)]
    defined: BTreeMap<String, Lane>,
    #[serde(skip_serializing_if = "Option::is_none")]
    only: Option<Vec<String>>,
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
        Self { defined: lanes.into_iter().collect(), only: None }
    }
}

impl Lanes {
    /// No lanes, to which [`lane`](Self::lane) adds some. [`Lanes::default`] has those of a fleet without settings.
    ///
    /// ```
    /// # use garenne_common::config::{Lane, Lanes};
    /// let lanes = Lanes::new()
    ///     .lane("mail", Lane::bound_to(["email.#"]).concurrency(1..=8).prefetch(50))
    ///     .lane("default", Lane::default().catch_all());
    /// assert_eq!(lanes.taking("email.send"), Some("mail"));
    /// ```
    pub fn new() -> Self {
        Self { defined: BTreeMap::new(), only: None }
    }

    /// Adds a lane, in place of one with this name.
    #[must_use]
    pub fn lane(mut self, name: impl Into<String>, lane: Lane) -> Self {
        self.defined.insert(name.into(), lane);
        self
    }

    /// Selects the lanes that this process works on.
    #[must_use]
    pub fn only(self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { only: Some(names.into_iter().map(Into::into).collect()), ..self }
    }

    /// The lanes this process works on.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Lane)> {
        self.defined().filter(|(name, _)| self.is_selected(name))
    }

    /// All lanes, selected or not.
    pub fn defined(&self) -> impl Iterator<Item = (&str, &Lane)> + Clone {
        self.defined.iter().map(|(name, lane)| (name.as_str(), lane))
    }

    /// All lanes for the topology. A process that works on some lanes declares all of them, because it may publish to
    /// the others.
    pub fn specs(&self) -> Vec<LaneSpec> {
        self.defined().map(|(name, lane)| lane.spec(name)).collect()
    }

    /// Changes a lane, selected or not.
    pub fn change(&mut self, name: &str, change: impl FnOnce(&mut Lane)) {
        if let Some(lane) = self.defined.get_mut(name) {
            change(lane);
        }
    }

    /// A lane this process works on.
    pub fn get(&self, name: &str) -> Option<&Lane> {
        self.defined.get(name).filter(|_| self.is_selected(name))
    }

    /// Unless `only` selects lanes, selects those that give this process tasks of these kinds: by their bindings, as
    /// their default kind, or because they may hold any kind.
    #[must_use]
    pub fn serving<'a>(mut self, kinds: impl IntoIterator<Item = &'a str>) -> Self {
        if self.only.is_none() {
            let kinds: Vec<_> = kinds.into_iter().collect();
            let gives = |(_, lane): &(&str, &Lane)| kinds.iter().any(|kind| lane.gives(kind));
            self.only = Some(self.defined().filter(gives).map(|(name, _)| name.to_owned()).collect());
        }
        self
    }

    /// The lane, selected or not, that receives a kind: the first whose bindings match it, or else the catch-all
    /// lane.
    pub fn taking(&self, kind: &str) -> Option<&str> {
        self.bound_to(kind).or_else(|| self.catch_all())
    }

    /// The lanes, selected or not, that receive a kind, or some kinds of a pattern.
    pub fn receiving(&self, kinds: &str) -> impl Iterator<Item = (&str, &Lane)> {
        self.receiving_or(kinds, |_| false)
    }

    /// The lanes, selected or not, that [receive](Self::receiving) a kind, or some kinds of a pattern, or hold tasks of any kind
    /// without bindings.
    pub fn giving(&self, kinds: &str) -> impl Iterator<Item = (&str, &Lane)> {
        self.receiving_or(kinds, Lane::holds_any)
    }

    fn receiving_or(&self, kinds: &str, is_other: fn(&Lane) -> bool) -> impl Iterator<Item = (&str, &Lane)> {
        let is_bound = self.bound_to(kinds).is_some();
        self.defined()
            .filter(move |(_, lane)| lane.receives(kinds) || is_other(lane) || lane.catch_all && !is_bound)
    }

    /// The first lane, selected or not, whose bindings match a kind, or all of a pattern.
    pub fn bound_to(&self, kind: &str) -> Option<&str> {
        self.defined().find(|(_, lane)| lane.is_bound_to(kind)).map(|(name, _)| name)
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
    /// The first invalid field of a lane. `prefix` begins the names of Garenne's own exchanges.
    pub fn validate(&self, prefix: &str) -> Result<(), Invalid> {
        if let Some(only) = &self.only {
            self.validate_only(only)?;
        }
        let mut catch_all = self.defined().filter(|(_, lane)| lane.catch_all).map(|(name, _)| name);
        if let (Some(first), Some(second)) = (catch_all.next(), catch_all.next()) {
            let problem =
                format!("lane {first} is the catch-all lane, expected lanes.{first}.catch_all = false");
            return Err(Invalid::new(format!("lanes.{second}.catch_all"), "true", problem));
        }
        let mut bound: Vec<(&str, _, String)> = Vec::new();
        for (name, lane) in self.defined() {
            lane.validate(name, prefix)?;
            let problem = format!(
                "expected lanes.{name}.bindings, a list of routing keys ([] where it is only published to directly), \
                 or one of the lanes {}",
                self.bound_names()
            );
            let path = format!("lanes.{name}");
            // Most likely a typo of another lane.
            Invalid::unless(!lane.is_unbound(), path, "a lane without bindings", problem)?;
            let LaneSpec { exchange, bindings, .. } = lane.spec(name);
            for binding in bindings {
                let meeting = bound.iter().find(|(of, of_exchange, other)| {
                    *of != name && *of_exchange == exchange && bindings_meet(other, &binding)
                });
                if let Some((other, _, theirs)) = meeting {
                    let problem = format!(
                        "lane {other} has the routing key {theirs:?}, and a task that matches both would run twice"
                    );
                    let (path, value) = (format!("lanes.{name}.bindings"), format_args!("{binding:?}"));
                    return Err(Invalid::new(path, value, problem));
                }
                bound.push((name, exchange.clone(), binding));
            }
        }
        validate_queues(self.defined())
    }

    fn validate_only(&self, only: &[String]) -> Result<(), Invalid> {
        let bound = self.bound_names();
        Invalid::unless(!only.is_empty(), "lanes.only", "[]", format!("expected at least one of {bound}"))?;
        only.iter().try_for_each(|name| {
            let exists = self.defined.get(name).is_some_and(|lane| !lane.is_unbound());
            let problem =
                format!("no such lane, expected some of {bound}; a new one needs lanes.{name}.bindings");
            Invalid::unless(exists, "lanes.only", format_args!("{name:?}"), problem)
        })
    }

    fn bound_names(&self) -> String {
        let bound = self.defined().filter(|(_, lane)| !lane.is_unbound());
        bound.map(|(name, _)| name).collect::<Vec<_>>().join(", ")
    }
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
            let is_meant = ["bindings", "maps"].iter().any(|it| settings.contains_key(*it))
                || lanes.defined.contains_key(&name);
            let lane = lanes.defined.entry(name).or_default();
            *lane = lane.with(settings).map_err(D::Error::custom)?;
            lane.direct = is_meant && lane.has_no_source();
        }
        Ok(lanes)
    }
}

#[cfg(all(test, feature = "cli"))]
mod tests;
