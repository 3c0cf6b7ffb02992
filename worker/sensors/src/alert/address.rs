//! The addresses that a webhook may have. Prevents server-side request forgery: a URL in a payload must not reach the
//! worker's own network.

use std::{
    net::IpAddr,
    sync::{Arc, LazyLock},
};

use ipnet::IpNet;

/// Networks that are not public. IPv4: IANA's special-purpose registry, multicast and reserved ones; includes private,
/// loopback, link-local (cloud metadata services) and carrier-grade NAT. IPv6: all but global unicast (2000::/3), and
/// within that protocol assignments (Teredo embeds an IPv4 address), documentation, and 6to4 (embeds one too).
const SPECIAL: &str = "\
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 \
    192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 \
    ::/3 4000::/2 8000::/1 2001::/23 2001:db8::/32 2002::/16 3fff::/20";

static SPECIAL_NETWORKS: LazyLock<Vec<IpNet>> =
    LazyLock::new(|| SPECIAL.split(' ').map(|network| network.parse().expect("a network")).collect());

/// The addresses that a request may go to.
#[derive(Clone, Debug)]
pub(super) enum AllowedAddresses {
    /// All: an operator chose the host.
    Any,
    /// Public ones, and those in these networks.
    PublicAnd(Arc<[IpNet]>),
}

impl AllowedAddresses {
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::PublicAnd(networks) => is_public_or_in(address, networks),
        }
    }
}

fn is_public_or_in(address: IpAddr, networks: &[IpNet]) -> bool {
    // IPv4-mapped IPv6 addresses are checked as IPv4.
    let address = address.to_canonical();
    let is_in = |networks: &[IpNet]| networks.iter().any(|network| network.contains(&address));
    is_in(networks) || !is_in(&SPECIAL_NETWORKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_are_allowed_by_default() {
        let special = [
            "127.0.0.1",
            "127.8.8.8",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "100.127.255.255",
            "192.0.0.192",
            "198.18.0.1",
            "203.0.113.9",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "fec0::1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2001:0:1::1",
            "2001:db8::1",
            "3fff::1",
            "100::1",
            "5f00::1",
        ];
        for address in special {
            assert!(!is_public_or_in(address.parse().unwrap(), &[]), "{address}");
        }
        for address in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "::ffff:8.8.8.8", "2606:4700::1111"] {
            assert!(is_public_or_in(address.parse().unwrap(), &[]), "{address}");
        }
    }

    #[test]
    fn allowed_networks_match_any_notation_of_an_address() {
        let networks: Vec<IpNet> = vec!["10.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()];
        for address in ["10.9.8.7", "::ffff:10.9.8.7", "::1"] {
            assert!(is_public_or_in(address.parse().unwrap(), &networks), "{address}");
        }
        assert!(!is_public_or_in("127.0.0.1".parse().unwrap(), &networks));
    }
}
