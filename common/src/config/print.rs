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
    let table = toml::Table::try_from(settings).expect("settings without null are TOML");
    comments + &toml::to_string(&table).expect("a table of plain values is TOML")
}
