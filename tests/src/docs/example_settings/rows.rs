//! The rows of the documentation's tables of settings.

use std::{fs, path::Path};

use serde_json::Value;

use crate::docs::markdown::tables;

/// The pages with tables of settings: the heading above a table, or none for all of the page's; what the settings'
/// names begin with; the section that the settings belong to, or none for the heading.
const PAGES: [(&str, Option<&str>, &str, Option<&str>); 3] = [
    ("docs/settings.md", None, "", None),
    ("docs/ingest.md", Some("Limits"), "gateway.", Some("Gateway")),
    ("docs/ingest.md", Some("Many readings, few messages"), "", Some("Gateway")),
];

/// The documentation of a setting, or of the same setting of all lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// The path, such as `lanes.<name>.prefetch`.
    pub(super) setting: String,
    /// The program or programs that have the setting.
    pub(super) section: String,
    /// The default as it is documented.
    pub(super) default: String,
    /// Its meaning.
    pub(super) comment: String,
}

impl Row {
    /// Whether the setting at `path` is described by this row.
    pub(super) fn describes(&self, path: &str) -> bool {
        let (mut described, mut parts) = (self.setting.split('.'), path.split('.'));
        loop {
            match (described.next(), parts.next()) {
                (None, None) => return true,
                (Some("<name>"), Some(_)) => {}
                (Some(described), Some(part)) if described == part => {}
                _ => return false,
            }
        }
    }

    /// Whether the documented default is `value`. Any text describes a value that is not set.
    pub(super) fn has_default(&self, value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::String(text) => self.default == *text,
            Value::Bool(is_true) => self.default == is_true.to_string(),
            Value::Number(number) => self.default.parse::<f64>().ok() == number.as_f64(),
            Value::Array(items) if items.is_empty() => self.default == "none",
            Value::Array(items) => {
                let items: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
                items.is_some_and(|items| self.default == items.join(","))
            }
            Value::Object(_) => false,
        }
    }
}

/// The rows of all tables of settings. A setting that two sections have is one row, in the first of them.
pub(super) fn read(repository: &Path) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (page, heading, prefix, section) in PAGES {
        let text =
            fs::read_to_string(repository.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        for table in tables(&text) {
            let is_wanted = heading.is_none_or(|heading| heading == table.heading);
            if !is_wanted || table.rows[0][..2] != ["setting", "default"] {
                continue;
            }
            for cells in &table.rows[1..] {
                let [setting, default, comment] = &cells[..] else {
                    panic!("{page}: not three columns: {cells:?}")
                };
                let section = section.unwrap_or(&table.heading).to_owned();
                let setting = format!("{prefix}{setting}");
                match rows.iter_mut().find(|row| row.setting == setting) {
                    Some(row) => {
                        assert!(
                            row.default == *default || *default == "–",
                            "{page}: two defaults of {setting}"
                        );
                        row.comment += &format!(". {section}: {comment}");
                    }
                    None => rows.push(Row {
                        setting,
                        section,
                        default: default.clone(),
                        comment: comment.clone(),
                    }),
                }
            }
        }
    }
    rows
}
