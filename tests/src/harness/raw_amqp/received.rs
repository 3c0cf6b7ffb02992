//! Received messages as bytes, and a reader that checks every length.

use anyhow::{Context, Result};

use super::message::Property;

/// A message that was taken from a queue, as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Whether the broker had delivered it before.
    pub redelivered: bool,
    /// The exchange that it was published to.
    pub exchange: Vec<u8>,
    /// Its routing key.
    pub routing_key: Vec<u8>,
    /// The payload of its header frame: class, weight, size of the body, flags and properties.
    pub header: Vec<u8>,
    /// Its body.
    pub body: Vec<u8>,
}

impl Received {
    /// Flags and properties.
    #[must_use]
    pub fn properties(&self) -> &[u8] {
        self.header.get(12..).unwrap_or_default()
    }

    /// A property's bytes without the length of a short string or of the headers, if it is set.
    ///
    /// # Errors
    /// If a property before it is truncated.
    pub fn property(&self, wanted: Property) -> Result<Option<&[u8]>> {
        let mut reader = Reader(self.properties());
        let flags = reader.u16()?;
        for property in Property::ALL {
            if flags & property.flag() == 0 {
                continue;
            }
            let value = match property {
                Property::Headers => reader.long()?,
                Property::DeliveryMode | Property::Priority => reader.take(1)?,
                Property::Timestamp => reader.take(8)?,
                _ => reader.short()?,
            };
            if property == wanted {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// A header of the outermost table: its type and its value, without a length.
    ///
    /// # Errors
    /// If the table is truncated, or has a field of an unknown type before it.
    pub fn field(&self, name: &str) -> Result<Option<(u8, &[u8])>> {
        let mut reader = Reader(self.property(Property::Headers)?.unwrap_or_default());
        while !reader.0.is_empty() {
            let found = reader.short()?;
            let kind = reader.u8()?;
            let value = match kind {
                b'V' => reader.take(0)?,
                b't' | b'b' | b'B' => reader.take(1)?,
                b's' | b'u' => reader.take(2)?,
                b'I' | b'i' | b'f' => reader.take(4)?,
                b'D' => reader.take(5)?,
                b'l' | b'd' | b'T' | b'L' => reader.take(8)?,
                b'S' | b'x' | b'A' | b'F' => reader.long()?,
                other => anyhow::bail!("a field of the unknown type {other}"),
            };
            if found == name.as_bytes() {
                return Ok(Some((kind, value)));
            }
        }
        Ok(None)
    }

    /// A header's text, if it exists and is valid UTF-8.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        let (_, value) = self.field(name).ok()??;
        std::str::from_utf8(value).ok()
    }
}

/// The bytes that were not read yet.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).context("a value is truncated")?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_be_bytes(self.take(2)?.try_into()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.take(4)?.try_into()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.take(8)?.try_into()?))
    }

    pub(super) fn short(&mut self) -> Result<&'a [u8]> {
        let size = self.u8()?;
        self.take(size.into())
    }

    fn long(&mut self) -> Result<&'a [u8]> {
        let size = self.u32()?;
        self.take(size as usize)
    }
}
