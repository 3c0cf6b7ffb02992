//! The command line of a benchmark. Cargo adds arguments to it, such as `--bench`.

/// The value of an option.
#[must_use]
pub fn option(name: &str) -> Option<String> {
    std::env::args().skip_while(|argument| argument != name).nth(1)
}

/// Whether a flag is given.
#[must_use]
pub fn flag(name: &str) -> bool {
    std::env::args().any(|argument| argument == name)
}

/// An option's value as a number, or `default` if it is not given.
///
/// # Errors
/// If the value is not a number. The text names the option.
pub fn number(name: &str, default: usize) -> Result<usize, String> {
    option(name).map_or(Ok(default), |value| {
        value.parse().map_err(|_| format!("{name} must be a whole number, not {value:?}"))
    })
}
