//! What the tool prints. Results quote ids, kinds and errors that others wrote, so they are escaped here.

use std::{
    fmt::Display,
    io::{ErrorKind, Write, stdout},
};

use garenne_common::{
    exit::Failure,
    text::{printable, printable_json, printable_lines},
};

/// Prints lines for people on standard output.
///
/// # Errors
/// Standard output cannot be written. A reader that has seen enough (`| head`) is no error.
pub(crate) fn lines(text: &str) -> Result<(), Failure> {
    write(&printable_lines(text))
}

/// Prints serialized JSON on standard output, line ends included.
///
/// # Errors
/// As [`lines`].
pub(crate) fn json(json: &str) -> Result<(), Failure> {
    write(&printable_json(json))
}

/// Prints one line for people on standard error.
pub(crate) fn note(line: impl Display) {
    eprintln!("{}", printable(&line.to_string()));
}

fn write(text: &str) -> Result<(), Failure> {
    match stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(anyhow::Error::from(error).into()),
        _ => Ok(()),
    }
}
