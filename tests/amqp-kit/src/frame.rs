//! Frames as bytes.

use bytes::{Bytes, BytesMut};

/// The type of a frame with a method.
pub const METHOD: u8 = 1;
/// The type of a frame with a message's properties.
pub const HEADER: u8 = 2;
/// The type of a frame with a part of a message's body.
pub const BODY: u8 = 3;
/// The type of a heartbeat.
pub const HEARTBEAT: u8 = 8;

/// The last byte of a frame.
const END: u8 = 0xce;
/// The bytes before the payload: type, channel and size.
const HEAD: usize = 7;
/// The bytes of a frame besides its payload.
pub const OVERHEAD: usize = HEAD + 1;

/// A method by its class id and method id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method(pub u16, pub u16);

#[expect(missing_docs, reason = "the names of AMQP 0-9-1")]
impl Method {
    pub const CONNECTION_START: Self = Self(10, 10);
    pub const CONNECTION_START_OK: Self = Self(10, 11);
    pub const CONNECTION_TUNE: Self = Self(10, 30);
    pub const CONNECTION_TUNE_OK: Self = Self(10, 31);
    pub const CONNECTION_OPEN: Self = Self(10, 40);
    pub const CONNECTION_OPEN_OK: Self = Self(10, 41);
    pub const CONNECTION_CLOSE: Self = Self(10, 50);
    pub const CONNECTION_CLOSE_OK: Self = Self(10, 51);
    pub const CHANNEL_OPEN: Self = Self(20, 10);
    pub const CHANNEL_OPEN_OK: Self = Self(20, 11);
    pub const CHANNEL_CLOSE: Self = Self(20, 40);
    pub const CHANNEL_CLOSE_OK: Self = Self(20, 41);
    pub const EXCHANGE_DECLARE_OK: Self = Self(40, 11);
    pub const QUEUE_DECLARE: Self = Self(50, 10);
    pub const QUEUE_DECLARE_OK: Self = Self(50, 11);
    pub const QUEUE_BIND_OK: Self = Self(50, 21);
    pub const BASIC_QOS: Self = Self(60, 10);
    pub const BASIC_QOS_OK: Self = Self(60, 11);
    pub const BASIC_CONSUME_OK: Self = Self(60, 21);
    pub const BASIC_PUBLISH: Self = Self(60, 40);
    pub const BASIC_RETURN: Self = Self(60, 50);
    pub const BASIC_DELIVER: Self = Self(60, 60);
    pub const BASIC_GET: Self = Self(60, 70);
    pub const BASIC_GET_OK: Self = Self(60, 71);
    pub const BASIC_GET_EMPTY: Self = Self(60, 72);
    /// From a broker, a publisher confirm.
    pub const BASIC_ACK: Self = Self(60, 80);
    pub const BASIC_NACK: Self = Self(60, 120);
    pub const CONFIRM_SELECT: Self = Self(85, 10);
    pub const CONFIRM_SELECT_OK: Self = Self(85, 11);

    /// The bytes of its frame on a channel.
    #[must_use]
    pub fn frame(self, channel: u16, arguments: &[u8]) -> Vec<u8> {
        encode(METHOD, channel, &[&self.0.to_be_bytes()[..], &self.1.to_be_bytes(), arguments].concat())
    }
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame(Bytes);

impl Frame {
    /// Takes the first frame of the received bytes, if it is complete.
    ///
    /// # Panics
    /// If the last byte is no end of a frame.
    pub fn take(received: &mut BytesMut) -> Option<Self> {
        let size = u32::from_be_bytes(received.get(3..HEAD)?.try_into().ok()?) as usize;
        let end = received.get(HEAD + size)?;
        assert_eq!(*end, END, "a frame without its end: {:x?}", &received[..HEAD]);
        Some(Self(received.split_to(size + OVERHEAD).freeze()))
    }

    /// All of its bytes.
    #[must_use]
    pub fn whole(&self) -> &[u8] {
        &self.0
    }

    /// Its type, such as [`METHOD`].
    #[must_use]
    pub fn kind(&self) -> u8 {
        self.0[0]
    }

    /// Its channel.
    #[must_use]
    pub fn channel(&self) -> u16 {
        u16::from_be_bytes([self.0[1], self.0[2]])
    }

    /// Its payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.0[HEAD..self.0.len() - 1]
    }

    /// Its method, if it has one.
    #[must_use]
    pub fn method(&self) -> Option<Method> {
        match *self.payload() {
            [a, b, c, d, ..] if self.kind() == METHOD => {
                Some(Method(u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
            }
            _ => None,
        }
    }

    /// The arguments of its method.
    #[must_use]
    pub fn arguments(&self) -> &[u8] {
        self.payload().get(4..).unwrap_or_default()
    }
}

/// The bytes of a frame of this type.
///
/// # Panics
/// If the payload has 4 GiB.
#[must_use]
pub fn encode(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).expect("a payload below 4 GiB").to_be_bytes();
    [&[kind][..], &channel.to_be_bytes(), &size, payload, &[END]].concat()
}

/// A short string: one byte of length, then any bytes.
///
/// # Panics
/// If there are more than 255 bytes.
#[must_use]
pub fn short(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [&[u8::try_from(text.len()).expect("at most 255 bytes")], text].concat()
}

/// The short string at the start of the bytes, and the rest.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn split_short(bytes: &[u8]) -> (String, &[u8]) {
    let (text, rest) = bytes[1..].split_at(bytes[0].into());
    (String::from_utf8(text.to_vec()).expect("UTF-8"), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_taken_when_it_is_complete() {
        let bytes = Method::BASIC_DELIVER.frame(3, b"\x03tag");
        for end in 0..bytes.len() {
            let mut part = BytesMut::from(&bytes[..end]);
            assert_eq!((Frame::take(&mut part), part.len()), (None, end));
        }
        let mut received = BytesMut::from(&[&bytes[..], b"next"].concat()[..]);
        let first = Frame::take(&mut received).unwrap();
        assert_eq!((first.whole(), &received[..]), (&bytes[..], &b"next"[..]));
        assert_eq!((first.kind(), first.channel()), (METHOD, 3));
        assert_eq!((first.method(), first.arguments()), (Some(Method::BASIC_DELIVER), &b"\x03tag"[..]));
    }

    #[test]
    #[should_panic(expected = "without its end")]
    fn a_wrong_end_is_reported() {
        let mut bytes = encode(BODY, 1, b"abc");
        *bytes.last_mut().unwrap() = 0;
        Frame::take(&mut BytesMut::from(&bytes[..]));
    }
}
