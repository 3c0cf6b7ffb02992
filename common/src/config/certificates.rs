//! Certificates for TLS connections to a server.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Invalid;

/// The settings `amqp_tls.*` and `postgres_tls.*`: PEM files, read again for each connection, so that renewed files
/// need no restart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Certificates {
    /// Certificate authorities to trust in addition to the system's.
    pub ca: Option<PathBuf>,
    /// The client certificate; needs `key`.
    pub cert: Option<PathBuf>,
    /// The client certificate's private key, unencrypted.
    pub key: Option<PathBuf>,
}

impl Certificates {
    /// Validates the settings `table.*`. `plain` is set if the connection does not use TLS, and is then the problem
    /// that the error reports.
    ///
    /// # Errors
    /// Certificates for a connection without TLS, or only one of `cert` and `key`.
    pub fn validate(&self, table: &str, plain: Option<&str>) -> Result<(), Invalid> {
        let refused = |name: &str, file: &Path, problem: String| {
            Err(Invalid::new(format!("{table}.{name}"), file.display(), problem))
        };
        let files = [("ca", &self.ca), ("cert", &self.cert), ("key", &self.key)];
        let given = files.into_iter().find_map(|(name, file)| Some((name, file.as_ref()?)));
        if let (Some((name, file)), Some(why)) = (given, plain) {
            return refused(name, file, why.to_owned());
        }
        match (&self.cert, &self.key) {
            (Some(file), None) => refused("cert", file, format!("{table}.key is missing")),
            (None, Some(file)) => refused("key", file, format!("{table}.cert is missing")),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_need_tls_and_a_cert_needs_a_key() {
        let check = |plain: Option<&str>, files: &Certificates| {
            files.validate("amqp_tls", plain).map_err(|refused| (refused.setting, refused.problem))
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
