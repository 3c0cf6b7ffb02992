//! Reads AMQP's types of variable length from the front of a slice, without a copy. The others are read with
//! [`bytes::Buf`].

use bytes::Buf;

/// The next `count` bytes, or fewer at the end of the slice.
pub(super) fn take_up_to<'a>(rest: &mut &'a [u8], count: usize) -> &'a [u8] {
    rest.split_off(..count.min(rest.len())).unwrap_or_default()
}

/// A length of four bytes, as a size.
pub(super) fn length(rest: &mut &[u8]) -> Option<usize> {
    rest.try_get_u32().ok().and_then(|length| usize::try_from(length).ok())
}

/// The bytes of a short string.
pub(super) fn short<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = rest.try_get_u8().ok()?;
    rest.split_off(..length.into())
}

/// The bytes of a long string, table or array.
pub(super) fn long<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = length(rest)?;
    rest.split_off(..length)
}
