//! One source of settings: a file, the environment or the flags. Each value carries its origin.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::{
    ConfigError, IgnoredSettings, Invalid,
    known::{Known, nearest},
    secret,
    standard::Given,
    toml_text::parse_toml,
};

/// Variables with the prefix `GARENNE_` that are not settings: the log filter, the configuration file's path, and a variable of
/// the `dev` script.
const RESERVED: [&str; 3] = ["log", "config", "no_docker"];

/// Prefixes of variables of the `dev` script and the test suite, which the programs that they start inherit.
const RESERVED_PREFIXES: [&str; 2] = ["dev_", "test_"];

/// A setting's value.
#[derive(Debug, Clone)]
pub(super) struct Sourced {
    pub(super) value: Value,
    /// Where it came from, as errors name it.
    pub(super) origin: String,
    /// The file that it was read from, if a `…_FILE` variable names one.
    pub(super) file: Option<PathBuf>,
}

/// The settings of one source, or of several merged, by path. No value is a table, except for empty ones.
#[derive(Debug, Clone, Default)]
pub(super) struct Layer(pub(super) BTreeMap<Vec<String>, Sourced>);

impl Layer {
    pub(super) fn flags(flags: toml::Table, known: &Known) -> Self {
        let mut layer = Self::default();
        for (key, value) in flags {
            let default = known.default_at(std::slice::from_ref(&key));
            let origin = format!("flag --{}", flag_name(&key, default));
            let value = match serde_json::to_value(value).expect("JSON has all types of TOML") {
                Value::String(text) => coerce(text, default),
                other => other,
            };
            layer.add(vec![key], value, &origin);
        }
        layer
    }

    /// Reads a TOML file. `named_by` is the flag or variable that names it.
    pub(super) fn file(path: &Path, named_by: &str) -> Result<Self, ConfigError> {
        let refused = |problem| ConfigError::file("configuration file", path, named_by, problem);
        let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
        let table: Map<String, Value> = parse_toml(&text).map_err(refused)?;
        let origin = format!("file {}", path.display());
        let mut layer = Self::default();
        table.into_iter().for_each(|(key, value)| layer.add(vec![key], value, &origin));
        Ok(layer)
    }

    /// Fails if a variable is not UTF-8, the file of a `…_FILE` cannot be read, or a setting is given directly and by
    /// file.
    pub(super) fn environment(
        variables: &Variables,
        standard: Vec<Given>,
        known: &Known,
    ) -> Result<Self, ConfigError> {
        let mut layer = Self::default();
        let mut names: BTreeMap<Vec<String>, &str> = BTreeMap::new();
        for (rest, (name, value)) in variables {
            if value.is_empty() || is_reserved(rest) || is_service_link(rest, value) {
                continue;
            }
            let mut path: Vec<String> = rest.split("__").map(str::to_owned).collect();
            let mut origin = format!("environment {name}");
            let mut text = value.to_str().map(str::to_owned).ok_or_else(|| {
                Invalid::new(path.join("."), format_args!("{value:?}"), "expected UTF-8").given_by(&origin)
            })?;
            let mut file = None;
            if let Some(setting) = setting_read_from_file(&path, known) {
                let named = PathBuf::from(&text);
                text = secret::read_trimmed("file", &named, &origin)?;
                origin = format!("file {} of {origin}", named.display());
                path = setting;
                file = Some(named);
            }
            if let Some(other) = names.insert(path.clone(), name) {
                return Err(ConfigError::Together(format!("{other} and {name} are both set, keep one")));
            }
            let value = coerce(text, known.default_at(&path));
            layer.0.insert(path, Sourced { value, origin, file });
        }
        for Given { setting, variable, value } in standard {
            // Our own variables take precedence: the standard's are for all programs in this environment.
            if known.has(&setting[0]) && !layer.0.contains_key(&setting) {
                let value = coerce(value.to_string_lossy().into_owned(), known.default_at(&setting));
                layer.add(setting, value, &format!("environment {variable}"));
            }
        }
        Ok(layer)
    }

    /// Adds a value, or all values of a table.
    fn add(&mut self, path: Vec<String>, value: Value, origin: &str) {
        match value {
            Value::Object(table) if !table.is_empty() => {
                for (key, value) in table {
                    self.add([path.as_slice(), &[key]].concat(), value, origin);
                }
            }
            value => drop(self.0.insert(path, Sourced { value, origin: origin.to_owned(), file: None })),
        }
    }

    /// Removes the settings that this program does not have, and returns them. Fails on the first that is a flag, or
    /// probably a typo of one of this program's settings.
    pub(super) fn remove_unknown(&mut self, known: &Known) -> Result<Option<IgnoredSettings>, ConfigError> {
        let mut names = BTreeSet::new();
        let mut source = None;
        for (path, Sourced { origin, .. }) in self.0.extract_if(.., |path, _| !known.has(&path[0])) {
            let name = &path[0];
            let typo = known.typo_of(name).map(|meant| format!("did you mean {meant}?"));
            let is_flag = origin.starts_with("flag ");
            if let Some(advice) = typo.or_else(|| is_flag.then(|| nearest(name, known.names()))) {
                return Err(ConfigError::Unknown { setting: name.clone(), origin, advice });
            }
            names.extend(path.into_iter().next());
            let is_variable = origin.starts_with("environment ");
            source = Some(if is_variable { "environment".to_owned() } else { origin });
        }
        Ok(source.map(|source| IgnoredSettings { source, names: names.into_iter().collect() }))
    }

    /// Moves the settings that apply to every lane into `lanes`, except where this source has one for the lane
    /// itself.
    pub(super) fn spread_per_lane(&mut self, known: &Known, lanes: &BTreeSet<String>) {
        for setting in known.per_lane {
            let Some(value) = self.0.remove(&[(*setting).to_owned()][..]) else { continue };
            for lane in lanes {
                let path = vec!["lanes".to_owned(), lane.clone(), (*setting).to_owned()];
                self.0.entry(path).or_insert_with(|| value.clone());
            }
        }
    }

    /// The lanes that this source has settings for.
    pub(super) fn lanes(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter_map(|(path, given)| match path.as_slice() {
            [lanes, lane] if lanes == "lanes" && given.value.is_object() => Some(lane.clone()),
            [lanes, lane, _, ..] if lanes == "lanes" => Some(lane.clone()),
            _ => None,
        })
    }

    /// Adds the settings of a source of higher precedence. A plain value replaces a table, and a table a plain value.
    pub(super) fn overlay(&mut self, stronger: Self) {
        let values = || stronger.0.iter().filter(|(_, given)| !given.value.is_object()).map(|(path, _)| path);
        self.0.retain(|path, _| !values().any(|it| it.starts_with(path) || path.starts_with(it)));
        self.0.extend(stronger.0);
    }

    /// The settings as nested tables.
    pub(super) fn to_tables(&self) -> Value {
        let mut root = Map::new().into();
        for (path, given) in &self.0 {
            let table = path.iter().try_fold(&mut root, |table: &mut Value, key| match table {
                Value::Null | Value::Object(_) => Some(&mut table[key]),
                _ => None,
            });
            table.into_iter().for_each(|slot| *slot = given.value.clone());
        }
        root
    }

    /// The origin of a setting, of the first value in a table, or of a plain value in place of a table.
    pub(super) fn origin(&self, setting: &str) -> Option<&str> {
        let path: Vec<String> = setting.split('.').map(str::to_owned).collect();
        let within = self.0.range(path.clone()..).next().filter(|(found, _)| found.starts_with(&path));
        // The name of a table, such as a handler's, may have points.
        let is_named = |found: &[String]| {
            let rest = found.join(".");
            rest.strip_prefix(setting).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let named = || self.0.iter().find(|(found, _)| is_named(found));
        let mut above = (1..path.len()).filter_map(|depth| self.0.get_key_value(&path[..depth]));
        let (_, found) =
            within.or_else(named).or_else(|| above.find(|(_, given)| !given.value.is_object()))?;
        Some(&found.origin)
    }
}

/// Environment variables that start with `GARENNE_`: name and value, by the name's rest in lower case.
pub(super) type Variables = BTreeMap<String, (String, OsString)>;

pub(super) fn own_variables(environment: &[(OsString, OsString)]) -> Variables {
    let by_rest = environment.iter().filter_map(|(name, value)| {
        let name = name.to_str()?;
        let rest = name.strip_prefix("GARENNE_")?.to_lowercase();
        Some((rest, (name.to_owned(), value.clone())))
    });
    by_rest.collect()
}

fn is_reserved(rest: &str) -> bool {
    RESERVED.contains(&rest) || RESERVED_PREFIXES.iter().any(|prefix| rest.starts_with(prefix))
}

/// The flag of a setting; the flag of a list or table is repeatable and in the singular.
fn flag_name(key: &str, default: Option<&Value>) -> String {
    let many = default.is_some_and(|default| default.is_array() || default.is_object());
    let name = if many { key.strip_suffix('s').unwrap_or(key) } else { key };
    name.replace('_', "-")
}

/// The setting `x` for a path `x_file`, if `x` is a setting and `x_file` is not. In a table that a user adds, such as one
/// of `alert.webhooks`, it always is: the defaults have none whose fields could be looked up.
fn setting_read_from_file(path: &[String], known: &Known) -> Option<Vec<String>> {
    let (last, parents) = path.split_last()?;
    let named = [parents, &[last.strip_suffix("_file")?.to_owned()]].concat();
    let is_added = known.has(&path[0]) && !parents.is_empty() && known.default_at(parents).is_none();
    let is_setting = is_added || known.default_at(&named).is_some();
    (known.default_at(path).is_none() && is_setting).then_some(named)
}

/// Whether it is a Kubernetes service link. Every pod has such variables for each service of its namespace, and those
/// of a service named `garenne-…` look like settings.
fn is_service_link(rest: &str, value: &OsString) -> bool {
    let is_address = value.to_str().is_some_and(|text| text.contains("://"));
    let rest = format!("_{rest}");
    rest.ends_with("_service_host")
        || rest.contains("_service_port")
        || rest.contains("_port_")
        || (rest.ends_with("_port") && is_address)
}

/// Converts text to the type of the default: serde does not convert the values of a flattened struct.
fn coerce(text: String, default: Option<&Value>) -> Value {
    let converted = match default {
        Some(Value::Bool(_)) => match text.to_lowercase().as_str() {
            "true" | "on" | "yes" | "1" => Some(true.into()),
            "false" | "off" | "no" | "0" => Some(false.into()),
            _ => None,
        },
        Some(Value::Number(number)) if number.is_f64() => text.parse().map(|number: f64| number.into()).ok(),
        Some(Value::Number(_)) => text.parse().map(|number: i64| number.into()).ok(),
        _ => None,
    };
    converted.unwrap_or(Value::String(text))
}
