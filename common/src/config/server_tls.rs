//! Certificates of a program's own servers.

use std::path::Path;

use super::Invalid;

/// Validates the settings `<prefix>_cert` and `<prefix>_key`.
///
/// # Errors
/// Only one of them is set.
pub fn validate_server_tls(prefix: &str, cert: Option<&Path>, key: Option<&Path>) -> Result<(), Invalid> {
    let missing = |this: &str, other: &str| {
        Err(Invalid::new(
            format!("{prefix}_{this}"),
            "unset",
            format!("required because {prefix}_{other} is set"),
        ))
    };
    match (cert, key) {
        (Some(_), None) => missing("key", "cert"),
        (None, Some(_)) => missing("cert", "key"),
        _ => Ok(()),
    }
}
