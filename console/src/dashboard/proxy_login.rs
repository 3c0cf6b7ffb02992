//! Logins at a trusted reverse proxy, which names the person in a header of every request (single sign-on).

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use super::user::{Login, User};
use crate::{
    accounts::{self, Accounts, Role},
    settings::DashboardConfig,
};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The proxies, and what their headers mean.
pub(super) struct ProxyLogin {
    proxies: Vec<IpNet>,
    user_header: HeaderName,
    groups_header: HeaderName,
    operator_groups: Vec<String>,
}

impl ProxyLogin {
    /// The settings are validated.
    pub(super) fn new(settings: &DashboardConfig) -> Self {
        let header = |name: &str| name.parse().expect("validated with the settings");
        Self {
            proxies: settings.trusted_proxies.clone(),
            user_header: header(&settings.user_header),
            groups_header: header(&settings.groups_header),
            operator_groups: settings.operator_groups.clone(),
        }
    }

    /// Whether there is a proxy to log in at.
    pub(super) fn is_configured(&self) -> bool {
        !self.proxies.is_empty()
    }

    fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.proxies.iter().any(|network| network.contains(&address))
    }

    /// The address of the client behind the proxies: the last one that no trusted proxy has. Everything before it in the
    /// header is the client's own claim.
    pub(super) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let hops = headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok());
        let hops: Vec<&str> = hops.flat_map(|hops| hops.split(',')).map(str::trim).collect();
        let mut client = peer.to_canonical();
        for hop in hops.iter().rev() {
            match hop.parse::<IpAddr>() {
                Ok(hop) if self.trusts(client) => client = hop.to_canonical(),
                _ => break,
            }
        }
        client
    }

    /// The person that the proxy names. A person of the file has the role of the file; anyone else has the role operator
    /// with one of the groups of the setting `dashboard.operator_groups`, and the role viewer without.
    pub(super) fn user(
        &self,
        peer: IpAddr,
        headers: &HeaderMap,
        accounts: Option<&Accounts>,
    ) -> Option<User> {
        if !self.trusts(peer) {
            return None;
        }
        // Two values: the proxy has not removed the one that the client sent.
        let mut names = headers.get_all(&self.user_header).iter();
        let (name, None) = (names.next()?.to_str().ok()?, names.next()) else { return None };
        accounts::check_name(name).ok()?;
        let account = accounts.and_then(|accounts| accounts.get(name));
        let role = account.map_or_else(|| self.role_of_groups(headers), |account| account.role);
        let may_look = account.is_some_and(|account| account.may_look);
        Some(User { name: name.to_owned(), role, may_look, login: Login::Proxy })
    }

    fn role_of_groups(&self, headers: &HeaderMap) -> Role {
        let mut values = headers.get_all(&self.groups_header).iter();
        let (Some(groups), None) = (values.next(), values.next()) else { return Role::Viewer };
        let mut groups = groups.to_str().unwrap_or_default().split(',').map(str::trim);
        let operates = groups.any(|group| self.operator_groups.iter().any(|own| own == group));
        if operates { Role::Operator } else { Role::Viewer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::Account;

    fn login() -> ProxyLogin {
        ProxyLogin::new(&DashboardConfig {
            trusted_proxies: vec!["10.0.0.0/24".parse().unwrap(), "10.9.9.9/32".parse().unwrap()],
            operator_groups: vec!["on-call".to_owned()],
            ..DashboardConfig::default()
        })
    }

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair =
            |(name, value): &(&str, &str)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        let mut headers = HeaderMap::new();
        for (name, value) in pairs.iter().map(pair) {
            headers.append(name, value);
        }
        headers
    }

    fn user(peer: &str, pairs: &[(&str, &str)]) -> Option<(String, Role)> {
        let account = Account { role: Role::Operator, may_look: false, password: None };
        let accounts = Accounts::from([("anna".to_owned(), account)]);
        let user = login().user(peer.parse().unwrap(), &headers(pairs), Some(&accounts))?;
        Some((user.name, user.role))
    }

    #[test]
    fn only_a_trusted_proxy_names_the_person() {
        let anna = Some(("anna".to_owned(), Role::Operator));
        assert_eq!(user("10.0.0.5", &[("x-forwarded-user", "anna")]), anna);
        assert_eq!(user("::ffff:10.0.0.5", &[("x-forwarded-user", "anna")]), anna);
        assert_eq!(user("10.0.1.5", &[("x-forwarded-user", "anna")]), None);
        assert_eq!(user("10.0.0.5", &[]), None);
        // The header that the client sent, and the proxy's.
        assert_eq!(user("10.0.0.5", &[("x-forwarded-user", "anna"), ("x-forwarded-user", "eve")]), None);
        assert_eq!(user("10.0.0.5", &[("x-forwarded-user", "an na")]), None);
        assert_eq!(user("10.0.0.5", &[("x-forwarded-user", "")]), None);
    }

    #[test]
    fn the_role_is_the_files_or_that_of_the_groups() {
        let ben = |groups: &[&str]| {
            let groups = groups.iter().map(|groups| ("x-forwarded-groups", *groups));
            let all: Vec<_> = groups.chain([("x-forwarded-user", "ben")]).collect();
            user("10.0.0.5", &all).unwrap().1
        };
        assert_eq!(ben(&[]), Role::Viewer);
        assert_eq!(ben(&["staff, on-call"]), Role::Operator);
        assert_eq!(ben(&["on-call-not"]), Role::Viewer);
        assert_eq!(ben(&["on-call", "staff"]), Role::Viewer, "one of them is the client's own");
    }

    #[test]
    fn the_clients_address_is_the_last_that_no_proxy_has() {
        let client = |peer: &str, hops: &[&str]| {
            let hops: Vec<_> = hops.iter().map(|hops| ("x-forwarded-for", *hops)).collect();
            login().client(peer.parse().unwrap(), &headers(&hops)).to_string()
        };
        assert_eq!(client("192.0.2.1", &["198.51.100.1"]), "192.0.2.1", "not a trusted proxy");
        assert_eq!(client("10.0.0.5", &["198.51.100.1"]), "198.51.100.1");
        assert_eq!(client("10.0.0.5", &["203.0.113.9, 198.51.100.1, 10.9.9.9"]), "198.51.100.1");
        assert_eq!(client("10.0.0.5", &["203.0.113.9", "198.51.100.1"]), "198.51.100.1");
        assert_eq!(client("10.0.0.5", &["nonsense"]), "10.0.0.5");
        assert_eq!(client("10.0.0.5", &[]), "10.0.0.5");
    }
}
