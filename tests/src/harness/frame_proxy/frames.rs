//! AMQP 0-9-1 framing, as far as needed to recognize methods.

use std::collections::HashMap;

/// A method by its class id and method id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method(pub u16, pub u16);

impl Method {
    /// `connection.start`, the first method of a broker.
    pub const START: Self = Self(10, 10);
    /// `connection.open-ok`.
    pub const OPEN_OK: Self = Self(10, 41);
    /// `exchange.declare-ok`.
    pub const EXCHANGE_OK: Self = Self(40, 11);
    /// `queue.declare-ok`.
    pub const QUEUE_OK: Self = Self(50, 11);
    /// `queue.bind-ok`.
    pub const BIND_OK: Self = Self(50, 21);
    /// `basic.consume-ok`.
    pub const CONSUME_OK: Self = Self(60, 21);
    /// `basic.deliver`.
    pub const DELIVER: Self = Self(60, 60);
    /// `basic.ack`: from a broker, a publisher confirm.
    pub const CONFIRM: Self = Self(60, 80);
    /// `confirm.select-ok`.
    pub const SELECT_OK: Self = Self(85, 11);
}

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;

/// One frame.
pub(super) struct Frame<'a> {
    /// All of its bytes.
    pub(super) whole: &'a [u8],
    kind: u8,
    channel: u16,
    payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The first frame in these bytes, if it is complete: type, channel, size, payload, frame-end octet.
    pub(super) fn first(bytes: &'a [u8]) -> Option<Self> {
        let size = u32::from_be_bytes(bytes.get(3..7)?.try_into().ok()?) as usize;
        let whole = bytes.get(..7 + size + 1)?;
        let channel = u16::from_be_bytes([whole[1], whole[2]]);
        Some(Self { whole, kind: whole[0], channel, payload: &whole[7..7 + size] })
    }

    /// The method, if the frame is a method frame.
    pub(super) fn method(&self) -> Option<Method> {
        match *self.payload {
            [a, b, c, d, ..] if self.kind == METHOD => {
                Some(Method(u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
            }
            _ => None,
        }
    }

    /// The consumer tag of a delivery or a started consumer.
    pub(super) fn consumer(&self) -> Option<&'a str> {
        self.method().filter(|method| [Method::DELIVER, Method::CONSUME_OK].contains(method))?;
        let (length, rest) = self.payload.get(4..)?.split_first()?;
        str::from_utf8(rest.get(..usize::from(*length))?).ok()
    }
}

/// The missing contents of dropped deliveries, by channel: the header, then the number of body bytes.
#[derive(Debug, Default)]
pub(super) struct DroppedContents(HashMap<u16, Option<u64>>);

impl DroppedContents {
    /// Drops the content of this delivery, too.
    pub(super) fn content_of(&mut self, delivery: &Frame<'_>) {
        self.0.insert(delivery.channel, None);
    }

    /// Whether the frame belongs to such a content.
    pub(super) fn takes(&mut self, frame: &Frame<'_>) -> bool {
        let Some(missing) = self.0.get_mut(&frame.channel) else { return false };
        let left = match (frame.kind, *missing) {
            // Class and weight, then the size of the body.
            (HEADER, None) => frame
                .payload
                .get(4..12)
                .map_or(0, |size| u64::from_be_bytes(size.try_into().unwrap_or_default())),
            (BODY, Some(missing)) => missing.saturating_sub(frame.payload.len() as u64),
            _ => return false,
        };
        if left == 0 {
            self.0.remove(&frame.channel);
        } else {
            *missing = Some(left);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[kind], &channel.to_be_bytes()[..], &size, payload, &[0xce]].concat()
    }

    #[test]
    fn a_frame_is_recognized_when_it_is_complete() {
        let bytes = frame(METHOD, 3, b"\0\x3c\0\x3c\x03tag........");
        assert!((0..bytes.len()).all(|end| Frame::first(&bytes[..end]).is_none()));
        let both = [&bytes[..], &bytes].concat();
        let first = Frame::first(&both).unwrap();
        assert_eq!((first.whole, first.channel), (&bytes[..], 3));
        assert_eq!((first.method(), first.consumer()), (Some(Method::DELIVER), Some("tag")));
    }

    #[test]
    fn the_content_of_a_dropped_delivery_is_dropped_and_other_channels_are_not() {
        let delivery = frame(METHOD, 3, b"\0\x3c\0\x3c\x03tag........");
        let header = frame(HEADER, 3, b"\0\x3c\0\0\0\0\0\0\0\0\0\x05\0\0");
        let mut dropped = DroppedContents::default();
        let mut takes = |bytes: &[u8]| dropped.takes(&Frame::first(bytes).unwrap());
        assert!(!takes(&delivery));
        dropped.content_of(&Frame::first(&delivery).unwrap());
        let mut takes = |bytes: &[u8]| dropped.takes(&Frame::first(bytes).unwrap());
        assert!(!takes(&frame(HEADER, 4, b"")));
        assert!(takes(&header));
        assert!(takes(&frame(BODY, 3, b"abc")));
        assert!(!takes(&frame(BODY, 4, b"abc")));
        assert!(takes(&frame(BODY, 3, b"de")));
        assert!(!takes(&frame(BODY, 3, b"next")));
    }
}
