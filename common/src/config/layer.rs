//! One source of settings: a file, the environment or the flags. Each value carries its origin.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use config::{Map, Source, Value, ValueKind};

use super::known::Known;
use super::standard::{self, Given};
use super::toml_text::parse_toml;
use super::{ConfigError, IgnoredSettings};

/// Variables with the prefix that are not settings: the log filter, the configuration file's path, and a variable of
/// the `dev` script.
const RESERVED: [&str; 3] = ["log", "config", "no_docker"];

/// Prefixes of variables of the `dev` script and the test suite, which the programs that they start inherit.
const RESERVED_PREFIXES: [&str; 2] = ["dev_", "test_"];

/// The settings of one source.
#[derive(Debug, Clone, Default)]
pub(super) struct Layer {
    pub(super) table: Map<String, Value>,
    /// The settings whose values were read from the files of `…_FILE` variables.
    pub(super) files: Vec<FromFile>,
}

/// A setting given by a `…_FILE` variable.
#[derive(Debug, Clone)]
pub(super) struct FromFile {
    pub(super) setting: String,
    /// The origin of its value.
    pub(super) origin: String,
    pub(super) file: PathBuf,
}

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, config::ConfigError> {
        Ok(self.table.clone())
    }
}

impl Layer {
    pub(super) fn flags(flags: toml::Table, known: &Known) -> Self {
        let table = flags.into_iter().map(|(key, value)| {
            let default = known.default_at(std::slice::from_ref(&key));
            let origin = format!("flag --{}", flag_name(&key, default));
            let mut value = from_toml(value, &origin);
            if let ValueKind::String(text) = value.kind {
                value.kind = coerce(text, default);
            }
            (key, value)
        });
        Self { table: table.collect(), ..Self::default() }
    }

    /// # Errors
    /// The file cannot be read or is not TOML. `named_by` is the flag or variable that names it.
    pub(super) fn file(path: &Path, named_by: &str) -> Result<Self, ConfigError> {
        let refused = |problem: String| ConfigError::File {
            what: "configuration file",
            path: path.to_owned(),
            origin: named_by.to_owned(),
            problem,
        };
        let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
        let table: toml::Table = parse_toml(&text).map_err(refused)?;
        let origin = format!("file {}", path.display());
        let table = table.into_iter().map(|(key, value)| (key, from_toml(value, &origin))).collect();
        Ok(Self { table, ..Self::default() })
    }

    /// # Errors
    /// A variable is not UTF-8, the file of a `…_FILE` cannot be read, or a setting is given directly and by file.
    pub(super) fn environment(vars: &Variables, known: &Known) -> Result<Self, ConfigError> {
        let mut layer = Self::default();
        let mut seen: BTreeMap<Vec<String>, &str> = BTreeMap::new();
        for (rest, (name, value)) in &vars.by_rest {
            if value.is_empty() || is_reserved(rest) || is_service_link(rest, value) {
                continue;
            }
            let mut path: Vec<String> = rest.split("__").map(str::to_owned).collect();
            let mut origin = format!("environment {name}");
            let mut text = value.to_str().map(str::to_owned).ok_or_else(|| ConfigError::Invalid {
                setting: path.join("."),
                value: format!("{value:?}"),
                origin: origin.clone(),
                problem: "expected UTF-8".to_owned(),
            })?;
            if let Some(named) = setting_read_from_file(&path, known) {
                let file = PathBuf::from(&text);
                text = super::secret::read_trimmed(&file).map_err(|problem| ConfigError::File {
                    what: "file",
                    path: file.clone(),
                    origin: origin.clone(),
                    problem,
                })?;
                origin = format!("file {} of {origin}", file.display());
                path = named;
                layer.files.push(FromFile { setting: path.join("."), origin: origin.clone(), file });
            }
            if let Some(other) = seen.insert(path.clone(), name) {
                return Err(ConfigError::Together(format!("{other} and {name} are both set, keep one")));
            }
            let kind = coerce(text, known.default_at(&path));
            insert(&mut layer.table, &path, Value::new(Some(&origin), kind));
        }
        // Our own variables take precedence: the standard's are for all programs in this environment.
        let standard = vars.standard.iter().filter(|it| !seen.contains_key(&it.setting));
        for Given { setting, variable, value } in standard.filter(|it| known.has(&it.setting[0])) {
            let kind = coerce(value.to_string_lossy().into_owned(), known.default_at(setting));
            let origin = format!("environment {variable}");
            insert(&mut layer.table, setting, Value::new(Some(&origin), kind));
        }
        Ok(layer)
    }

    /// Removes the settings that this program does not have, and returns them.
    ///
    /// # Errors
    /// The first of them that is a flag, or probably a typo of one of this program's settings.
    pub(super) fn keep_known(&mut self, known: &Known) -> Result<Option<IgnoredSettings>, ConfigError> {
        let mut names: Vec<_> = self.table.keys().filter(|key| !known.has(key)).cloned().collect();
        names.sort_unstable();
        let mut source = None;
        for name in &names {
            let value = self.table.remove(name).expect("the key was just listed");
            let origin = first_origin(&value);
            let typo = known.typo_of(name).map(|meant| format!("did you mean {meant}?"));
            let is_flag = origin.starts_with("flag ");
            if let Some(advice) = typo.or_else(|| is_flag.then(|| known.advice(name))) {
                return Err(ConfigError::Unknown { setting: name.clone(), origin, advice });
            }
            let is_variable = origin.starts_with("environment ");
            source = Some(if is_variable { "environment".to_owned() } else { origin });
        }
        Ok(source.map(|source| IgnoredSettings { source, names }))
    }

    /// Moves the settings that apply to every lane into `lanes`, except where this source has one for the lane
    /// itself.
    pub(super) fn spread_per_lane(&mut self, known: &Known, lanes: &[String]) {
        for setting in known.per_lane {
            let Some(value) = self.table.remove(*setting) else { continue };
            for lane in lanes {
                let path = ["lanes".to_owned(), lane.clone(), (*setting).to_owned()];
                if !has(&self.table, &path) {
                    insert(&mut self.table, &path, value.clone());
                }
            }
        }
    }

    /// The lanes that this source has settings for.
    pub(super) fn lanes(&self) -> impl Iterator<Item = String> {
        let lanes = self.table.get("lanes").and_then(|lanes| match &lanes.kind {
            ValueKind::Table(table) => Some(table),
            _ => None,
        });
        lanes.into_iter().flat_map(|table| {
            let tables = table.iter().filter(|(_, lane)| matches!(lane.kind, ValueKind::Table(_)));
            tables.map(|(name, _)| name.clone())
        })
    }
}

/// The environment variables with one prefix, by their rest in lower case, and OpenTelemetry's.
pub(super) struct Variables {
    by_rest: BTreeMap<String, (String, OsString)>,
    standard: Vec<Given>,
}

impl Variables {
    pub(super) fn under(prefix: &str, vars: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let vars: Vec<_> = vars.into_iter().collect();
        let standard = standard::given(&vars);
        let by_rest = vars.into_iter().filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            let rest = name.strip_prefix(prefix)?.strip_prefix('_')?.to_lowercase();
            Some((rest, (name, value)))
        });
        Self { by_rest: by_rest.collect(), standard }
    }

    /// The path of the configuration file in the environment, and its variable.
    pub(super) fn config_file(&self) -> Option<(PathBuf, String)> {
        let (name, value) = self.by_rest.get("config").filter(|(_, value)| !value.is_empty())?;
        Some((PathBuf::from(value), format!("environment {name}")))
    }
}

fn is_reserved(rest: &str) -> bool {
    RESERVED.contains(&rest) || RESERVED_PREFIXES.iter().any(|prefix| rest.starts_with(prefix))
}

/// The flag of a setting; the flag of a list or table is repeatable and in the singular.
fn flag_name(key: &str, default: Option<&serde_json::Value>) -> String {
    let many = default.is_some_and(|default| default.is_array() || default.is_object());
    let name = if many { key.strip_suffix('s').unwrap_or(key) } else { key };
    name.replace('_', "-")
}

fn from_toml(value: toml::Value, origin: &String) -> Value {
    let kind = match value {
        toml::Value::String(text) => ValueKind::String(text),
        toml::Value::Integer(number) => ValueKind::I64(number),
        toml::Value::Float(number) => ValueKind::Float(number),
        toml::Value::Boolean(boolean) => ValueKind::Boolean(boolean),
        toml::Value::Datetime(time) => ValueKind::String(time.to_string()),
        toml::Value::Array(items) => {
            ValueKind::Array(items.into_iter().map(|item| from_toml(item, origin)).collect())
        }
        toml::Value::Table(table) => {
            ValueKind::Table(table.into_iter().map(|(key, value)| (key, from_toml(value, origin))).collect())
        }
    };
    Value::new(Some(origin), kind)
}

/// The setting `x` for a path `x_file`, if `x` is a setting and `x_file` is not.
fn setting_read_from_file(path: &[String], known: &Known) -> Option<Vec<String>> {
    if known.default_at(path).is_some() {
        return None;
    }
    let (last, parents) = path.split_last()?;
    let named: Vec<String> =
        parents.iter().cloned().chain([last.strip_suffix("_file")?.to_owned()]).collect();
    known.default_at(&named).is_some().then_some(named)
}

/// Whether it is a Kubernetes service link. Every pod has such variables for each service of its namespace, and those
/// of a service named `garenne-…` look like settings.
fn is_service_link(rest: &str, value: &OsString) -> bool {
    let address = value.to_str().is_some_and(|text| text.contains("://"));
    rest.ends_with("_service_host")
        || rest.contains("_service_port")
        || rest.contains("_port_")
        || rest == "service_host"
        || rest.starts_with("service_port")
        || ((rest == "port" || rest.ends_with("_port")) && address)
        || rest.starts_with("port_")
}

/// Converts text to the type of the default: serde buffers the values of a flattened struct and does not convert
/// them.
fn coerce(text: String, default: Option<&serde_json::Value>) -> ValueKind {
    match default {
        Some(serde_json::Value::Bool(_)) => text.parse().map(ValueKind::Boolean).ok(),
        Some(serde_json::Value::Number(number)) if number.is_f64() => text.parse().map(ValueKind::Float).ok(),
        Some(serde_json::Value::Number(_)) => text.parse().map(ValueKind::I64).ok(),
        _ => None,
    }
    .unwrap_or(ValueKind::String(text))
}

fn has(table: &Map<String, Value>, path: &[String]) -> bool {
    let Some((key, rest)) = path.split_first() else { return true };
    match table.get(key).map(|value| &value.kind) {
        Some(ValueKind::Table(inner)) => has(inner, rest),
        Some(_) => rest.is_empty(),
        None => false,
    }
}

/// Inserts `value` at `path`. A plain value in place of a table is kept, and refused later by its type.
pub(super) fn insert(table: &mut Map<String, Value>, path: &[String], value: Value) {
    let Some((key, rest)) = path.split_first() else { return };
    if rest.is_empty() {
        table.insert(key.clone(), value);
        return;
    }
    let inner = table.entry(key.clone()).or_insert_with(|| Value::new(None, ValueKind::Table(Map::new())));
    if let ValueKind::Table(inner) = &mut inner.kind {
        insert(inner, rest, value);
    }
}

/// The origin of a value, or of the first value in a table.
pub(super) fn first_origin(value: &Value) -> String {
    if let Some(origin) = value.origin() {
        return origin.to_owned();
    }
    match &value.kind {
        ValueKind::Table(table) => {
            let first = table.iter().min_by_key(|(key, _)| key.as_str());
            first.map_or_else(String::new, |(_, value)| first_origin(value))
        }
        _ => String::new(),
    }
}
