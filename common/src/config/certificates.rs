//! Certificates for a server that is reached over TLS.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Invalid;

/// The settings `amqp_tls.*` and `postgres_tls.*`: PEM files, read for each connection, so that renewed ones need
/// no restart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Certificates {
    /// Authorities to trust besides those of the system.
    pub ca: Option<PathBuf>,
    /// What this process shows of itself, with `key`.
    pub cert: Option<PathBuf>,
    /// The certificate's key, not encrypted.
    pub key: Option<PathBuf>,
}

impl Certificates {
    /// Checks them as the settings `table.*`; `plain` says why nothing is encrypted, where that is so.
    ///
    /// # Errors
    /// Certificates for a plain connection, or half of a pair.
    pub fn validate(&self, table: &str, plain: Option<&str>) -> Result<(), Invalid> {
        let settings = [("ca", &self.ca), ("cert", &self.cert), ("key", &self.key)];
        let mut given = settings.into_iter().filter_map(|(name, file)| Some((name, file.as_ref()?)));
        if let (Some((name, file)), Some(why)) = (given.next(), plain) {
            return Err(Invalid::new(format!("{table}.{name}"), file.display(), why));
        }
        let alone = |name: &str, missing: &str, file: &PathBuf| {
            Err(Invalid::new(
                format!("{table}.{name}"),
                file.display(),
                format!("{table}.{missing} is missing"),
            ))
        };
        match (&self.cert, &self.key) {
            (Some(file), None) => alone("cert", "key", file),
            (None, Some(file)) => alone("key", "cert", file),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_come_in_pairs_and_need_a_connection_that_is_encrypted() {
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
