//! Renders the resolved settings as a configuration file.

use serde::Serialize;
use serde_json::Value;

/// Renders settings as TOML that ends with a line break. Secrets are masked by their types; unset optional settings
/// are listed in comments.
///
/// # Panics
/// `settings` does not serialize to a table.
pub fn print_config<T: Serialize>(settings: &T) -> String {
    let Ok(Value::Object(map)) = serde_json::to_value(settings) else {
        panic!("settings serialize to a table");
    };
    let unset: Vec<&String> = map.iter().filter(|(_, value)| value.is_null()).map(|(key, _)| key).collect();
    let comments: String = unset.iter().map(|key| format!("# {key} is not set\n")).collect();
    let table: toml::Table =
        map.iter().filter_map(|(key, value)| Some((key.clone(), to_toml(value)?))).collect();
    comments + &toml::to_string(&table).expect("a table of plain values is TOML")
}

/// `None` for null, which TOML does not have.
fn to_toml(value: &Value) -> Option<toml::Value> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(boolean) => toml::Value::Boolean(*boolean),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => toml::Value::Integer(whole),
            None => toml::Value::Float(number.as_f64()?),
        },
        Value::String(text) => toml::Value::String(text.clone()),
        Value::Array(items) => toml::Value::Array(items.iter().filter_map(to_toml).collect()),
        Value::Object(map) => toml::Value::Table(
            map.iter().filter_map(|(key, value)| Some((key.clone(), to_toml(value)?))).collect(),
        ),
    })
}
