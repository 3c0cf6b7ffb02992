//! The names of a program's settings, and the nearest one to a misspelled name.

use serde_json::Value;

use super::Settings;

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

    /// The default at a path; `None` if there is no such setting, null if it is optional and unset by default. The settings of
    /// a lane that a user adds have the types of those of a default lane.
    pub(super) fn default_at(&self, path: &[String]) -> Option<&Value> {
        let (root, rest) = path.split_first()?;
        rest.iter().try_fold(self.defaults.get(root)?, |value, key| match value.get(key) {
            None if root == "lanes" && rest.first() == Some(key) => {
                value.as_object()?.values().find(|lane| lane.is_object())
            }
            found => found,
        })
    }

    pub(super) fn default_lanes(&self) -> impl Iterator<Item = String> {
        let lanes = self.defaults.get("lanes").and_then(Value::as_object).into_iter().flatten();
        lanes.filter(|(_, lane)| lane.is_object()).map(|(name, _)| name.clone())
    }

    /// The name of this program's that `unknown` is probably a typo of. It is not the setting of another program: no
    /// two programs have names this similar.
    pub(super) fn typo_of(&self, unknown: &str) -> Option<String> {
        let from_files = self.names().map(|name| format!("{name}_file"));
        let (distance, name) = closest(unknown, self.names().map(str::to_owned).chain(from_files))?;
        (distance <= MAX_TYPO && distance * 3 <= name.len()).then_some(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.defaults.keys().map(String::as_str).chain(self.per_lane.iter().copied())
    }
}

/// Most edits of a name that count as a typo.
const MAX_TYPO: usize = 2;

/// Longest name that is compared with the known ones: the edit distance takes time in the product of the lengths.
const MAX_COMPARED_LEN: usize = 64;

/// The name with the smallest edit distance to `unknown`, and the distance.
fn closest<N: AsRef<str> + Ord>(unknown: &str, names: impl Iterator<Item = N>) -> Option<(usize, N)> {
    if unknown.len() > MAX_COMPARED_LEN {
        return None;
    }
    names.map(|name| (strsim::damerau_levenshtein(unknown, name.as_ref()), name)).min()
}

/// `did you mean …?`, or the list of known names.
pub(super) fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> String {
    let mut known: Vec<&str> = known.collect();
    known.sort_unstable();
    known.dedup();
    let best = closest(unknown, known.iter().copied());
    match best {
        // Up to a third of the letters wrong counts as a typo.
        Some((distance, name)) if distance * 3 <= name.len().max(3) => format!("did you mean {name}?"),
        _ => format!("expected one of {}", known.join(", ")),
    }
}
