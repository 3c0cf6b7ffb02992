//! Prints results. They quote ids, kinds and errors of others, so control characters are escaped here.

use std::{
    fmt::Display,
    io::{ErrorKind, Write, stdout},
};

use garenne_common::{
    exit::Failure,
    text::{printable, printable_json, printable_lines},
};

/// Prints text to stdout.
///
/// # Errors
/// A failed write. A reader that closed the pipe (`| head`) is not an error.
pub(crate) fn lines(text: &str) -> Result<(), Failure> {
    write(&printable_lines(text))
}

/// Prints serialized JSON to stdout. The text includes its line feeds.
///
/// # Errors
/// As [`lines`].
pub(crate) fn json(json: &str) -> Result<(), Failure> {
    write(&printable_json(json))
}

/// Prints one line to stderr.
pub(crate) fn note(line: impl Display) {
    eprintln!("{}", printable(&line.to_string()));
}

fn write(text: &str) -> Result<(), Failure> {
    match stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(anyhow::Error::from(error).into()),
        _ => Ok(()),
    }
}
