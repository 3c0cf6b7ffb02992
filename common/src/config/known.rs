//! Which settings there are.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Invalid;

/// The settings of one program: a serde type with a default for every field (`#[serde(default)]`).
///
/// The names of its top-level settings are learned from its serialized default, so no field is
/// skipped there. Nested tables say `#[serde(deny_unknown_fields)]`; a flattened one must not.
pub trait Settings: Default + Serialize + DeserializeOwned {
    /// Settings that hold for each lane unless the lane has its own at the same or a higher rank
    /// (flag over environment over file). They need no field: [`super::load`] puts them on the
    /// lanes of the field `lanes`.
    const PER_LANE: &'static [&'static str] = &[];

    /// What no single value shows, such as one limit below another.
    ///
    /// # Errors
    /// The first setting that is refused.
    fn validate(&self) -> Result<(), Invalid> {
        Ok(())
    }

    /// Told of each setting whose value in force was read from a file that its `…_FILE` names: a secret
    /// that is rotated there can be read again.
    fn read_from(&mut self, _setting: &str, _file: &Path) {}
}

/// Top-level settings that some Garenne program knows. A fleet shares one environment or file, so
/// that a program passes over what is another's; what is nobody's is refused.
const ELSEWHERE: &[&str] = &[
    "alert",
    "calibration",
    "connect_timeout",
    "concurrency",
    "dashboard",
    "device",
    "drill",
    "enable_bench",
    "gateway",
    "group_commit",
    "hard_grace",
    "lanes",
    "on_conflict",
    "listen",
    "max_attempts",
    "max_clock_skew",
    "max_payload",
    "postgres",
    "postgres_tls",
    "postgres_url",
    "prefetch",
    "publish",
    "reading",
    "receipt",
    "replay",
    "replies",
    "retry",
    "rules",
    "scale",
    "server",
    "shutdown_mode",
    "shutdown_timeout",
    "simulate",
    "sink",
    "sinks",
    "spectrum",
    "termination_grace",
    "tls_cert",
    "tls_client_ca",
    "tls_key",
    "tokens",
    "window",
    "worker_amqp_url",
    "worker_id",
];

/// The settings of one program, by name and default.
pub(super) struct Known {
    defaults: serde_json::Map<String, Value>,
    pub(super) per_lane: &'static [&'static str],
}

impl Known {
    pub(super) fn of<T: Settings>() -> Self {
        let defaults = match serde_json::to_value(T::default()) {
            Ok(Value::Object(map)) => map,
            other => unreachable!("settings serialize to a table, not to {other:?}"),
        };
        Self { defaults, per_lane: T::PER_LANE }
    }

    pub(super) fn has(&self, root: &str) -> bool {
        self.defaults.contains_key(root) || self.per_lane.contains(&root)
    }

    /// Whether another program of the fleet has this setting.
    pub(super) fn elsewhere(root: &str) -> bool {
        ELSEWHERE.contains(&root)
    }

    /// The default at a path; `None` if nothing is there, null where an optional setting is unset.
    pub(super) fn default_at(&self, path: &[String]) -> Option<&Value> {
        let (root, rest) = path.split_first()?;
        rest.iter().try_fold(self.defaults.get(root)?, |value, key| value.get(key))
    }

    /// The lanes that exist without anybody naming them.
    pub(super) fn default_lanes(&self) -> impl Iterator<Item = String> {
        self.defaults
            .get("lanes")
            .and_then(Value::as_object)
            .into_iter()
            .flat_map(|lanes| lanes.iter().filter(|(_, lane)| lane.is_object()).map(|(name, _)| name.clone()))
    }

    pub(super) fn advice(&self, unknown: &str) -> String {
        nearest(unknown, self.defaults.keys().map(String::as_str).chain(self.per_lane.iter().copied()))
    }
}

/// The longest name that is compared with the known ones: the edit distance costs the product of the lengths.
const LONGEST_COMPARED: usize = 64;

/// `did you mean …?`, or all that is known.
pub(super) fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> String {
    let mut known: Vec<&str> = known.collect();
    known.sort_unstable();
    known.dedup();
    let compared = known.iter().filter(|_| unknown.len() <= LONGEST_COMPARED);
    let best = compared.map(|name| (strsim::damerau_levenshtein(unknown, name), *name)).min();
    match best {
        // A third of the letters wrong is a slip; more is another word.
        Some((distance, name)) if distance * 3 <= name.len().max(3) => format!("did you mean {name}?"),
        _ => format!("expected one of {}", known.join(", ")),
    }
}
