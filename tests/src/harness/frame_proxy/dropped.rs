//! The contents of deliveries that a proxy drops.

use std::collections::HashMap;

use garenne_amqp_kit::frame::{BODY, Frame, HEADER};

/// The missing contents of dropped deliveries, by channel: the header, then the number of body bytes.
#[derive(Debug, Default)]
pub(super) struct DroppedContents(HashMap<u16, Option<u64>>);

impl DroppedContents {
    /// Drops the content of this delivery, too.
    pub(super) fn content_of(&mut self, delivery: &Frame) {
        self.0.insert(delivery.channel(), None);
    }

    /// Whether the frame belongs to such a content.
    pub(super) fn takes(&mut self, frame: &Frame) -> bool {
        let Some(missing) = self.0.get_mut(&frame.channel()) else { return false };
        let left = match (frame.kind(), *missing) {
            // Class and weight, then the size of the body.
            (HEADER, None) => frame
                .payload()
                .get(4..12)
                .map_or(0, |size| u64::from_be_bytes(size.try_into().unwrap_or_default())),
            (BODY, Some(missing)) => missing.saturating_sub(frame.payload().len() as u64),
            _ => return false,
        };
        if left == 0 {
            self.0.remove(&frame.channel());
        } else {
            *missing = Some(left);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use garenne_amqp_kit::frame::{Method, encode};

    use super::*;

    fn frame(kind: u8, channel: u16, payload: &[u8]) -> Frame {
        Frame::take(&mut BytesMut::from(&encode(kind, channel, payload)[..])).unwrap()
    }

    #[test]
    fn the_content_of_a_dropped_delivery_is_dropped_and_other_channels_are_not() {
        let delivery = Method::BASIC_DELIVER.frame(3, b"\x03tag........");
        let delivery = Frame::take(&mut BytesMut::from(&delivery[..])).unwrap();
        let mut dropped = DroppedContents::default();
        assert!(!dropped.takes(&delivery));
        dropped.content_of(&delivery);
        assert!(!dropped.takes(&frame(HEADER, 4, b"")));
        assert!(dropped.takes(&frame(HEADER, 3, b"\0\x3c\0\0\0\0\0\0\0\0\0\x05\0\0")));
        assert!(dropped.takes(&frame(BODY, 3, b"abc")));
        assert!(!dropped.takes(&frame(BODY, 4, b"abc")));
        assert!(dropped.takes(&frame(BODY, 3, b"de")));
        assert!(!dropped.takes(&frame(BODY, 3, b"next")));
    }
}
