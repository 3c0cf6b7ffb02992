//! Settings of forwarding.

use std::path::PathBuf;

use garenne_common::{
    config::{Certificates, Invalid, SecretUrl, scheme, validate_certificates},
    exit::{Exit, Failure},
};
use garenne_gateway_client::InvalidGateway;
use prometheus::IntGauge;
use serde::{Deserialize, Serialize};

use super::Forwarder;

/// Settings of forwarding to a central gateway: the table `forward`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ForwardSettings {
    /// The central gateway, such as `https://central.example:8080`. Unset, tasks are published to the broker.
    pub url: Option<SecretUrl>,
    /// File with the token for the central gateway. It is read for every request.
    pub token_file: Option<PathBuf>,
    /// Certificates for `https`.
    pub tls: Certificates,
}

impl ForwardSettings {
    /// Checks every setting. The error is the first invalid one.
    pub(crate) fn validate(&self) -> Result<(), Invalid> {
        let Some(url) = &self.url else {
            return Invalid::unless(
                *self == Self::default(),
                "forward.url",
                "unset",
                "required because other settings of forward are set",
            );
        };
        scheme("forward.url", url, ["http", "https"])?;
        Invalid::unless(
            !url.expose().contains(['@', '?', '#']),
            "forward.url",
            format_args!("{:?}", url.masked()),
            "expected https://HOST:PORT without a user, a query and a fragment; a token goes into forward.token_file",
        )?;
        let plain = (url.scheme() != "https").then_some("needs a forward.url with https://");
        validate_certificates(&self.tls, "forward.tls", plain)
    }

    /// The forwarder, if there is a central gateway. `connected` is 1 while it answers.
    pub(crate) fn forwarder(&self, connected: IntGauge) -> Result<Option<Forwarder>, Failure> {
        let Some(url) = &self.url else { return Ok(None) };
        let forwarder = Forwarder::new(url.expose(), self.token_file.clone(), self.tls.clone(), connected);
        forwarder.map(Some).map_err(|error| {
            let problem = match error {
                InvalidGateway::Url(error) => format!("forward.url: {error}"),
                InvalidGateway::Certificate(error) => format!("forward.tls.{error}"),
            };
            Failure::new(Exit::Config, problem)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_setting_is_named() {
        let refused = |url: &str, ca: Option<&str>| {
            let tls = Certificates { ca: ca.map(Into::into), ..Certificates::default() };
            let url = (!url.is_empty()).then(|| url.parse().unwrap());
            ForwardSettings { url, token_file: None, tls }.validate().map_err(|invalid| invalid.setting)
        };
        assert_eq!(refused("https://central:8080", Some("ca.pem")), Ok(()));
        assert_eq!(refused("", None), Ok(()));
        assert_eq!(refused("", Some("ca.pem")), Err("forward.url".into()));
        assert_eq!(refused("tcp://central:8080", None), Err("forward.url".into()));
        assert_eq!(refused("https://u:p@central", None), Err("forward.url".into()));
        assert_eq!(refused("http://central", Some("ca.pem")), Err("forward.tls.ca".into()));
    }
}
