//! The names of the settings.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Invalid;

/// The settings of one program: a serde type with a default for every field (`#[serde(default)]`).
///
/// The names of the top-level settings are taken from the serialized default, so no field may be skipped there.
/// Nested tables need `#[serde(deny_unknown_fields)]`; a flattened one must not have it.
pub trait Settings: Default + Serialize + DeserializeOwned {
    /// Settings that apply to each lane, unless the lane has its own from the same source or one of higher precedence
    /// (flag, environment, file). They need no field: [`super::load`] inserts them into the lanes of the field
    /// `lanes`.
    const PER_LANE: &'static [&'static str] = &[];

    /// Validates what a single value's type cannot, such as one limit that must be below another.
    ///
    /// # Errors
    /// The first invalid setting.
    fn validate(&self) -> Result<(), Invalid> {
        Ok(())
    }

    /// Called for each setting whose effective value was read from the file of its `…_FILE` variable, so that a
    /// rotated secret can be read again.
    fn read_from(&mut self, _setting: &str, _file: &Path) {}
}

/// Top-level settings of all Garenne programs, besides the common ones. A fleet can share one environment or file: a
/// program ignores settings of other programs and refuses unknown ones.
const ALL_PROGRAMS: &[&str] = &[
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

    /// Whether another Garenne program may have this setting.
    pub(super) fn of_other_program(root: &str) -> bool {
        ALL_PROGRAMS.contains(&root)
    }

    /// The default at a path; `None` if there is no such setting, null if it is optional and unset by default.
    pub(super) fn default_at(&self, path: &[String]) -> Option<&Value> {
        let (root, rest) = path.split_first()?;
        rest.iter().try_fold(self.defaults.get(root)?, |value, key| value.get(key))
    }

    /// The lanes that exist by default.
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

/// Longest name that is compared with the known ones: the edit distance takes time in the product of the lengths.
const MAX_COMPARED_LEN: usize = 64;

/// `did you mean …?`, or the list of known names.
pub(super) fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> String {
    let mut known: Vec<&str> = known.collect();
    known.sort_unstable();
    known.dedup();
    let compared = known.iter().filter(|_| unknown.len() <= MAX_COMPARED_LEN);
    let best = compared.map(|name| (strsim::damerau_levenshtein(unknown, name), *name)).min();
    match best {
        // Up to a third of the letters wrong counts as a typo.
        Some((distance, name)) if distance * 3 <= name.len().max(3) => format!("did you mean {name}?"),
        _ => format!("expected one of {}", known.join(", ")),
    }
}
