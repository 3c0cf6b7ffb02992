//! Certificates for a broker that is reached by `amqps`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Invalid, SecretUrl};

/// The settings `amqp_tls.*`: PEM files, read for each connection, so that renewed ones need no restart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AmqpTls {
    /// Authorities to trust besides those of the system.
    pub ca: Option<PathBuf>,
    /// What this process shows of itself, with `key`.
    pub cert: Option<PathBuf>,
    /// The certificate's key, not encrypted.
    pub key: Option<PathBuf>,
}

impl AmqpTls {
    /// # Errors
    /// Certificates without `amqps`, or half of a pair.
    pub fn validate(&self, url: &SecretUrl) -> Result<(), Invalid> {
        let settings = [("ca", &self.ca), ("cert", &self.cert), ("key", &self.key)];
        let mut given = settings.into_iter().filter_map(|(name, file)| Some((name, file.as_ref()?)));
        if let Some((name, file)) = given.next()
            && url.scheme() != "amqps"
        {
            let problem = "is for amqps:// and amqp_url has none".to_owned();
            return Err(Invalid::new(format!("amqp_tls.{name}"), file.display(), problem));
        }
        match (&self.cert, &self.key) {
            (Some(file), None) => {
                Err(Invalid::new("amqp_tls.cert", file.display(), "amqp_tls.key is missing"))
            }
            (None, Some(file)) => {
                Err(Invalid::new("amqp_tls.key", file.display(), "amqp_tls.cert is missing"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_come_in_pairs_and_need_amqps() {
        let check = |url: &str, tls: &AmqpTls| {
            tls.validate(&url.parse().unwrap()).map_err(|refused| (refused.setting, refused.problem))
        };
        let file = || Some("x.pem".into());
        let whole = AmqpTls { ca: file(), cert: file(), key: file() };
        assert_eq!(check("amqps://broker", &whole), Ok(()));
        assert_eq!(check("amqp://broker", &AmqpTls::default()), Ok(()));
        let (setting, problem) = check("amqp://broker", &whole).unwrap_err();
        assert_eq!(
            (setting.as_str(), problem.as_str()),
            ("amqp_tls.ca", "is for amqps:// and amqp_url has none")
        );
        let half = AmqpTls { key: None, ..whole };
        let (setting, problem) = check("amqps://broker", &half).unwrap_err();
        assert_eq!((setting.as_str(), problem.as_str()), ("amqp_tls.cert", "amqp_tls.key is missing"));
    }
}
