//! Merges the sources of settings into one value, or one line of error.

use std::{collections::BTreeSet, ffi::OsString, fmt, path::PathBuf};

use serde_json::Value;

use super::{
    ConfigError, Invalid, Settings,
    explain::{Explained, explain},
    known::Known,
    layer::{Layer, Sourced, own_variables},
    secret, standard,
};

/// The sources of a program's settings, weakest first: file, environment, flags.
///
/// Environment variables that start with `GARENNE_` are settings; `__` separates the levels of nested tables.
#[derive(Clone, Default)]
pub struct Sources {
    /// A TOML file; `None` uses the file named by the variable `GARENNE_CONFIG`, if any.
    pub file: Option<PathBuf>,
    /// Values of flags, by setting name.
    pub flags: toml::Table,
}

/// Without the values of flags, which may contain passwords.
impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags: Vec<_> = self.flags.keys().collect();
        f.debug_struct("Sources").field("file", &self.file).field("flags", &flags).finish()
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
    let environment: Vec<_> = environment.into_iter().collect();
    let variables = own_variables(&environment);
    let mut layers = Vec::with_capacity(3);
    match (sources.file, variables.get("config")) {
        (Some(path), _) => layers.push(Layer::file(&path, "flag --config")?),
        (None, Some((name, path))) if !path.is_empty() => {
            layers.push(Layer::file(path.as_ref(), &format!("environment {name}"))?);
        }
        _ => {}
    }
    layers.push(Layer::environment(&variables, standard::given(&environment), &known)?);
    layers.push(Layer::flags(sources.flags, &known));

    let mut resolved = Layer::default();
    let mut lanes: BTreeSet<String> = known.default_lanes().collect();
    let mut ignored = Vec::new();
    for mut layer in layers {
        ignored.extend(layer.remove_unknown(&known)?);
        lanes.extend(layer.lanes());
        layer.spread_per_lane(&known, &lanes);
        resolved.overlay(layer);
    }

    let mut settings = T::deserialize(resolved.to_tables()).map_err(|error| blame::<T>(&resolved, &error))?;
    settings.validate().map_err(|invalid| {
        let origin = resolved.origin(&invalid.setting).unwrap_or("the default");
        invalid.given_by(origin)
    })?;
    settings.common_mut().ignored = ignored;
    for (path, Sourced { file, .. }) in resolved.0 {
        if let Some(file) = file {
            settings.read_from(&path.join("."), &file);
        }
    }
    Ok(settings)
}

/// Finds the setting that caused an error by deserializing each alone, which works because every setting has a
/// default. Serde's error does not contain the path of a flattened setting.
fn blame<T: Settings>(resolved: &Layer, error: &serde_json::Error) -> ConfigError {
    for (path, given) in &resolved.0 {
        let alone = Layer([(path.clone(), given.clone())].into());
        let Err(error) = T::deserialize(alone.to_tables()) else { continue };
        let (setting, origin) = (path.join("."), given.origin.clone());
        return match explain(&error) {
            Explained::Problem(problem) => {
                Invalid::new(&setting, shown(&setting, &given.value), problem).given_by(origin)
            }
            Explained::UnknownField { field, advice } => {
                let parents = path.iter().take_while(|part| **part != field).cloned();
                let setting = parents.chain([field.clone()]).collect::<Vec<_>>().join(".");
                ConfigError::Unknown { setting, origin, advice }
            }
        };
    }
    ConfigError::Together(match explain(error) {
        Explained::Problem(problem) => problem,
        Explained::UnknownField { field, advice } => format!("{field} is unknown, {advice}"),
    })
}

/// A value as the user wrote it, secrets masked.
fn shown(setting: &str, value: &Value) -> String {
    match value {
        Value::String(text) => format!("{:?}", secret::mask(setting, text)),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(|item| shown(setting, item)).collect::<Vec<_>>().join(", "))
        }
        Value::Object(_) => "a table".to_owned(),
        _ => secret::mask(setting, &value.to_string()),
    }
}

#[cfg(test)]
mod tests;
