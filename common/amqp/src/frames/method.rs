//! Short strings in the methods that a broker sends.
//!
//! Exchange and routing key of a delivery are what a publisher wrote. A reply text may quote a name and is cut
//! to 255 bytes by the broker, possibly within a character.

use bytes::Buf;
use garenne_protocol::topology::BrokerVersion;

use super::{
    read,
    repair::{lossy, text},
};

/// An argument of a method, or several of fixed size in a row.
enum Field {
    Octets(usize),
    Short(&'static str),
}

use Field::{Octets, Short};

/// A method frame's class and method.
pub(super) type MethodId = (u16, u16);

pub(super) const START: MethodId = (10, 10);
pub(super) const TUNE: MethodId = (10, 30);
const OPEN_OK: MethodId = (10, 41);
const CONNECTION_CLOSE: MethodId = (10, 50);
const BLOCKED: MethodId = (10, 60);
const CHANNEL_CLOSE: MethodId = (20, 40);
const DECLARE_OK: MethodId = (50, 11);
const CONSUME_OK: MethodId = (60, 21);
const CANCEL: MethodId = (60, 30);
const CANCEL_OK: MethodId = (60, 31);
const RETURN: MethodId = (60, 50);
const DELIVER: MethodId = (60, 60);
const GET_OK: MethodId = (60, 71);

/// The arguments up to the last short string.
fn layout(id: MethodId) -> &'static [Field] {
    match id {
        OPEN_OK => &[Short("the virtual host")],
        CONNECTION_CLOSE | CHANNEL_CLOSE => &[Octets(2), Short("the reply text")],
        BLOCKED => &[Short("the reason")],
        DECLARE_OK => &[Short("the queue name")],
        CONSUME_OK | CANCEL | CANCEL_OK => &[Short("the consumer tag")],
        RETURN => &[Octets(2), Short("the reply text"), Short("the exchange name"), Short("the routing key")],
        DELIVER => {
            &[Short("the consumer tag"), Octets(9), Short("the exchange name"), Short("the routing key")]
        }
        GET_OK => &[Octets(9), Short("the exchange name"), Short("the routing key")],
        _ => &[],
    }
}

pub(super) fn id(mut payload: &[u8]) -> Option<MethodId> {
    Some((payload.try_get_u16().ok()?, payload.try_get_u16().ok()?))
}

/// Whether a content header follows.
pub(super) fn has_content(id: MethodId) -> bool {
    matches!(id, RETURN | DELIVER | GET_OK)
}

/// The first short string that is not UTF-8.
pub(super) fn not_utf8(id: MethodId, mut payload: &[u8]) -> Option<&'static str> {
    payload.split_off(..4)?;
    for field in layout(id) {
        match field {
            Octets(count) => drop(payload.split_off(..*count)?),
            Short(name) => {
                if std::str::from_utf8(read::short(&mut payload)?).is_err() {
                    return Some(name);
                }
            }
        }
    }
    None
}

/// The payload with invalid UTF-8 in short strings replaced by U+FFFD; `None` if a length is wrong.
pub(super) fn rewritten(id: MethodId, mut payload: &[u8]) -> Option<Vec<u8>> {
    let mut written = payload.split_off(..4)?.to_vec();
    for field in layout(id) {
        match field {
            Octets(count) => written.extend_from_slice(payload.split_off(..*count)?),
            Short(_) => {
                let text = lossy(read::short(&mut payload)?);
                written.push(u8::try_from(text.as_str().len()).ok()?);
                written.extend_from_slice(text.as_str().as_bytes());
            }
        }
    }
    written.extend_from_slice(payload);
    Some(written)
}

/// The version in the server properties of `connection.start`.
pub(super) fn version(mut payload: &[u8]) -> Option<BrokerVersion> {
    // Class, method, and the protocol's major and minor version.
    payload.split_off(..6)?;
    text(read::long(&mut payload)?, "version")?.parse().ok()
}

/// The frame size that `connection.tune` offers; 0 is no limit.
pub(super) fn frame_max(mut payload: &[u8]) -> Option<u32> {
    // Class, method, and the number of channels.
    payload.split_off(..6)?;
    payload.try_get_u32().ok()
}
