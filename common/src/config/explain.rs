//! Converts errors of serde into texts that say what is allowed.

use super::known::nearest;

/// Why a value was refused by its type.
pub(super) enum Explained {
    /// The value is not allowed.
    Problem(String),
    /// A table has no such field.
    UnknownField { field: String, advice: String },
}

/// Error texts of serde and of our own types end in `, expected …`. The part before it repeats the value, which may
/// be a secret and is shown (masked) anyway.
pub(super) fn explain(error: &serde_json::Error) -> Explained {
    let text = error.to_string();
    let Some((problem, expected)) = text.rsplit_once(", expected ") else {
        return Explained::Problem(text);
    };
    if let Some(field) = problem.strip_prefix("unknown field ") {
        let field = bounded(field.trim_matches('`'));
        let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        let advice = nearest(&field, known.iter().copied());
        return Explained::UnknownField { field, advice };
    }
    Explained::Problem(format!("expected {}", in_words(&expected.replace('`', ""))))
}

/// An untrusted name, truncated to 64 characters.
fn bounded(name: &str) -> String {
    match name.char_indices().nth(64) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

fn in_words(expected: &str) -> &str {
    match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number from 0",
        "f64" => "a number",
        "a boolean" => "true or false",
        "a duration" => "a duration such as 500ms, 25s or 2m",
        "a map" => "a table",
        "a sequence" => "a list",
        other => other,
    }
}
