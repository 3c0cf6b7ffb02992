//! The table `alert.payload_urls`: which URLs the payload of an alert may name. None by default.

use std::str::FromStr;

use derive_more::Display;
use garenne_common::config::list;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_with::{DeserializeFromStr, SerializeDisplay};

/// Which URLs a payload may name. The host must be in `hosts`, and its addresses must be public or in `networks`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PayloadUrls {
    /// Hosts that are allowed; none by default.
    #[serde(with = "list")]
    pub hosts: Vec<HostPattern>,
    /// Networks that are allowed although they are not public, such as `10.0.0.0/8`.
    #[serde(with = "list")]
    pub networks: Vec<IpNet>,
}

impl PayloadUrls {
    /// Checks the host of a URL, which is in lower case. Its addresses are checked when it is resolved.
    pub(super) fn check(&self, host: &str) -> Result<(), String> {
        if self.hosts.iter().any(|pattern| pattern.matches(host)) {
            return Ok(());
        }
        Err(format!("url: host {host:?} is not allowed in payloads; alert.payload_urls.hosts allows hosts"))
    }
}

/// A host name or address, `*.example.com` for all names below `example.com`, or `*` for every host.
#[derive(Clone, PartialEq, Eq, Debug, Display, DeserializeFromStr, SerializeDisplay)]
pub struct HostPattern(String);

impl FromStr for HostPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.strip_prefix("*.").unwrap_or(text);
        let in_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
        if text != "*" && (name.is_empty() || !name.bytes().all(in_host)) {
            return Err(format!(
                "{text:?} is no host pattern; expected a host name, an address, *.example.com or *"
            ));
        }
        Ok(Self(text.to_ascii_lowercase()))
    }
}

impl HostPattern {
    /// `host` is in lower case, as in a parsed URL.
    fn matches(&self, host: &str) -> bool {
        // A final dot makes a name absolute and names the same host.
        let host = host.strip_suffix('.').unwrap_or(host);
        match self.0.strip_prefix('*') {
            Some(suffix) => host.len() > suffix.len() && host.ends_with(suffix),
            None => host == self.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_host_all_names_below_a_domain_or_every_host() {
        let hosts = ["hooks.example.com", "a.hooks.example.com", "example.com", "badexample.com", "10.0.0.7"];
        for (pattern, expected) in [
            ("hooks.example.com", [true, false, false, false, false]),
            ("HOOKS.example.com", [true, false, false, false, false]),
            ("*.example.com", [true, true, false, false, false]),
            ("10.0.0.7", [false, false, false, false, true]),
            ("*", [true; 5]),
        ] {
            let pattern: HostPattern = pattern.parse().unwrap();
            assert_eq!(hosts.map(|host| pattern.matches(host)), expected, "{pattern}");
        }
        assert!("example.com".parse::<HostPattern>().unwrap().matches("example.com."));
        for text in ["", "*.", "a*", "https://example.com", "a b", "*.*"] {
            let error = text.parse::<HostPattern>().unwrap_err();
            assert!(error.starts_with(&format!("{text:?} is no host pattern")), "{error}");
        }
    }
}
