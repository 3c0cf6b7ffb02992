//! The queues that results may be sent to.
//!
//! A task names its reply queue, and the worker may write to every queue of the virtual host. Without a bound, a
//! publisher could let it write to queues that the publisher itself may not write to, such as `garenne.directives`.
//!
//! RabbitMQ decodes the name of a direct reply queue when a message is published to it. Up to 4.1 it closes the connection
//! of the publisher if it cannot. Therefore, only names that it can have made itself are allowed.

use base64::{Engine, engine::general_purpose::STANDARD};
use garenne_common::{
    config::{Invalid, list},
    pattern::NamePattern,
};
use garenne_protocol::quoted;
use serde::{Deserialize, Serialize};

/// What a client's direct reply queue is called in a message that it has published. The broker adds the client's channel
/// and a random key.
const DIRECT_REPLY: &str = "amq.rabbitmq.reply-to.";

/// A pattern for every queue whose name is a UUID, as Celery's result backend `rpc://` and other clients name theirs.
const ANY_UUID: &str = "{uuid}";

/// The property in `garenne_headers_ignored_total`.
pub(crate) const REPLY_TO: &str = "reply_to";

/// The setting `reply_queues`: the queues that results may be sent to besides direct reply queues. Names, prefixes with `*`
/// at their end, or `{uuid}` for all queues whose name is a UUID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReplyQueues(#[serde(with = "list")] pub Vec<String>);

impl ReplyQueues {
    /// Returns the first invalid pattern, or the first that covers a queue of the fleet with this prefix.
    pub(crate) fn validate(&self, prefix: &str) -> Result<(), Invalid> {
        let own = format!("{prefix}.");
        for text in self.0.iter().filter(|text| *text != ANY_UUID) {
            let invalid = |problem: &str| Invalid::new("reply_queues", quoted(text), problem);
            NamePattern::parse(text)
                .map_err(|_| invalid("expected the name of a queue, or a prefix and \"*\" at its end"))?;
            let covers_own = match text.strip_suffix('*') {
                Some(start) => start.starts_with(&own) || own.starts_with(start),
                None => text.starts_with(&own),
            };
            if covers_own {
                let problem =
                    format!("covers queues of the fleet ({own}*), which publishers may not write to");
                return Err(invalid(&problem));
            }
        }
        Ok(())
    }

    /// Whether a result may be sent to this queue.
    pub(crate) fn allow(&self, queue: &str) -> bool {
        // Validated at the start, and not parsed again for each task.
        let matches = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => queue.starts_with(start),
            None if pattern == ANY_UUID => is_uuid(queue),
            None => pattern == queue,
        };
        match queue.strip_prefix(DIRECT_REPLY) {
            Some(address) => is_address(address),
            None => self.0.iter().any(matches),
        }
    }
}

/// Whether this is a UUID as text. A queue of a fleet has a point in its name.
fn is_uuid(name: &str) -> bool {
    const HYPHENS: [usize; 4] = [8, 13, 18, 23];
    let is_right = |(at, byte): (usize, u8)| match HYPHENS.contains(&at) {
        true => byte == b'-',
        false => byte.is_ascii_hexdigit(),
    };
    name.len() == 36 && name.bytes().enumerate().all(is_right)
}

/// Whether a queue that results may be sent to is a client's direct reply queue.
pub(crate) fn is_direct(queue: &str) -> bool {
    queue.starts_with(DIRECT_REPLY)
}

/// Whether this is the address of a direct reply queue as RabbitMQ 3.10 to 4.3 write it: the base64 of a channel's process
/// identifier, a dot, and the base64 of a key of 16 bytes.
fn is_address(address: &str) -> bool {
    let Some((process, key)) = address.split_once('.') else { return false };
    let is_key = STANDARD.decode(key).is_ok_and(|key| key.len() == 16);
    is_key && STANDARD.decode(process).is_ok_and(|process| is_process(&process).is_some())
}

/// Whether this is a process identifier in Erlang's external term format (`NEW_PID_EXT`) whose node has the name that
/// RabbitMQ writes: a word, `@`, and the hash of the real name, below 2^27.
fn is_process(term: &[u8]) -> Option<()> {
    let node = term.strip_prefix(b"\x83X")?;
    // The tags of an atom in UTF-8 with a length of two bytes or of one.
    let (len, node) = match node {
        [b'v', high, low, rest @ ..] => (usize::from(u16::from_be_bytes([*high, *low])), rest),
        [b'w', len, rest @ ..] => (usize::from(*len), rest),
        _ => return None,
    };
    let (node, numbers) = node.split_at_checked(len)?;
    let (word, hash) = std::str::from_utf8(node).ok()?.split_once('@')?;
    let is_word = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphabetic());
    let is_hash = hash.bytes().all(|byte| byte.is_ascii_digit()) && hash.parse::<u32>().ok()? < 1 << 27;
    // Id, serial and creation. An id has 28 bits.
    let is_numbers = numbers.len() == 12 && numbers[0] < 1 << 4;
    (is_word && is_hash && is_numbers).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As RabbitMQ 4.0 made it.
    const DIRECT: &str =
        "amq.rabbitmq.reply-to.g1h2AA5yZXBseUA4OTY1ODA5OQAAAusAAAAAawsShg==.rHhIvgoAuO0/oQjhkuteYQ==";

    fn queues(patterns: &[&str]) -> ReplyQueues {
        ReplyQueues(patterns.iter().map(|pattern| (*pattern).to_owned()).collect())
    }

    #[test]
    fn direct_reply_queues_and_those_of_the_setting_are_allowed() {
        let allowed = |patterns: &[&str]| {
            let names = [DIRECT, "amq.rabbitmq.reply-to", "amq.gen-x", "rpc.a", "garenne.dead", ""];
            names.map(|name| queues(patterns).allow(name))
        };
        assert_eq!(allowed(&[]), [true, false, false, false, false, false]);
        assert_eq!(allowed(&["amq.gen-*", "rpc.a"]), [true, false, true, true, false, false]);
    }

    #[test]
    fn every_uuid_is_allowed_where_the_setting_says_so() {
        let allowed = |patterns: &[&str], name: &str| queues(patterns).allow(name);
        let uuid = "ded2fd87-d0af-3edf-bee1-98e8bff10c4a";
        assert!(allowed(&["a", "{uuid}"], uuid) && !allowed(&["a"], uuid));
        assert!(queues(&["{uuid}"]).validate("garenne").is_ok());
        for name in [
            &uuid[1..],
            "ded2fd87-d0af-3edf-bee1-98e8bff10c4.",
            "ded2fd87+d0af-3edf-bee1-98e8bff10c4a",
            "{uuid}",
        ] {
            assert!(!allowed(&["{uuid}"], name), "{name}");
        }
    }

    #[test]
    fn only_addresses_that_the_broker_can_decode_are_allowed() {
        let any = queues(&["amq.*"]);
        let allowed = |address: &str| any.allow(&format!("{DIRECT_REPLY}{address}"));
        let key = "rHhIvgoAuO0/oQjhkuteYQ==";
        let numbers = [0, 0, 2, 235, 0, 0, 0, 0, 107, 11, 18, 134];
        let address = |tag: &[u8], node: &[u8], numbers: &[u8]| {
            format!("{}.{key}", STANDARD.encode([b"\x83X", tag, node, numbers].concat()))
        };
        assert!(allowed(&address(b"v\0\x0e", b"reply@89658099", &numbers)));
        assert!(allowed(&address(b"v\0\x0d", b"reply@4832247", &numbers)));
        assert!(allowed(&address(b"w\x0b", b"generated@1", &numbers)));
        let long = [0; 13];
        let undecodable = [
            String::new(),
            "x.y".into(),
            "g1h3AA==.abc".into(),
            format!("g1h3AA==.{key}"),
            address(b"v\0\x08", b"rabbit@h", &numbers),
            address(b"v\0\x06", b"rabbit", &numbers),
            address(b"v\0\x06", b"reply@", &numbers),
            address(b"v\0\x08", b"reply@+5", &numbers),
            address(b"v\0\x0f", b"reply@134217728", &numbers),
            address(b"v\0\x1a", b"reply@99999999999999999999", &numbers),
            address(b"v\0\x02", b"@5", &numbers),
            address(b"v\0\x07", b"repl\xff@5", &numbers),
            address(b"v\0\x09", b"reply@5", &numbers[..1]),
            address(b"d\0\x07", b"reply@5", &numbers),
            address(b"v\0\x07", b"reply@5", &numbers[1..]),
            address(b"v\0\x07", b"reply@5", &long),
            address(b"v\0\x07", b"reply@5", &[255; 12]),
            address(b"v\0\x07", b"reply@5", &numbers).replace("==", ""),
            address(b"v\0\x07", b"reply@5", &numbers).replace('.', ".."),
            address(b"v\0\x07", b"reply@5", &numbers) + ".x",
            address(b"v\0\x07", b"reply@5", &numbers).replace(key, "abc"),
        ];
        for address in undecodable {
            assert!(!allowed(&address), "{address}");
        }
    }

    #[test]
    fn a_pattern_that_is_invalid_or_covers_the_fleets_queues_is_refused() {
        let refused =
            |pattern: &str| queues(&["rpc.*", pattern]).validate("garenne").unwrap_err().to_string();
        let expected = "expected the name of a queue, or a prefix and \"*\" at its end";
        for pattern in ["", "a*b"] {
            assert_eq!(
                refused(pattern),
                format!("setting reply_queues = {pattern:?} is refused: {expected}")
            );
        }
        for pattern in ["*", "g*", "garenne*", "garenne.*", "garenne.dead", "garenne.tasks.*"] {
            let expected = "covers queues of the fleet (garenne.*), which publishers may not write to";
            assert_eq!(
                refused(pattern),
                format!("setting reply_queues = {pattern:?} is refused: {expected}")
            );
        }
        assert!(queues(&["garenne", "garenne-rpc.*", "garennes*", "amq.gen-*"]).validate("garenne").is_ok());
    }
}
