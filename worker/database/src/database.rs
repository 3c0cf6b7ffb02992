//! The database and its URL.

use garenne_common::config::{Certificates, SecretUrl};
use tokio_postgres::{Config, config::SslMode};

/// A Postgres database: its URL and the certificates for a TLS connection.
#[derive(Clone, Debug)]
pub struct Database {
    pub(crate) url: SecretUrl,
    pub(crate) certificates: Certificates,
    pub(crate) config: Config,
}

impl Database {
    /// A database at a URL such as `postgres://user:password@host:5432/database`.
    ///
    /// With `sslmode=require` or `sslmode=verify-full` the connection uses TLS. Both check that the server's
    /// certificate is signed by an authority of the system or of `certificates` and names the host. Without
    /// `sslmode`, or with `disable` or `prefer`, the connection is not encrypted.
    pub fn new(url: SecretUrl, certificates: Certificates) -> Result<Self, String> {
        let config = parse_url(&url)?;
        Ok(Self { url, certificates, config })
    }

    /// Whether its URL demands TLS.
    pub fn is_encrypted(&self) -> bool {
        is_encrypted(&self.config)
    }
}

/// Whether a connection uses TLS.
pub(crate) fn is_encrypted(config: &Config) -> bool {
    config.get_ssl_mode() == SslMode::Require
}

/// Parses a URL. `sslmode=prefer` is not encrypted: an attacker who can intercept the connection can also
/// refuse TLS, so trying it protects nothing.
pub(crate) fn parse_url(url: &SecretUrl) -> Result<Config, String> {
    let (base, query) = url.expose().split_once('?').unwrap_or((url.expose(), ""));
    let is_mode = |option: &&str| option.starts_with("sslmode=");
    let mode = query.split('&').rfind(is_mode).map_or("disable", |option| &option["sslmode=".len()..]);
    let ssl_mode = match mode {
        "disable" | "prefer" => SslMode::Disable,
        "require" | "verify-full" => SslMode::Require,
        other => {
            return Err(format!(
                "unknown sslmode {other:?}; expected disable, prefer, require or verify-full (the last two check \
                     the certificate and the host name)"
            ));
        }
    };
    // The client does not know verify-full.
    let others: Vec<_> = query.split('&').filter(|option| !option.is_empty() && !is_mode(option)).collect();
    let mut client: Config = format!("{base}?{}", others.join("&")).parse().map_err(|error| {
        format!("invalid postgres_url: {error}; expected postgres://user:password@host:5432/database")
    })?;
    client.ssl_mode(ssl_mode);
    Ok(client)
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::Host;

    use super::*;

    fn parse(url: &str) -> Result<Config, String> {
        parse_url(&url.parse().unwrap())
    }

    #[test]
    fn only_require_and_verify_full_encrypt() {
        for (query, encrypted) in [
            ("", false),
            ("?sslmode=disable", false),
            ("?sslmode=prefer", false),
            ("?sslmode=require", true),
            ("?connect_timeout=3&sslmode=verify-full", true),
        ] {
            let config = parse(&format!("postgres://u:p%3Fw@db.example:5433/x{query}")).unwrap();
            let mode = if encrypted { SslMode::Require } else { SslMode::Disable };
            assert_eq!((is_encrypted(&config), config.get_ssl_mode()), (encrypted, mode), "{query}");
            assert_eq!(config.get_hosts(), [Host::Tcp("db.example".into())]);
            assert_eq!(config.get_password(), Some(b"p?w".as_slice()));
            assert_eq!(config.get_connect_timeout().is_some(), query.contains("connect_timeout"));
        }
    }

    #[test]
    fn an_unknown_sslmode_is_refused_with_the_allowed_ones() {
        assert_eq!(
            parse("postgres://db/x?sslmode=verify-ca").err().unwrap(),
            "unknown sslmode \"verify-ca\"; expected disable, prefer, require or verify-full (the last two check the \
             certificate and the host name)"
        );
    }
}
