//! Frames as bytes.

/// The type of a frame with a method.
pub const METHOD: u8 = 1;
/// The type of a frame with a message's properties.
pub const HEADER: u8 = 2;
/// The type of a frame with a part of a message's body.
pub const BODY: u8 = 3;
/// The last byte of a frame.
pub const END: u8 = 0xce;

/// The bytes of a frame besides its payload.
pub const OVERHEAD: usize = 8;

/// A frame of this type.
///
/// # Panics
/// If the payload has 4 GiB.
#[must_use]
pub fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).expect("a payload below 4 GiB").to_be_bytes();
    [&[kind][..], &channel.to_be_bytes(), &size, payload, &[END]].concat()
}

/// A frame with a method: its class, its number and its arguments.
#[must_use]
pub fn method(channel: u16, (class, method): (u16, u16), arguments: &[u8]) -> Vec<u8> {
    frame(METHOD, channel, &[&class.to_be_bytes()[..], &method.to_be_bytes(), arguments].concat())
}

/// A short string.
///
/// # Panics
/// If the text is longer than 255 bytes.
#[must_use]
pub fn short(text: &str) -> Vec<u8> {
    [&[u8::try_from(text.len()).expect("at most 255 bytes")], text.as_bytes()].concat()
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
