//! Prints results. They quote ids, kinds and errors of others, so control characters are escaped here.

use std::{
    fmt::Display,
    io::{Write, stderr},
};

use garenne_common::{
    exit::Failure,
    stdout,
    text::{printable, printable_json, printable_lines},
};
use serde::Serialize;

/// Prints text to stdout. A reader that closed the pipe (`| head`) is not an error.
pub fn lines(text: &str) -> Result<(), Failure> {
    stdout::print(printable_lines(text))
}

/// Prints serialized JSON to stdout. The text includes its line feeds.
pub fn json(json: &str) -> Result<(), Failure> {
    stdout::print(printable_json(json))
}

/// Prints each item as a line of JSON.
pub fn json_lines(items: impl IntoIterator<Item = impl Serialize>) -> Result<(), Failure> {
    let line = |item| serde_json::to_string(&item).expect("texts, numbers and times are JSON") + "\n";
    json(&items.into_iter().map(line).collect::<String>())
}

/// Prints one line to stderr. If stderr is closed, there is nowhere to report that.
pub fn note(line: impl Display) {
    let _ = writeln!(stderr().lock(), "{}", printable(&line.to_string()));
}
