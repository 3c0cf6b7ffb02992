//! Where connections may come from and how: trusted proxies, TLS, and pages of other origins.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, header};
use ipnet::IpNet;

use crate::{refusal::Refusal, source_limit::SourceLimit};

const FORWARDED_FOR: &str = "x-forwarded-for";
/// Most addresses of `X-Forwarded-For` that are read, from the right.
const MAX_HOPS: usize = 16;

/// Where connections may come from and how.
pub struct Network {
    /// Whether connections of trusted proxies start with a PROXY header.
    pub(crate) proxy_protocol: bool,
    pub(crate) trusted_proxies: Vec<IpNet>,
    pub(crate) tls_only: bool,
    /// The origins whose pages may send.
    pub(crate) allowed_origins: Vec<HeaderValue>,
    /// Counts connections, and requests behind proxies, by the sender's address.
    pub(crate) sources: SourceLimit,
}

impl Network {
    /// Whether this is the address of a trusted proxy. Its connections are those of many senders.
    pub(crate) fn is_proxy(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.trusted_proxies.iter().any(|network| network.contains(&address))
    }

    /// Whether a connection from this address must start with a PROXY header.
    pub(crate) fn expects_proxy_header(&self, address: IpAddr) -> bool {
        self.proxy_protocol && self.is_proxy(address)
    }

    /// The sender's address behind the proxy at `address`: the last one of `X-Forwarded-For` that is not a trusted proxy.
    /// `None` if `address` is not a trusted proxy, or the header does not name a sender.
    pub(crate) fn forwarded_for(&self, address: IpAddr, headers: &HeaderMap) -> Option<IpAddr> {
        if self.trusted_proxies.is_empty() || !self.is_proxy(address) {
            return None;
        }
        let values: Vec<_> =
            headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok()).collect();
        let hops = values.iter().rev().flat_map(|value| value.rsplit(',')).take(MAX_HOPS);
        let mut sender = None;
        // Each proxy appends the address that it sees. What is left of an address that is not trusted may be forged.
        for address in hops.map_while(hop) {
            sender = Some(address);
            if !self.is_proxy(address) {
                break;
            }
        }
        sender
    }

    /// Checks the header `Origin` that browsers add for pages. Otherwise every page that a person opens could send to
    /// this gateway from their network.
    ///
    /// The gateway's own address counts as its own origin only as an IP address or `localhost`: another name may be that
    /// of the page, which lets it resolve to this address. The setting `allowed_origins` adds others.
    pub(crate) fn check_origin(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let own_host =
            headers.get(header::HOST).and_then(|host| host.to_str().ok()).filter(|host| is_fixed(host));
        for origin in headers.get_all(header::ORIGIN) {
            let host = origin.to_str().ok().and_then(|origin| Some(origin.split_once("://")?.1));
            let is_own = host.is_some() && host == own_host;
            if !is_own && !self.allowed_origins.contains(origin) {
                return Err(Refusal::foreign_origin(&String::from_utf8_lossy(origin.as_bytes())));
            }
        }
        Ok(())
    }
}

/// An address with or without a port.
fn hop(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let with_port = || text.parse().ok().map(|address: std::net::SocketAddr| address.ip());
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    bare.parse().ok().or_else(with_port).map(|address: IpAddr| address.to_canonical())
}

/// Whether a host with or without a port is an address that no name server can change.
fn is_fixed(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    hop(host).is_some() || name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::GatewaySettings;

    fn network(proxies: &[&str], origins: &[&str]) -> Network {
        let settings = GatewaySettings {
            trusted_proxies: proxies.iter().map(|network| network.parse().unwrap()).collect(),
            allowed_origins: origins.iter().map(|origin| (*origin).to_owned()).collect(),
            ..GatewaySettings::default()
        };
        settings.network()
    }

    fn headers(name: &'static str, values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn the_sender_is_the_last_address_that_is_not_a_trusted_proxy() {
        let network = network(&["10.0.0.0/8", "fd00::/8"], &[]);
        let sender = |peer: &str, values: &[&str]| {
            let sender = network.forwarded_for(peer.parse().unwrap(), &headers(FORWARDED_FOR, values));
            sender.map(|address| address.to_string())
        };
        let found = |address: &str| Some(address.to_owned());
        assert_eq!(sender("10.0.0.1", &["192.0.2.1"]), found("192.0.2.1"));
        assert_eq!(sender("::ffff:10.0.0.1", &["192.0.2.1"]), found("192.0.2.1"));
        assert_eq!(
            sender("10.0.0.1", &["6.6.6.6, 192.0.2.1, 10.0.0.7"]),
            found("192.0.2.1"),
            "6.6.6.6 is forged"
        );
        assert_eq!(sender("10.0.0.1", &["6.6.6.6", "192.0.2.1"]), found("192.0.2.1"));
        assert_eq!(sender("fd00::1", &["[2001:db8::1]:5000"]), found("2001:db8::1"));
        assert_eq!(
            sender("10.0.0.1", &["10.0.0.9,10.0.0.8"]),
            found("10.0.0.9"),
            "a sender in the proxies' network"
        );
        assert_eq!(sender("10.0.0.1", &["192.0.2.1, nonsense, 10.0.0.7"]), found("10.0.0.7"));
        assert_eq!(sender("10.0.0.1", &["nonsense"]), None);
        assert_eq!(sender("192.0.2.9", &["10.0.0.7"]), None, "not a proxy");
        let many = vec!["10.0.0.7"; 10_000].join(",") + ",192.0.2.1";
        assert_eq!(sender("10.0.0.1", &[&many]), found("192.0.2.1"));
        assert_eq!(
            sender("10.0.0.1", &[&("192.0.2.1,".to_owned() + &vec!["10.0.0.7"; 100].join(","))]),
            found("10.0.0.7")
        );
    }

    #[test]
    fn pages_of_other_origins_are_refused_unless_they_are_listed() {
        let network = network(&[], &["https://app.example.org"]);
        let is_allowed = |host: &str, origins: &[&str]| {
            let mut headers = headers("origin", origins);
            headers.insert("host", host.parse().unwrap());
            network.check_origin(&headers).is_ok()
        };
        assert!(is_allowed("gateway:8080", &[]), "not a browser");
        assert!(is_allowed("gateway:8080", &["https://app.example.org"]));
        assert!(!is_allowed("gateway:8080", &["https://app.example.org", "https://evil.example"]));
        assert!(!is_allowed("gateway:8080", &["https://app.example.org.evil.example"]));
        assert!(!is_allowed("gateway:8080", &["null"]));
        assert!(is_allowed("10.0.0.5:8080", &["http://10.0.0.5:8080"]));
        assert!(
            is_allowed("localhost:8080", &["http://localhost:8080"])
                && is_allowed("[::1]", &["http://[::1]"])
        );
        assert!(!is_allowed("localhost:8080", &["http://localhost:3000"]));
        // A name of the page that resolves to the gateway's address.
        assert!(!is_allowed("evil.example:8080", &["http://evil.example:8080"]));
    }
}
