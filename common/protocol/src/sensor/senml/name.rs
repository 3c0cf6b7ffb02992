//! Names of SenML records: validation, and splitting into device and metric.

use std::net::Ipv6Addr;

/// Checks a full name (RFC 8428 §4.5.1). It does not limit the length; the RFC sets no limit.
///
/// # Errors
/// The first violation found.
pub fn check(name: &str) -> Result<(), String> {
    let is_allowed =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b':' | b'.' | b'/' | b'_');
    if name.is_empty() {
        return Err("base name and name are both empty".to_owned());
    }
    if let Some(at) = name.bytes().position(|byte| !is_allowed(byte)) {
        let wrong = name[at..].chars().next().unwrap_or_default();
        return Err(format!("a name may contain only A-Z, a-z, 0-9 and - : . / _, not {wrong:?}"));
    }
    if !name.as_bytes()[0].is_ascii_alphanumeric() {
        return Err("a name must start with a letter or a digit".to_owned());
    }
    Ok(())
}

/// Splits a full name into the device and, if there is one, the metric.
///
/// The result depends on the full name alone, so that a pack and its resolved form give the same readings:
/// 1. `urn:dev:` (RFC 9039): the device is the URN with as many parts as its subtype has: one after `mac` and
///    `ow`, two after `org` and `os`, three after `ops`. The metric follows the next `:` or `/`, or a `_` in the
///    last of these parts. `urn:uuid:` has one part.
/// 2. A name that is an IPv6 or MAC address as a whole is a device without a metric.
/// 3. Any other name is split at its last `/`, or at its last `:` if it has no `/`.
/// 4. A name that cannot be split is a device without a metric. Trailing separators are ignored.
pub fn split(name: &str) -> (&str, Option<&str>) {
    let name = name.trim_end_matches([':', '/']);
    if let Some(parts) = urn_parts(name) {
        return cut_urn(name, parts);
    }
    if is_address(name) {
        return (name, None);
    }
    match name.rsplit_once('/').or_else(|| name.rsplit_once(':')) {
        Some((device, metric)) if !device.is_empty() && !metric.is_empty() => (device, Some(metric)),
        _ => (name, None),
    }
}

/// The number of colon-separated parts of a device's URN, including `urn`.
fn urn_parts(name: &str) -> Option<usize> {
    let head = name.get(..4).filter(|head| head.eq_ignore_ascii_case("urn:"))?;
    let mut parts = name[head.len()..].split(':');
    match parts.next()? {
        space if space.eq_ignore_ascii_case("uuid") => Some(3),
        space if space.eq_ignore_ascii_case("dev") => match parts.next()? {
            "mac" | "ow" => Some(4),
            "org" | "os" => Some(5),
            "ops" => Some(6),
            _ => None,
        },
        _ => None,
    }
}

fn cut_urn(name: &str, parts: usize) -> (&str, Option<&str>) {
    let mut colons = name.bytes().enumerate().filter(|(_, byte)| *byte == b':').map(|(at, _)| at);
    let Some(last_part) = colons.nth(parts - 2).map(|at| at + 1) else { return (name, None) };
    let Some(end) = name[last_part..].find([':', '/', '_']).map(|at| at + last_part) else {
        return (name, None);
    };
    (&name[..end], Some(&name[end + 1..]).filter(|metric| !metric.is_empty()))
}

fn is_address(name: &str) -> bool {
    let colons = name.bytes().filter(|byte| *byte == b':').count();
    let all_hex = || name.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':' || byte == b'.');
    if colons < 2 || !all_hex() {
        return false;
    }
    let is_mac = matches!(colons, 5 | 7) && name.split(':').all(|part| part.len() == 2);
    is_mac || name.parse::<Ipv6Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_split_into_device_and_metric() {
        for (name, device, metric) in [
            ("urn:dev:ow:10e2073a01080063:temperature", "urn:dev:ow:10e2073a01080063", Some("temperature")),
            ("urn:dev:ow:10e2073a01080063_temperature", "urn:dev:ow:10e2073a01080063", Some("temperature")),
            ("urn:dev:ow:10e2073a01080063/pcb/temp", "urn:dev:ow:10e2073a01080063", Some("pcb/temp")),
            ("urn:dev:ow:10e2073a01080063", "urn:dev:ow:10e2073a01080063", None),
            ("urn:dev:ow:10e2073a01080063:", "urn:dev:ow:10e2073a01080063", None),
            ("urn:dev:mac:0024beffff804ff1:hum", "urn:dev:mac:0024beffff804ff1", Some("hum")),
            ("urn:dev:org:32473-foo:x1", "urn:dev:org:32473-foo:x1", None),
            ("urn:dev:org:32473:foo:temp", "urn:dev:org:32473:foo", Some("temp")),
            (
                "urn:dev:ops:32473-a:Refrigerator:5002:temp",
                "urn:dev:ops:32473-a:Refrigerator:5002",
                Some("temp"),
            ),
            ("urn:dev:ops:32473:a", "urn:dev:ops:32473:a", None),
            (
                "urn:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6:co2",
                "urn:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
                Some("co2"),
            ),
            ("urn:example:thing:co2", "urn:example:thing", Some("co2")),
            ("2001:db8::2/temperature", "2001:db8::2", Some("temperature")),
            ("2001:db8::3", "2001:db8::3", None),
            ("00:24:be:ff:80:4f", "00:24:be:ff:80:4f", None),
            ("00:24:be:ff:80:4f:hum", "00:24:be:ff:80:4f", Some("hum")),
            ("bench-1:temperature", "bench-1", Some("temperature")),
            ("hall/rack.2/temperature", "hall/rack.2", Some("temperature")),
            ("a:b/c", "a:b", Some("c")),
            ("temperature", "temperature", None),
            ("bench-1/", "bench-1", None),
            ("urn:", "urn", None),
            ("urn:dev:ow", "urn:dev:ow", None),
        ] {
            assert_eq!(split(name), (device, metric), "{name}");
        }
    }

    #[test]
    fn invalid_names_are_refused() {
        assert_eq!(check("urn:dev:ow:10e2073a01080063:a-b.c/d_E9"), Ok(()));
        let error = |name: &str| check(name).unwrap_err();
        assert_eq!(error(""), "base name and name are both empty");
        assert_eq!(error("-a"), "a name must start with a letter or a digit");
        assert_eq!(error(":a"), "a name must start with a letter or a digit");
        for (name, character) in [("room 1", "' '"), ("gr\u{fc}n", "'ü'"), ("a\n", r"'\n'")] {
            let expected = format!("a name may contain only A-Z, a-z, 0-9 and - : . / _, not {character}");
            assert_eq!(error(name), expected);
        }
    }
}
