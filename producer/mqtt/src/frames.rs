//! Cuts the byte stream into packets.
//!
//! A message whose packet is too large is reported with its topic, and its payload is skipped without being kept. With
//! MQTT 3.1.1 the broker sends it whatever its size, and an error would make it come again for ever.

use bytes::{Buf, BytesMut};

use crate::packet::ProtocolError;

/// The type of a PUBLISH packet, in the upper half of the first byte.
const PUBLISH: u8 = 3;

/// A packet, or what is known of one that is too large.
#[derive(Debug, PartialEq)]
pub(crate) enum Frame {
    /// A whole packet.
    Packet(BytesMut),
    /// A message whose packet is too large.
    TooLarge(TooLarge),
}

/// A message whose packet is too large.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TooLarge {
    pub(crate) topic: String,
    /// `None` with QoS 0.
    pub(crate) packet_id: Option<u16>,
    pub(crate) dup: bool,
    pub(crate) retain: bool,
    /// The size of the packet.
    pub(crate) bytes: usize,
}

/// The bytes that were received and are no whole packet yet.
#[derive(Debug)]
pub(crate) struct Frames {
    /// Append received bytes here.
    pub(crate) buffer: BytesMut,
    /// So many further bytes belong to a packet that is too large.
    skipping: usize,
    max: usize,
}

impl Frames {
    /// Packets of at most `max` bytes.
    pub(crate) fn new(max: usize) -> Self {
        Self { buffer: BytesMut::new(), skipping: 0, max }
    }

    /// The next packet; `None` if it is not complete yet. Only a message may be larger than `max`.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, ProtocolError> {
        let skipped = self.skipping.min(self.buffer.len());
        self.buffer.advance(skipped);
        self.skipping -= skipped;
        if self.skipping > 0 {
            return Ok(None);
        }
        let Some((header, remaining)) = fixed_header(&self.buffer)? else { return Ok(None) };
        let size = header + remaining;
        if size <= self.max {
            return Ok((self.buffer.len() >= size).then(|| Frame::Packet(self.buffer.split_to(size))));
        }
        if self.buffer[0] >> 4 != PUBLISH {
            return Err(ProtocolError::new(format!("a packet of {size} bytes; {} are allowed", self.max)));
        }
        let Some((message, read)) = start_of_message(&self.buffer, header, size)? else { return Ok(None) };
        self.buffer.advance(read);
        self.skipping = size - read;
        Ok(Some(Frame::TooLarge(message)))
    }
}

/// The length of the fixed header, and how many bytes follow it. `None` if it is not complete.
fn fixed_header(bytes: &[u8]) -> Result<Option<(usize, usize)>, ProtocolError> {
    let mut remaining = 0;
    for (index, byte) in bytes.iter().skip(1).take(4).enumerate() {
        remaining |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((2 + index, remaining)));
        }
    }
    if bytes.len() > 4 {
        Err(ProtocolError::new("the length of a packet has more than 4 bytes"))
    } else {
        Ok(None)
    }
}

/// Topic and packet id of a message whose packet begins with `bytes`, and how many bytes they and the header have.
/// `None` if they are not complete.
fn start_of_message(
    bytes: &[u8],
    header: usize,
    size: usize,
) -> Result<Option<(TooLarge, usize)>, ProtocolError> {
    let flags = bytes[0];
    let has_id = flags & 0b110 != 0;
    let two = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    let Some(length) = two(header) else { return Ok(None) };
    let topic_end = header + 2 + usize::from(length);
    let end = topic_end + if has_id { 2 } else { 0 };
    if end > size {
        return Err(ProtocolError::new("a topic is longer than its packet"));
    }
    if bytes.len() < end {
        return Ok(None);
    }
    let topic = std::str::from_utf8(&bytes[header + 2..topic_end])
        .map_err(|_| ProtocolError::new("a topic is not UTF-8"))?;
    let message = TooLarge {
        topic: topic.to_owned(),
        packet_id: if has_id { two(topic_end) } else { None },
        dup: flags & 0b1000 != 0,
        retain: flags & 1 != 0,
        bytes: size,
    };
    Ok(Some((message, end)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rumqttc::mqttbytes::{
        QoS,
        v4::{Packet, Publish},
    };

    use super::*;

    /// The largest topic, with its length.
    const MAX_TOPIC: usize = 65_537;

    fn publish(topic: &str, payload: usize, id: u16) -> BytesMut {
        let qos = if id == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
        let mut publish = Publish::new(topic, qos, vec![7; payload]);
        publish.pkid = id;
        let mut bytes = BytesMut::new();
        Packet::Publish(publish).write(&mut bytes, usize::MAX).unwrap();
        bytes
    }

    /// Feeds the bytes in pieces of `piece` bytes.
    fn cut(bytes: &[u8], piece: usize, max: usize) -> Result<Vec<Frame>, ProtocolError> {
        let (mut frames, mut all) = (Frames::new(max), Vec::new());
        for piece in bytes.chunks(piece) {
            frames.buffer.extend_from_slice(piece);
            while let Some(frame) = frames.next()? {
                all.push(frame);
            }
            assert!(frames.buffer.len() <= max + MAX_TOPIC + piece.len(), "a skipped payload is not kept");
        }
        Ok(all)
    }

    #[test]
    fn a_message_that_is_too_large_is_skipped_and_reported() {
        let small = publish("a/b", 10, 3);
        let payload = MAX_TOPIC + 5000;
        for (id, packet_id) in [(0, None), (9, Some(9))] {
            let large = publish("plant/x", payload, id);
            let bytes = [&small[..], &large, &small].concat();
            let expected = TooLarge {
                topic: "plant/x".to_owned(),
                packet_id,
                dup: false,
                retain: false,
                bytes: large.len(),
            };
            for piece in [1, 7, 100, 100_000] {
                let frames = cut(&bytes, piece, 100).unwrap();
                let packet = || Frame::Packet(small.clone());
                assert_eq!(frames, [packet(), Frame::TooLarge(expected.clone()), packet()]);
            }
        }
    }

    #[test]
    fn bytes_that_are_no_packets_are_refused() {
        let refused = |bytes: &[u8]| cut(bytes, 100, 100).unwrap_err().to_string();
        assert!(refused(&[0x30, 0xff, 0xff, 0xff, 0xff]).contains("more than 4 bytes"));
        assert!(refused(&[0x20, 0xff, 0x7f]).contains("16386 bytes; 100 are allowed"));
        assert!(refused(&[0x32, 0x80, 0x01, 0xff, 0xff]).contains("longer than its packet"));
        assert!(refused(&[0x30, 0x80, 0x01, 0, 1, 0xff]).contains("not UTF-8"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_cut_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = cut(&bytes, 13, 64);
        }
    }
}
