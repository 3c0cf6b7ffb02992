//! `docs/garenne.example.toml`: every setting with its default and its description.
//!
//! Defaults come from the settings types of the four programs, descriptions from the tables of the documentation. A
//! setting without a row, a row without a setting, and a row with another default are errors.

mod rows;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use garenne_common::config::Common;
use garenne_console::settings::ConsoleConfig;
use garenne_drill::settings::DrillConfig;
use garenne_producer::settings::ProducerSettings;
use garenne_worker::StockConfig;
use serde_json::Value;

use rows::Row;

/// Where the file is kept, relative to the root of the repository.
pub const PATH: &str = "docs/garenne.example.toml";

/// Longest line of a comment, in characters.
const WIDTH: usize = 110;

/// Example values, in TOML, of the settings without a default.
const EXAMPLES: [(&str, &str); 48] = [
    ("admin", "\"127.0.0.1:9464\""),
    ("admin_tls_cert", "\"/etc/garenne/admin.pem\""),
    ("admin_tls_key", "\"/etc/garenne/admin.key\""),
    ("admin_token_file", "\"/run/secrets/admin-token\""),
    ("alert.webhooks.<name>.headers", "{ Authorization = \"Bearer token\" }"),
    ("alert.webhooks.<name>.secret", "\"whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz\""),
    ("alert.webhooks.<name>.url", "\"https://example.com/hooks/garenne\""),
    ("amqp_tls.ca", "\"/etc/garenne/broker-ca.pem\""),
    ("amqp_tls.cert", "\"/etc/garenne/client.pem\""),
    ("amqp_tls.key", "\"/etc/garenne/client.key\""),
    ("calibration", "\"/etc/garenne/calibration.toml\""),
    ("dashboard.operators", "\"/etc/garenne/operators\""),
    ("dashboard.tls_cert", "\"/etc/garenne/dashboard.pem\""),
    ("dashboard.tls_key", "\"/etc/garenne/dashboard.key\""),
    ("forward.tls.ca", "\"/etc/garenne/central-ca.pem\""),
    ("forward.tls.cert", "\"/etc/garenne/site.pem\""),
    ("forward.tls.key", "\"/etc/garenne/site.key\""),
    ("forward.token_file", "\"/etc/garenne/central-token\""),
    ("forward.url", "\"https://central.example:8080\""),
    ("lanes.<name>.celery_pass_on", "\"celery.python\""),
    ("lanes.<name>.consumer_timeout", "\"30m\""),
    ("lanes.<name>.default_kind", "\"reading.process\""),
    ("lanes.<name>.exchange", "\"plant\""),
    ("lanes.<name>.max_per_key", "2"),
    ("lanes.<name>.queue", "\"celery\""),
    ("lanes.only", "[\"fast\"]"),
    ("management_url", "\"http://guest:guest@127.0.0.1:15672\""),
    ("mqtt.client_id", "\"site-1\""),
    ("mqtt.tls.ca", "\"/etc/garenne/mqtt-ca.pem\""),
    ("mqtt.tls.cert", "\"/etc/garenne/client.pem\""),
    ("mqtt.tls.key", "\"/etc/garenne/client.key\""),
    ("mqtt.url", "\"mqtts://user:password@broker.example\""),
    ("otlp.endpoint", "\"http://127.0.0.1:4318\""),
    ("otlp.service_name", "\"garenne-worker\""),
    ("postgres_tls.ca", "\"/etc/garenne/postgres-ca.pem\""),
    ("postgres_tls.cert", "\"/etc/garenne/client.pem\""),
    ("postgres_tls.key", "\"/etc/garenne/client.key\""),
    ("postgres_url", "\"postgres://garenne:password@127.0.0.1/garenne?sslmode=verify-full\""),
    ("receipt", "\"/var/lib/garenne/receipt.json\""),
    ("rules", "\"/etc/garenne/rules.toml\""),
    ("spool", "\"/var/lib/garenne/spool\""),
    ("termination_grace", "\"35s\""),
    ("tls_cert", "\"/etc/garenne/gateway.pem\""),
    ("tls_client_ca", "\"/etc/garenne/sensors-ca.pem\""),
    ("tls_key", "\"/etc/garenne/gateway.key\""),
    ("tokens", "\"/etc/garenne/senders.toml\""),
    ("worker_amqp_url", "\"amqp://garenne-worker:password@127.0.0.1:5672/%2f\""),
    ("worker_id", "\"worker-1\""),
];

/// One line of the file and the comment above it.
struct Entry {
    /// The table, such as `lanes.fast`; empty for the top level.
    table: String,
    key: String,
    /// The value in TOML.
    value: String,
    /// Whether the value is the default; otherwise it is an example, and the line is a comment.
    is_default: bool,
    comment: String,
}

/// The text of the file.
///
/// # Errors
/// Disagreements of settings and documentation, one line each.
pub fn generate(repository: &Path) -> Result<String, Vec<String>> {
    let rows = rows::read(repository);
    let defaults = defaults();
    let mut problems = undocumented(&rows, &defaults);
    let mut sections: Vec<(String, Vec<Entry>)> = Vec::new();
    for row in &rows {
        match entries(row, &defaults) {
            Ok(entries) => match sections.iter_mut().find(|(section, _)| *section == row.section) {
                Some((_, section)) => section.extend(entries),
                None => sections.push((row.section.clone(), entries)),
            },
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() { Ok(print(&sections)) } else { Err(problems) }
}

/// The names of all settings that the documentation describes, such as `lanes.<name>.prefetch`.
pub(super) fn documented(repository: &Path) -> BTreeSet<String> {
    rows::read(repository).into_iter().map(|row| row.setting).collect()
}

/// The default of every setting of the four programs, by path.
fn defaults() -> BTreeMap<String, Value> {
    fn flatten(path: &str, value: Value, found: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(table) => {
                for (key, value) in table {
                    let path = if path.is_empty() { key } else { format!("{path}.{key}") };
                    flatten(&path, value, found);
                }
            }
            value => drop(found.insert(path.to_owned(), value)),
        }
    }
    let mut found = BTreeMap::new();
    for settings in [
        serde_json::to_value(StockConfig::default()),
        serde_json::to_value(ProducerSettings::default()),
        serde_json::to_value(ConsoleConfig::default()),
        serde_json::to_value(DrillConfig::default()),
    ] {
        flatten("", settings.expect("settings serialize"), &mut found);
    }
    // Its password is masked when it is serialized.
    let amqp_url = Common::default().amqp_url;
    found.insert("amqp_url".to_owned(), amqp_url.expose().into());
    found
}

fn undocumented(rows: &[Row], defaults: &BTreeMap<String, Value>) -> Vec<String> {
    let missing = defaults.keys().filter(|path| !rows.iter().any(|row| row.describes(path)));
    missing.map(|path| format!("setting {path} is in no table of the documentation")).collect()
}

/// The lines for a row: one for each setting that it describes, such as one for each lane.
fn entries(row: &Row, defaults: &BTreeMap<String, Value>) -> Result<Vec<Entry>, String> {
    let example = || {
        let example = EXAMPLES.iter().find(|(setting, _)| *setting == row.setting);
        example.map(|(_, value)| (*value).to_owned()).ok_or_else(|| {
            format!("setting {} ({}) does not exist, or needs an example value", row.setting, row.section)
        })
    };
    let described: Vec<_> = defaults.iter().filter(|(path, _)| row.describes(path)).collect();
    // Lanes may have different defaults, which the text describes.
    if let Some((path, value)) = described.iter().find(|(_, value)| !row.has_default(value))
        && described.iter().all(|(_, other)| other == value)
    {
        return Err(format!("the default of {path} is {value} and not {}", row.default));
    }
    if described.is_empty() {
        return Ok(vec![entry(&row.setting.replace("<name>", "default"), example()?, false, &row.comment)]);
    }
    let mut entries = Vec::new();
    for (path, value) in described {
        // Lanes have the same settings, which the first lane explains.
        let comment = if entries.is_empty() { row.comment.as_str() } else { "" };
        let (value, is_default) = match value {
            Value::Null => (example()?, false),
            value => (in_toml(value), true),
        };
        entries.push(entry(path, value, is_default, comment));
    }
    Ok(entries)
}

fn entry(path: &str, value: String, is_default: bool, comment: &str) -> Entry {
    let (table, key) = path.rsplit_once('.').unwrap_or(("", path));
    Entry { table: table.to_owned(), key: key.to_owned(), value, is_default, comment: comment.to_owned() }
}

fn in_toml(value: &Value) -> String {
    toml::Value::try_from(value).expect("defaults are plain values").to_string()
}

const HEAD: &str = "\
# Every setting of Garenne's programs with its default. Generated by `./dev docs` from the settings types and
# docs/settings.md: change those.
#
# All programs can share this file: each ignores the settings that only the others have. A line that begins with # and
# has no space after it is an example of a setting without a default.
";

/// The top level first, then the tables: in TOML a key after a table belongs to that table.
fn print(sections: &[(String, Vec<Entry>)]) -> String {
    let mut text = HEAD.to_owned();
    for (section, entries) in sections {
        let mut top = entries.iter().filter(|entry| entry.table.is_empty()).peekable();
        if top.peek().is_some() {
            text += &format!("\n# === {section} ===\n");
        }
        top.for_each(|entry| print_entry(entry, &mut text));
    }
    for (section, entries) in sections {
        let mut tables: Vec<&str> = Vec::new();
        for entry in entries.iter().filter(|entry| !entry.table.is_empty()) {
            if !tables.contains(&entry.table.as_str()) {
                tables.push(&entry.table);
            }
        }
        if !tables.is_empty() {
            text += &format!("\n# === {section}: tables ===\n");
        }
        for table in tables {
            let of_table = || entries.iter().filter(|entry| entry.table == table);
            // A table of examples only would be an empty table, which some settings do not allow.
            let mark = if of_table().any(|entry| entry.is_default) { "" } else { "#" };
            text += &format!("\n{mark}[{table}]\n");
            of_table().for_each(|entry| print_entry(entry, &mut text));
        }
    }
    text
}

fn print_entry(entry: &Entry, text: &mut String) {
    if entry.table.is_empty() {
        text.push('\n');
    }
    let mut line = String::new();
    for word in entry.comment.split_whitespace() {
        if !line.is_empty() && line.chars().count() + word.chars().count() + 3 > WIDTH {
            *text += &format!("#{line}\n");
            line.clear();
        }
        line.push(' ');
        line += word;
    }
    if !line.is_empty() {
        *text += &format!("#{line}\n");
    }
    let mark = if entry.is_default { "" } else { "#" };
    *text += &format!("{mark}{} = {}\n", entry.key, entry.value);
}

#[cfg(test)]
mod tests;
