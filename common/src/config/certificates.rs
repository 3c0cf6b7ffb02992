//! Validates the certificates of settings.

use std::path::Path;

use super::Invalid;
use crate::certificates::Certificates;

/// Validates the settings `table.*`. `plain` is set if the connection does not use TLS, and is then the problem
/// that the error reports.
///
/// # Errors
/// Certificates for a connection without TLS, or only one of `cert` and `key`.
pub fn validate_certificates(files: &Certificates, table: &str, plain: Option<&str>) -> Result<(), Invalid> {
    let refused = |name: &str, file: &Path, problem: String| {
        Err(Invalid::new(format!("{table}.{name}"), file.display(), problem))
    };
    let all = [("ca", &files.ca), ("cert", &files.cert), ("key", &files.key)];
    let given = all.into_iter().find_map(|(name, file)| Some((name, file.as_ref()?)));
    if let (Some((name, file)), Some(why)) = (given, plain) {
        return refused(name, file, why.to_owned());
    }
    match (&files.cert, &files.key) {
        (Some(file), None) => refused("cert", file, format!("{table}.key is missing")),
        (None, Some(file)) => refused("key", file, format!("{table}.cert is missing")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_need_tls_and_a_cert_needs_a_key() {
        let check = |plain: Option<&str>, files: &Certificates| {
            validate_certificates(files, "amqp_tls", plain)
                .map_err(|refused| (refused.setting, refused.problem))
        };
        let file = || Some("x.pem".into());
        let whole = Certificates { ca: file(), cert: file(), key: file() };
        assert_eq!(check(None, &whole), Ok(()));
        assert_eq!(check(Some("no TLS"), &Certificates::default()), Ok(()));
        let refused = |setting: &str, problem: &str| Err((setting.to_owned(), problem.to_owned()));
        assert_eq!(check(Some("no TLS"), &whole), refused("amqp_tls.ca", "no TLS"));
        let half = Certificates { key: None, ..whole };
        assert_eq!(check(None, &half), refused("amqp_tls.cert", "amqp_tls.key is missing"));
        let half = Certificates { cert: None, key: half.cert.clone(), ..half };
        assert_eq!(check(None, &half), refused("amqp_tls.key", "amqp_tls.cert is missing"));
    }
}
