//! The addresses that webhooks may have. Prevents server-side request forgery: a task may name any URL, and must
//! not reach the worker's own network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Whether requests to an address are allowed: it is public, or in one of `networks`.
pub(super) fn is_allowed(address: IpAddr, networks: &[IpNet]) -> bool {
    // IPv4-mapped IPv6 addresses are checked as IPv4.
    let address = address.to_canonical();
    networks.iter().any(|network| network.contains(&address)) || is_public(address)
}

/// IPv4 networks that are not public: IANA's special-purpose registry, multicast and reserved ones. Includes
/// private, loopback, link-local (cloud metadata services) and carrier-grade NAT.
const SPECIAL_V4: [Ipv4Net; 15] = [
    v4([0, 0, 0, 0], 8),
    v4([10, 0, 0, 0], 8),
    v4([100, 64, 0, 0], 10),
    v4([127, 0, 0, 0], 8),
    v4([169, 254, 0, 0], 16),
    v4([172, 16, 0, 0], 12),
    v4([192, 0, 0, 0], 24),
    v4([192, 0, 2, 0], 24),
    v4([192, 88, 99, 0], 24),
    v4([192, 168, 0, 0], 16),
    v4([198, 18, 0, 0], 15),
    v4([198, 51, 100, 0], 24),
    v4([203, 0, 113, 0], 24),
    v4([224, 0, 0, 0], 4),
    v4([240, 0, 0, 0], 4),
];

/// Global unicast addresses of IPv6.
const GLOBAL_V6: Ipv6Net = v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);
/// Networks within [`GLOBAL_V6`] that are not public: protocol assignments (Teredo embeds an IPv4 address),
/// documentation, and 6to4 (embeds one too).
const SPECIAL_V6: [Ipv6Net; 4] = [
    v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23),
    v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32),
    v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16),
    v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20),
];

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !SPECIAL_V4.iter().any(|network| network.contains(&address)),
        IpAddr::V6(address) => {
            GLOBAL_V6.contains(&address) && !SPECIAL_V6.iter().any(|network| network.contains(&address))
        }
    }
}

const fn v4(octets: [u8; 4], prefix: u8) -> Ipv4Net {
    let [a, b, c, d] = octets;
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(segments: [u16; 8], prefix: u8) -> Ipv6Net {
    let [a, b, c, d, e, f, g, h] = segments;
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, g, h), prefix)
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
            assert!(!is_allowed(address.parse().unwrap(), &[]), "{address}");
        }
        for address in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "::ffff:8.8.8.8", "2606:4700::1111"] {
            assert!(is_allowed(address.parse().unwrap(), &[]), "{address}");
        }
    }

    #[test]
    fn allowed_networks_match_any_notation_of_an_address() {
        let networks: Vec<IpNet> = vec!["10.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()];
        for address in ["10.9.8.7", "::ffff:10.9.8.7", "::1"] {
            assert!(is_allowed(address.parse().unwrap(), &networks), "{address}");
        }
        assert!(!is_allowed("127.0.0.1".parse().unwrap(), &networks));
    }
}
