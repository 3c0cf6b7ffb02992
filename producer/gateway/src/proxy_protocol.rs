//! The PROXY protocol, versions 1 and 2: the first bytes of a connection name the sender behind a load balancer.
//!
//! <https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Longest header of version 1, in bytes, with its line ending.
const MAX_TEXT: usize = 107;
/// Longest header of version 2, in bytes: addresses and the additional fields of a load balancer, which are ignored.
const MAX_BINARY: usize = 4096;
const TEXT_START: &[u8] = b"PROXY ";
const BINARY_START: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes before the addresses of version 2: the start, version and command, family, length.
const BINARY_HEAD: usize = 16;

/// A complete header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProxyHeader {
    /// The length of the header in bytes.
    pub(super) length: usize,
    /// The sender's address. `None` for a connection of the proxy itself, such as a health check.
    pub(super) source: Option<SocketAddr>,
}

/// Parses the header at the start of a connection; `None` if more bytes are needed.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<ProxyHeader>, &'static str> {
    let starts = |start: &[u8]| {
        let common = start.len().min(bytes.len());
        bytes[..common] == start[..common]
    };
    if starts(BINARY_START) {
        parse_binary(bytes)
    } else if starts(TEXT_START) {
        parse_text(bytes)
    } else {
        Err("the connection does not start with a PROXY header")
    }
}

/// Version 1: `PROXY TCP4 SOURCE DESTINATION SOURCE-PORT DESTINATION-PORT`, or `PROXY UNKNOWN` and anything.
fn parse_text(bytes: &[u8]) -> Result<Option<ProxyHeader>, &'static str> {
    const INVALID: &str = "the PROXY header is invalid";
    let Some(end) = memchr::memmem::find(&bytes[..bytes.len().min(MAX_TEXT)], b"\r\n") else {
        return if bytes.len() < MAX_TEXT { Ok(None) } else { Err("the PROXY header has no end") };
    };
    let line = str::from_utf8(&bytes[..end]).map_err(|_| INVALID)?;
    let words: Vec<&str> = line.split(' ').collect();
    let source = match words[1..] {
        ["UNKNOWN", ..] => None,
        [family @ ("TCP4" | "TCP6"), source, _, port, _] => {
            let address: IpAddr = source.parse().map_err(|_| INVALID)?;
            if address.is_ipv4() != (family == "TCP4") {
                return Err(INVALID);
            }
            Some(SocketAddr::new(address, port.parse().map_err(|_| INVALID)?))
        }
        _ => return Err(INVALID),
    };
    Ok(Some(ProxyHeader { length: end + 2, source }))
}

/// Version 2: a head of 16 bytes, then both addresses, both ports, and additional fields.
fn parse_binary(bytes: &[u8]) -> Result<Option<ProxyHeader>, &'static str> {
    let Some(head) = bytes.get(BINARY_START.len()..BINARY_HEAD) else { return Ok(None) };
    let (command, family) = (head[0], head[1]);
    let length = BINARY_HEAD + usize::from(u16::from_be_bytes([head[2], head[3]]));
    if length > MAX_BINARY {
        return Err("the PROXY header is longer than 4096 bytes");
    }
    let Some(addresses) = bytes.get(BINARY_HEAD..length) else { return Ok(None) };
    let source = match (command, family) {
        // LOCAL; or PROXY with addresses of another family than IP.
        (0x20, _) | (0x21, 0x00 | 0x31 | 0x32) => None,
        (0x21, 0x11) => Some(ipv4(addresses).ok_or("the PROXY header has no IPv4 addresses")?),
        (0x21, 0x21) => Some(ipv6(addresses).ok_or("the PROXY header has no IPv6 addresses")?),
        _ => return Err("the PROXY header has an unknown version, command or family"),
    };
    Ok(Some(ProxyHeader { length, source }))
}

fn ipv4(addresses: &[u8]) -> Option<SocketAddr> {
    let (source, rest) = addresses.split_first_chunk::<4>()?;
    let port = rest.get(4..8)?;
    Some(SocketAddr::new(Ipv4Addr::from(*source).into(), u16::from_be_bytes([port[0], port[1]])))
}

fn ipv6(addresses: &[u8]) -> Option<SocketAddr> {
    let (source, rest) = addresses.split_first_chunk::<16>()?;
    let port = rest.get(16..20)?;
    Some(SocketAddr::new(Ipv6Addr::from(*source).into(), u16::from_be_bytes([port[0], port[1]])))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [BINARY_START, &[command, family], &length, rest].concat()
    }

    fn whole(bytes: &[u8]) -> (usize, Option<String>) {
        // A header may arrive in pieces of any size.
        for end in 1..bytes.len() {
            assert_eq!(parse(&bytes[..end]), Ok(None), "{end} bytes");
        }
        let followed = [bytes, b"{\"device\"\xff"].concat();
        let header = parse(&followed).unwrap().unwrap();
        (header.length, header.source.map(|source| source.to_string()))
    }

    #[test]
    fn both_versions_name_the_source_in_pieces_of_any_size() {
        let source = |bytes: &[u8]| {
            let (length, source) = whole(bytes);
            assert_eq!(length, bytes.len());
            source
        };
        let found = |text: &str| Some(text.to_owned());
        assert_eq!(source(b"PROXY TCP4 10.1.2.3 10.0.0.1 4567 8080\r\n"), found("10.1.2.3:4567"));
        assert_eq!(source(b"PROXY TCP6 2001:db8::1 ::1 1 2\r\n"), found("[2001:db8::1]:1"));
        assert_eq!(source(b"PROXY UNKNOWN\r\n"), None);
        assert_eq!(source(b"PROXY UNKNOWN ffff:: ffff:: 1 2\r\n"), None);
        let v4 = [10, 1, 2, 3, 10, 0, 0, 1, 0x11, 0xd7, 0x1f, 0x90];
        assert_eq!(source(&binary(0x21, 0x11, &v4)), found("10.1.2.3:4567"));
        // Additional fields follow the addresses.
        assert_eq!(source(&binary(0x21, 0x11, &[&v4[..], &[7; 500]].concat())), found("10.1.2.3:4567"));
        let v6 = [&[0x20, 1, 0xd, 0xb8][..], &[0; 11], &[1], &[0; 16], &[0, 1, 0, 2]].concat();
        assert_eq!(source(&binary(0x21, 0x21, &v6)), found("[2001:db8::1]:1"));
        assert_eq!(source(&binary(0x20, 0, &[])), None);
        assert_eq!(source(&binary(0x21, 0x31, &[0; 216])), None);
    }

    #[test]
    fn invalid_and_endless_headers_are_refused() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"\x16\x03\x01",
            b"PROXY TCP4 10.1.2.3 10.0.0.1 4567\r\n",
            b"PROXY TCP4 ::1 ::1 1 2\r\n",
            b"PROXY TCP4 10.1.2.3 10.0.0.1 65536 1\r\n",
            b"PROXY UDP4 10.1.2.3 10.0.0.1 1 1\r\n",
            b"PROXY \xff\r\n",
            &[b"PROXY UNKNOWN ", &[b'x'; 100][..]].concat(),
            &binary(0x11, 0x11, &[0; 12]),
            &binary(0x22, 0x11, &[0; 12]),
            &binary(0x21, 0x11, &[0; 11]),
            &binary(0x21, 0x21, &[0; 35]),
            &binary(0x21, 0x12, &[0; 12]),
            // Announces 65,535 bytes; refused before they arrive.
            &[BINARY_START, &[0x21, 0x11, 0xff, 0xff]].concat(),
        ] {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn no_input_panics_or_needs_more_than_the_longest_header(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for start in [&b""[..], TEXT_START, BINARY_START] {
                let input = [start, &bytes].concat();
                if let Ok(Some(header)) = parse(&input) {
                    prop_assert!(header.length <= input.len());
                }
                let long = [&input[..], &[b' '; MAX_BINARY]].concat();
                prop_assert!(parse(&long) != Ok(None));
            }
        }
    }
}
