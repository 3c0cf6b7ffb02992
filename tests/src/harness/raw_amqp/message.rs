//! Messages and header tables, byte by byte.

use garenne_amqp_kit::frame::{BODY, HEADER, Method, OVERHEAD, encode, short};

/// A property of a message, in the order of its flag: the first is bit 15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names of AMQP 0-9-1")]
pub enum Property {
    ContentType,
    ContentEncoding,
    Headers,
    DeliveryMode,
    Priority,
    CorrelationId,
    ReplyTo,
    Expiration,
    MessageId,
    Timestamp,
    Type,
    UserId,
    AppId,
    ClusterId,
}

impl Property {
    /// All properties, in the order of their encoding.
    pub const ALL: [Self; 14] = [
        Self::ContentType,
        Self::ContentEncoding,
        Self::Headers,
        Self::DeliveryMode,
        Self::Priority,
        Self::CorrelationId,
        Self::ReplyTo,
        Self::Expiration,
        Self::MessageId,
        Self::Timestamp,
        Self::Type,
        Self::UserId,
        Self::AppId,
        Self::ClusterId,
    ];

    /// Whether it is a short string.
    #[must_use]
    pub fn is_short_string(self) -> bool {
        !matches!(self, Self::Headers | Self::DeliveryMode | Self::Priority | Self::Timestamp)
    }

    pub(super) fn flag(self) -> u16 {
        0x8000 >> self as u8
    }
}

/// The entries of a header table, or the values of an array.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table(pub Vec<u8>);

impl Table {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a field with any type and any bytes, which need not be valid for the type.
    #[must_use]
    pub fn field(mut self, name: impl AsRef<[u8]>, kind: u8, value: &[u8]) -> Self {
        self.0.extend(short(name));
        self.0.push(kind);
        self.0.extend(value);
        self
    }

    /// Adds a value without a name, for arrays.
    #[must_use]
    pub fn value(mut self, kind: u8, value: &[u8]) -> Self {
        self.0.push(kind);
        self.0.extend(value);
        self
    }

    /// Adds a long string (type `S`) of any bytes.
    #[must_use]
    pub fn text(self, name: impl AsRef<[u8]>, text: impl AsRef<[u8]>) -> Self {
        self.field(name, b'S', &Self(text.as_ref().to_vec()).sized())
    }

    /// Adds a 64-bit integer (type `l`).
    #[must_use]
    pub fn integer(self, name: impl AsRef<[u8]>, number: i64) -> Self {
        self.field(name, b'l', &number.to_be_bytes())
    }

    /// Adds a table within this one.
    #[must_use]
    pub fn table(self, name: impl AsRef<[u8]>, inner: &Self) -> Self {
        self.field(name, b'F', &inner.sized())
    }

    /// Adds an array.
    #[must_use]
    pub fn array(self, name: impl AsRef<[u8]>, inner: &Self) -> Self {
        self.field(name, b'A', &inner.sized())
    }

    /// Tables within each other, this many levels including the outermost.
    #[must_use]
    pub fn nested_tables(levels: usize) -> Self {
        nested(levels, Self::new().field("n", b'F', &[0; 4]).0.len(), &[1, b'n', b'F'], &[1, b'n', b'V'])
    }

    /// A table with arrays within each other, this many levels including the table.
    #[must_use]
    pub fn nested_arrays(levels: usize) -> Self {
        let inner = nested(levels.saturating_sub(1), 5, b"A", b"V");
        Self::new().array("n", &inner)
    }

    /// Its bytes with their length in four bytes before them, as in properties and fields.
    ///
    /// # Panics
    /// If it has 4 GiB or more.
    #[must_use]
    pub fn sized(&self) -> Vec<u8> {
        let size = u32::try_from(self.0.len()).expect("a table below 4 GiB");
        [&size.to_be_bytes(), &self.0[..]].concat()
    }
}

/// `levels` nested containers around `core`, encoded in linear time. Each takes `per_level` bytes and starts with
/// `head`.
fn nested(levels: usize, per_level: usize, head: &[u8], core: &[u8]) -> Table {
    let inner = levels.saturating_sub(1);
    let mut bytes = Vec::with_capacity(inner * per_level + core.len());
    for left in (0..inner).rev() {
        bytes.extend(head);
        let size = u32::try_from(left * per_level + core.len()).expect("a table below 4 GiB");
        bytes.extend(size.to_be_bytes());
    }
    bytes.extend(core);
    Table(bytes)
}

/// A message of which every byte can be set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawMessage {
    /// At most 255 bytes.
    pub exchange: Vec<u8>,
    /// At most 255 bytes.
    pub routing_key: Vec<u8>,
    /// Whether the broker returns it if no queue is bound for it.
    pub mandatory: bool,
    properties: [Option<Vec<u8>>; 14],
    /// Encoded flags and properties, which replace `properties`.
    raw_properties: Option<Vec<u8>>,
    /// The body.
    pub body: Vec<u8>,
}

impl RawMessage {
    /// A message without properties.
    #[must_use]
    pub fn to(exchange: impl AsRef<[u8]>, routing_key: impl AsRef<[u8]>) -> Self {
        Self {
            exchange: exchange.as_ref().to_vec(),
            routing_key: routing_key.as_ref().to_vec(),
            ..Self::default()
        }
    }

    /// A persistent task for the tasks exchange.
    #[must_use]
    pub fn task(kind: &str, id: impl AsRef<[u8]>, body: impl AsRef<[u8]>) -> Self {
        Self::to("garenne.tasks", kind)
            .property(Property::DeliveryMode, [2])
            .property(Property::MessageId, id)
            .body(body)
    }

    /// Sets a property. Short strings and headers get their length. Other properties are encoded as they are (a
    /// delivery mode and a priority have one byte, a timestamp eight) and may have a wrong size.
    #[must_use]
    pub fn property(self, property: Property, value: impl AsRef<[u8]>) -> Self {
        let value = value.as_ref();
        let encoded = if property.is_short_string() {
            short(value)
        } else if property == Property::Headers {
            Table(value.to_vec()).sized()
        } else {
            value.to_vec()
        };
        self.encoded(property, encoded)
    }

    /// Sets the headers.
    #[must_use]
    pub fn headers(self, headers: &Table) -> Self {
        self.property(Property::Headers, &headers.0)
    }

    /// Sets the encoded bytes of a property, including its length, which may be wrong.
    #[must_use]
    pub fn encoded(mut self, property: Property, bytes: Vec<u8>) -> Self {
        self.properties[property as usize] = Some(bytes);
        self
    }

    /// Replaces the flags and all properties by these bytes.
    #[must_use]
    pub fn raw_properties(mut self, flags_and_properties: impl AsRef<[u8]>) -> Self {
        self.raw_properties = Some(flags_and_properties.as_ref().to_vec());
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = body.as_ref().to_vec();
        self
    }

    /// The encoded flags and properties.
    #[must_use]
    pub fn encoded_properties(&self) -> Vec<u8> {
        if let Some(raw) = &self.raw_properties {
            return raw.clone();
        }
        let set = || Property::ALL.into_iter().zip(&self.properties).filter(|(_, bytes)| bytes.is_some());
        let flags = set().fold(0, |flags, (property, _)| flags | property.flag());
        let mut encoded = u16::to_be_bytes(flags).to_vec();
        for (_, bytes) in set() {
            encoded.extend(bytes.iter().flatten());
        }
        encoded
    }

    /// The payload of the header frame.
    #[must_use]
    pub fn header(&self) -> Vec<u8> {
        let size = (self.body.len() as u64).to_be_bytes();
        [&60_u16.to_be_bytes(), &[0, 0], &size[..], &self.encoded_properties()].concat()
    }

    /// Pads the headers with a text field so that the header frame has exactly this size, all of it counted.
    ///
    /// # Panics
    /// If it is larger already, or a field does not fit.
    #[must_use]
    pub fn padded_to(self, headers: &Table, frame_size: usize) -> Self {
        let padded = self.headers(&headers.clone().text("padding", ""));
        let now = padded.header().len() + OVERHEAD;
        let missing = frame_size.checked_sub(now).expect("a smaller message");
        padded.headers(&headers.clone().text("padding", vec![b'x'; missing]))
    }

    /// All its frames on channel 1, with the body split at `frame_max`.
    #[must_use]
    pub fn frames(&self, frame_max: usize) -> Vec<u8> {
        let mut arguments = vec![0, 0];
        arguments.extend(short(&self.exchange));
        arguments.extend(short(&self.routing_key));
        arguments.push(u8::from(self.mandatory));
        let mut bytes = Method::BASIC_PUBLISH.frame(1, &arguments);
        bytes.extend(encode(HEADER, 1, &self.header()));
        for part in self.body.chunks(frame_max - OVERHEAD) {
            bytes.extend(encode(BODY, 1, part));
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_containers_have_the_asked_depth() {
        assert_eq!(Table::nested_tables(1), Table::new().field("n", b'V', &[]));
        let inner = Table::new().field("n", b'V', &[]);
        assert_eq!(Table::nested_tables(3), Table::new().table("n", &Table::new().table("n", &inner)));
        let array = Table::new().value(b'A', &Table::new().value(b'V', &[]).sized());
        assert_eq!(Table::nested_arrays(3), Table::new().array("n", &array));
    }

    #[test]
    fn properties_are_written_in_the_order_of_their_flags() {
        let message =
            RawMessage::to("", "q").property(Property::AppId, "a").property(Property::Priority, [9]);
        assert_eq!(message.encoded_properties(), [0x08, 0x08, 9, 1, b'a']);
        let frames = message.frames(4096);
        assert_eq!(frames[0], garenne_amqp_kit::frame::METHOD);
        assert_eq!(frames.last(), Some(&0xCE));
    }

    #[test]
    fn padding_gives_the_exact_size_of_the_header_frame() {
        let headers = Table::new().integer("a", 1);
        let message = RawMessage::task("k", "id", "{}").padded_to(&headers, 1000);
        assert_eq!(encode(HEADER, 1, &message.header()).len(), 1000);
    }
}
