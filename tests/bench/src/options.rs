//! The command line of a benchmark. Cargo adds words of its own there, such as `--bench`.

/// The value of an option.
#[must_use]
pub fn option(name: &str) -> Option<String> {
    std::env::args().skip_while(|argument| argument != name).nth(1)
}

/// Whether a word is there.
#[must_use]
pub fn flag(name: &str) -> bool {
    std::env::args().any(|argument| argument == name)
}

/// An option's value as a number, or `default` where it is not given.
///
/// # Errors
/// The value is no number; the text names the option.
pub fn number(name: &str, default: usize) -> Result<usize, String> {
    option(name).map_or(Ok(default), |value| {
        value.parse().map_err(|_| format!("{name} must be a whole number, not {value:?}"))
    })
}
