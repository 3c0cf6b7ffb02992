//! The address of the MQTT broker, from its URL.

use garenne_common::config::SecretUrl;
use percent_encoding::percent_decode_str;
use url::Url;

/// Host, port and login of an MQTT broker.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// The host's name or address, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) tls: bool,
    /// User and password.
    pub(crate) login: Option<(String, String)>,
}

impl Endpoint {
    /// Reads `mqtt://` or `mqtts://`. The default ports are 1883 and 8883. A URL with a path or a query is refused.
    pub(crate) fn parse(url: &SecretUrl) -> Result<Self, String> {
        let tls = url.scheme() == "mqtts";
        let url = Url::parse(url.expose()).map_err(|error| error.to_string())?;
        if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
            return Err("expected no path and no query; topics are in mqtt.subscribe".to_owned());
        }
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or("the host is missing")?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let decoded = |text: &str| {
            let decoded = percent_decode_str(text).decode_utf8();
            decoded.map(|text| text.into_owned()).map_err(|_| "user and password must be UTF-8")
        };
        let login = match (url.username(), url.password()) {
            ("", None) => None,
            (user, password) => Some((decoded(user)?, decoded(password.unwrap_or_default())?)),
        };
        Ok(Self { host, port: url.port().unwrap_or(if tls { 8883 } else { 1883 }), tls, login })
    }

    /// Host and port, for messages.
    pub(crate) fn address(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Result<Endpoint, String> {
        Endpoint::parse(&url.parse().unwrap())
    }

    #[test]
    fn ports_logins_and_addresses_are_read() {
        let plain = parsed("mqtt://broker").unwrap();
        assert_eq!((plain.address().as_str(), plain.tls, plain.login), ("broker:1883", false, None));
        let tls = parsed("mqtts://[::1]/").unwrap();
        assert_eq!((tls.host.as_str(), tls.address().as_str(), tls.tls), ("::1", "[::1]:8883", true));
        let login = parsed("mqtt://site%2Fa:p%40ss@10.0.0.1:1884").unwrap();
        assert_eq!(login.address(), "10.0.0.1:1884");
        assert_eq!(login.login, Some(("site/a".to_owned(), "p@ss".to_owned())));
    }

    #[test]
    fn topics_in_the_url_are_refused() {
        assert!(parsed("mqtt://broker/zigbee2mqtt").is_err());
        assert!(parsed("mqtt://broker?clean=1").is_err());
    }
}
