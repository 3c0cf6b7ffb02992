//! Merges the sources of settings into one value, or one line of error.

use std::ffi::OsString;
use std::path::PathBuf;

use config::{Config, Map, Source as _, Value, ValueKind};

use super::explain::{Explained, explain};
use super::known::Known;
use super::layer::{FromFile, Layer, Variables, first_origin, insert};
use super::{ConfigError, Invalid, Settings, secret};

/// The sources of a program's settings, weakest first: file, environment, flags.
#[derive(Clone)]
pub struct Sources {
    /// A TOML file; `None` uses the file named by the variable `<env_prefix>_CONFIG`, if any.
    pub file: Option<PathBuf>,
    /// Environment variables that start with this and `_` are settings; `__` separates the levels of nested tables.
    pub env_prefix: &'static str,
    /// Values of flags, by setting name.
    pub flags: toml::Table,
}

/// Shows only the names of flags: their values may contain passwords.
impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let flags: Vec<&String> = self.flags.keys().collect();
        f.debug_struct("Sources").field("file", &self.file).field("flags", &flags).finish_non_exhaustive()
    }
}

impl Default for Sources {
    fn default() -> Self {
        Self { file: None, env_prefix: "GARENNE", flags: toml::Table::new() }
    }
}

/// Resolves the settings from `sources` and this process's environment.
///
/// Settings that the program does not have are returned in [`Common::ignored`](super::Common::ignored), because a
/// fleet can share one file and one environment.
///
/// # Errors
/// The first invalid or probably misspelled setting, or an unknown flag.
pub fn load<T: Settings>(sources: Sources) -> Result<T, ConfigError> {
    load_with(sources, std::env::vars_os())
}

/// As [`load`], with the given environment.
///
/// # Errors
/// The first invalid or probably misspelled setting, or an unknown flag.
pub fn load_with<T: Settings>(
    sources: Sources,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<T, ConfigError> {
    let known = Known::of::<T>();
    let variables = Variables::under(sources.env_prefix, environment);
    let file = match sources.file {
        Some(path) => Some((path, "flag --config".to_owned())),
        None => variables.config_file(),
    };
    let mut layers = Vec::with_capacity(3);
    if let Some((path, named_by)) = file {
        layers.push(Layer::file(&path, &named_by)?);
    }
    layers.push(Layer::environment(&variables, &known)?);
    layers.push(Layer::flags(sources.flags, &known));

    let mut builder = Config::builder();
    let mut lanes: Vec<String> = known.default_lanes().collect();
    let (mut files, mut ignored) = (Vec::new(), Vec::new());
    for mut layer in layers {
        ignored.extend(layer.keep_known(&known)?);
        files.append(&mut layer.files);
        lanes.extend(layer.lanes());
        layer.spread_per_lane(&known, &lanes);
        builder = builder.add_source(layer);
    }
    let resolved = builder.build().and_then(|config| config.collect()).map_err(|error| together(&error))?;

    let mut settings: T = deserialize(resolved.clone()).map_err(|error| blame::<T>(&resolved, &error))?;
    settings.validate().map_err(|invalid| with_origin(invalid, &resolved))?;
    settings.common_mut().ignored = ignored;
    for FromFile { setting, origin, file } in files {
        // A stronger source may have overridden it.
        if found(&resolved, &setting).and_then(Value::origin) == Some(origin.as_str()) {
            settings.read_from(&setting, &file);
        }
    }
    Ok(settings)
}

fn deserialize<T: Settings>(table: Map<String, Value>) -> Result<T, config::ConfigError> {
    T::deserialize(Value::new(None, ValueKind::Table(table)))
}

/// Finds the setting that caused an error by deserializing each alone, which works because every setting has a
/// default. Serde's error does not contain the path of a flattened setting.
fn blame<T: Settings>(resolved: &Map<String, Value>, error: &config::ConfigError) -> ConfigError {
    let mut leaves = Vec::new();
    collect_leaves(resolved, &mut Vec::new(), &mut leaves);
    leaves.sort_by(|(left, _), (right, _)| left.cmp(right));
    for (path, value) in leaves {
        let mut alone = Map::new();
        insert(&mut alone, &path, value.clone());
        let Err(error) = deserialize::<T>(alone) else { continue };
        let (setting, origin) = (path.join("."), first_origin(&value));
        return match explain(&error) {
            Explained::Problem(problem) => {
                ConfigError::Invalid { value: shown(&setting, &value), setting, origin, problem }
            }
            Explained::UnknownField { field, advice } => {
                let parents = path.iter().take_while(|part| **part != field).cloned();
                let setting = parents.chain([field.clone()]).collect::<Vec<_>>().join(".");
                ConfigError::Unknown { setting, origin, advice }
            }
        };
    }
    together(error)
}

fn together(error: &config::ConfigError) -> ConfigError {
    ConfigError::Together(match explain(error) {
        Explained::Problem(problem) => problem,
        Explained::UnknownField { field, advice } => format!("{field} is unknown, {advice}"),
    })
}

fn collect_leaves(
    table: &Map<String, Value>,
    path: &mut Vec<String>,
    leaves: &mut Vec<(Vec<String>, Value)>,
) {
    for (key, value) in table {
        path.push(key.clone());
        match &value.kind {
            ValueKind::Table(inner) if !inner.is_empty() => collect_leaves(inner, path, leaves),
            _ => leaves.push((path.clone(), value.clone())),
        }
        path.pop();
    }
}

/// A value as the user wrote it, secrets masked.
fn shown(setting: &str, value: &Value) -> String {
    match &value.kind {
        ValueKind::String(text) => format!("{:?}", secret::mask(setting, text)),
        ValueKind::Array(items) => {
            format!("[{}]", items.iter().map(|item| shown(setting, item)).collect::<Vec<_>>().join(", "))
        }
        ValueKind::Table(_) => "a table".to_owned(),
        _ => secret::mask(setting, &value.to_string()),
    }
}

fn with_origin(invalid: Invalid, resolved: &Map<String, Value>) -> ConfigError {
    let origin = found(resolved, &invalid.setting).map(first_origin).filter(|origin| !origin.is_empty());
    ConfigError::Invalid {
        origin: origin.unwrap_or_else(|| "the default".to_owned()),
        setting: invalid.setting,
        value: invalid.value,
        problem: invalid.problem,
    }
}

/// The value of a setting, or the plain value in place of one of its parent tables.
fn found<'a>(resolved: &'a Map<String, Value>, setting: &str) -> Option<&'a Value> {
    let mut parts = setting.split('.');
    let root = parts.next().and_then(|root| resolved.get(root));
    parts.fold(root, |value, part| match value.map(|value| &value.kind) {
        Some(ValueKind::Table(table)) => table.get(part),
        other => other.and(value),
    })
}

#[cfg(test)]
mod tests;
