//! Frames that a broker sends. Their framing is right; what publishers decide about is arbitrary.

use arbitrary::Arbitrary;

/// Frames that follow each other.
#[derive(Arbitrary, Debug)]
pub enum Group {
    One(Part),
    Message { channel: bool, routing_key: Text, header: Header, body: Vec<u8> },
}

/// A short string, also a long one from few bytes of input.
#[derive(Arbitrary, Debug, Default)]
pub struct Text {
    unit: Vec<u8>,
    times: u8,
}

/// The body size that every content header states.
pub const BODY_SIZE: u64 = 9;
/// The smallest frame size that is negotiated.
pub const LEAST_FRAME_MAX: usize = 4096;
/// The name of [`Properties::delivery_count`].
pub const DELIVERY_COUNT: &str = "x-delivery-count";
/// Levels of tables and arrays that are passed on, the header table itself included.
const MAX_DEPTH: u16 = 32;
/// Headers of one message.
const MAX_HEADERS: usize = 200;

#[derive(Arbitrary, Debug)]
pub enum Part {
    Method { channel: bool, method: Method },
    Header { channel: bool, header: Header },
    Body(Vec<u8>),
    Heartbeat,
}

#[derive(Arbitrary, Debug)]
pub enum Method {
    Start { version: Text },
    Tune { frame_max: u32 },
    OpenOk { host: Text },
    Blocked { reason: Text },
    ConnectionClose { text: Text },
    ChannelClose { text: Text },
    DeclareOk { queue: Text },
    ConsumeOk { tag: Text },
    Cancel { tag: Text },
    CancelOk { tag: Text },
    Ack { tag: u64 },
    Deliver { tag: Text, exchange: Text, routing_key: Text },
    Return { text: Text, exchange: Text, routing_key: Text },
    GetOk { exchange: Text, routing_key: Text },
}

/// A content header.
#[derive(Arbitrary, Debug)]
pub enum Header {
    /// Flags and properties without any structure.
    Raw { flags: u16, properties: Vec<u8> },
    /// Properties of the right lengths.
    Whole(Properties),
    /// The same, with single octets changed after that.
    Damaged(Properties, [Damage; 2]),
}

#[derive(Arbitrary, Debug)]
pub struct Properties {
    /// In the order of their flags.
    pub texts: [Option<Text>; 10],
    /// A header that the broker writes for its consumers.
    pub delivery_count: Option<i64>,
    pub headers: Option<Vec<(Name, Value)>>,
    pub delivery_mode: Option<u8>,
    pub priority: Option<u8>,
    pub timestamp: Option<u64>,
    /// Fills the frame up to the smallest size that is negotiated, and two bytes more or less.
    pub fill: Option<i8>,
}

#[derive(Arbitrary, Debug)]
pub enum Name {
    Mark,
    Numbered(u8),
    Any(Text),
}

#[derive(Arbitrary, Debug)]
pub enum Value {
    /// A type of a fixed size, or none, and what follows.
    Fixed(Octet, [u8; 8]),
    Text(Vec<u8>),
    /// So many times five octets.
    Large {
        bytes: bool,
        size: u16,
    },
    Table(Vec<(Text, i32)>),
    Array(Vec<u8>),
    /// Tables or arrays in each other.
    Nested {
        array: bool,
        levels: Levels,
        inner: Vec<u8>,
    },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Levels {
    AboutMost(u8),
    Any(u16),
}

#[derive(Arbitrary, Debug)]
pub enum Octet {
    Known(u8),
    Any(u8),
}

#[derive(Arbitrary, Debug)]
pub struct Damage {
    at: u16,
    how: u8,
    octet: u8,
}

/// The types of a fixed size, with it.
const FIXED: [(u8, usize); 15] = [
    (b'V', 0),
    (b't', 1),
    (b'b', 1),
    (b'B', 1),
    (b's', 2),
    (b'U', 2),
    (b'u', 2),
    (b'I', 4),
    (b'i', 4),
    (b'f', 4),
    (b'D', 5),
    (b'L', 8),
    (b'l', 8),
    (b'd', 8),
    (b'T', 8),
];

fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).expect("a small payload");
    [&[kind][..], &channel.to_be_bytes(), &size.to_be_bytes(), payload, &[0xCE]].concat()
}

fn short(text: &[u8]) -> Vec<u8> {
    let text = &text[..text.len().min(255)];
    [&[text.len() as u8], text].concat()
}

fn long(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat()
}

impl Group {
    pub fn parts(self) -> Vec<Part> {
        match self {
            Self::One(part) => vec![part],
            Self::Message { channel, routing_key, header, body } => {
                let method = Method::Deliver { tag: Text::default(), exchange: Text::default(), routing_key };
                vec![Part::Method { channel, method }, Part::Header { channel, header }, Part::Body(body)]
            }
        }
    }
}

impl Part {
    pub fn frame(&self) -> Vec<u8> {
        match self {
            Self::Method { channel, method } => frame(1, (*channel).into(), &method.payload()),
            Self::Header { channel, header } => frame(2, (*channel).into(), &header.payload()),
            Self::Body(body) => frame(3, 1, body),
            Self::Heartbeat => frame(8, 0, b""),
        }
    }
}

impl Method {
    /// Whether a content header follows.
    pub fn has_content(&self) -> bool {
        matches!(self, Self::Deliver { .. } | Self::Return { .. } | Self::GetOk { .. })
    }

    fn payload(&self) -> Vec<u8> {
        match self {
            Self::Start { version } => {
                let server = [&short(b"version")[..], b"S", &long(&version.bytes())].concat();
                [&[0, 10, 0, 10, 0, 9][..], &long(&server), &long(b"PLAIN"), &long(b"en_US")].concat()
            }
            Self::Tune { frame_max } => {
                [&[0, 10, 0, 30, 7, 255][..], &frame_max.to_be_bytes(), &[0, 60]].concat()
            }
            Self::OpenOk { host } => [&[0, 10, 0, 41][..], &host.encoded()].concat(),
            Self::Blocked { reason } => [&[0, 10, 0, 60][..], &reason.encoded()].concat(),
            Self::ConnectionClose { text } => {
                [&[0, 10, 0, 50, 1, 64][..], &text.encoded(), &[0, 60, 0, 40]].concat()
            }
            Self::ChannelClose { text } => {
                [&[0, 20, 0, 40, 1, 0x94][..], &text.encoded(), &[0, 60, 0, 40]].concat()
            }
            Self::DeclareOk { queue } => [&[0, 50, 0, 11][..], &queue.encoded(), &[0; 8]].concat(),
            Self::ConsumeOk { tag } => [&[0, 60, 0, 21][..], &tag.encoded()].concat(),
            Self::Cancel { tag } => [&[0, 60, 0, 30][..], &tag.encoded(), &[0]].concat(),
            Self::CancelOk { tag } => [&[0, 60, 0, 31][..], &tag.encoded()].concat(),
            Self::Ack { tag } => [&[0, 60, 0, 80][..], &tag.to_be_bytes(), &[0]].concat(),
            Self::Deliver { tag, exchange, routing_key } => {
                [&[0, 60, 0, 60][..], &tag.encoded(), &[0; 9], &exchange.encoded(), &routing_key.encoded()]
                    .concat()
            }
            Self::Return { text, exchange, routing_key } => {
                [&[0, 60, 0, 50, 1, 56][..], &text.encoded(), &exchange.encoded(), &routing_key.encoded()]
                    .concat()
            }
            Self::GetOk { exchange, routing_key } => {
                [&[0, 60, 0, 71][..], &[0; 9], &exchange.encoded(), &routing_key.encoded(), &[0; 4]].concat()
            }
        }
    }
}

impl Header {
    fn payload(&self) -> Vec<u8> {
        let (flags, properties) = match self {
            Self::Raw { flags, properties } => (*flags, properties.clone()),
            Self::Whole(properties) | Self::Damaged(properties, _) => properties.encoded(),
        };
        let fixed = [&[0, 60, 0, 0][..], &BODY_SIZE.to_be_bytes()].concat();
        let mut payload = [&fixed[..], &flags.to_be_bytes(), &properties].concat();
        if let Self::Damaged(_, damages) = self {
            for damage in damages {
                damage.apply(&mut payload);
            }
        }
        payload
    }

    /// Whether tables or arrays are nested deeper than lapin's parser stands.
    pub fn too_deep(&self) -> bool {
        let Self::Whole(Properties { headers: Some(headers), .. }) = self else { return false };
        headers
            .iter()
            .take(MAX_HEADERS)
            .any(|(_, value)| matches!(value, Value::Nested { levels, .. } if levels.count() >= MAX_DEPTH))
    }

    /// The properties, if every one of them can be recovered: all lengths are right, and nothing was cut
    /// because the frame is larger than what the filter keeps.
    pub fn intact(&self, kept: usize) -> Option<&Properties> {
        match self {
            Self::Whole(properties) if self.payload().len() + 8 <= kept => Some(properties),
            _ => None,
        }
    }
}

impl Properties {
    /// The broker's counts, where no other header has that name.
    pub fn only_delivery_count(&self) -> Option<i64> {
        let others = self.headers.as_ref()?.iter().any(|(name, _)| name.is_delivery_count());
        self.delivery_count.filter(|_| !others)
    }

    /// Flags and properties.
    fn encoded(&self) -> (u16, Vec<u8>) {
        let (flags, bytes) = self.encoded_with(&[]);
        let Some(n) = self.fill else { return (flags, bytes) };
        let filled = |size: usize| [&b"\x01fS"[..], &long(&vec![b'z'; size])].concat();
        let frame = 8 + 14 + bytes.len() + filled(0).len();
        self.encoded_with(&filled(LEAST_FRAME_MAX.wrapping_add_signed((n % 3).into()).saturating_sub(frame)))
    }

    fn encoded_with(&self, last_header: &[u8]) -> (u16, Vec<u8>) {
        let text = |n: usize| self.texts[n].as_ref().map(Text::encoded);
        let headers = self.headers.as_ref().map(|headers| {
            let mut table = Vec::new();
            if let Some(count) = self.delivery_count {
                table = [&short(DELIVERY_COUNT.as_bytes())[..], b"l", &count.to_be_bytes()].concat();
            }
            for (name, value) in headers.iter().take(MAX_HEADERS) {
                table.extend([name.encoded(), value.encoded()].concat());
            }
            table.extend(last_header);
            long(&table)
        });
        let octet = |octet: Option<u8>| octet.map(|octet| vec![octet]);
        let all = [
            text(0),
            text(1),
            headers,
            octet(self.delivery_mode),
            octet(self.priority),
            text(2),
            text(3),
            text(4),
            text(5),
            self.timestamp.map(|time| time.to_be_bytes().to_vec()),
            text(6),
            text(7),
            text(8),
            text(9),
        ];
        let flags = all.iter().enumerate().filter(|(_, it)| it.is_some()).map(|(n, _)| 1 << (15 - n)).sum();
        (flags, all.into_iter().flatten().flatten().collect())
    }
}

impl Text {
    /// As many as a short string may have.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.unit.repeat(usize::from(self.times) + 1);
        bytes.truncate(255);
        bytes
    }

    fn encoded(&self) -> Vec<u8> {
        short(&self.bytes())
    }
}

impl Name {
    /// Whether it names the header that the broker writes.
    fn is_delivery_count(&self) -> bool {
        matches!(self, Self::Any(name) if name.bytes() == DELIVERY_COUNT.as_bytes())
    }

    fn encoded(&self) -> Vec<u8> {
        match self {
            Self::Mark => short(b"garenne-unreadable"),
            Self::Numbered(n) => short(&[b'h', b'0' + n % 10]),
            Self::Any(name) => name.encoded(),
        }
    }
}

impl Value {
    fn encoded(&self) -> Vec<u8> {
        match self {
            Self::Fixed(Octet::Known(n), bytes) => {
                let (octet, size) = FIXED[usize::from(*n) % FIXED.len()];
                [&[octet], &bytes[..size]].concat()
            }
            Self::Fixed(Octet::Any(octet), bytes) => [&[*octet][..], bytes].concat(),
            Self::Text(text) => [&b"S"[..], &long(text)].concat(),
            Self::Large { bytes, size } => {
                let octet = if *bytes { b'x' } else { b'S' };
                [&[octet][..], &long(&vec![b'y'; usize::from(*size) * 5])].concat()
            }
            Self::Table(entries) => {
                let entry =
                    |(name, value): &(Text, i32)| [&name.encoded()[..], b"I", &value.to_be_bytes()].concat();
                [&b"F"[..], &long(&entries.iter().flat_map(entry).collect::<Vec<_>>())].concat()
            }
            Self::Array(octets) => {
                [&b"A"[..], &long(&octets.iter().flat_map(|octet| [b'B', *octet]).collect::<Vec<_>>())]
                    .concat()
            }
            Self::Nested { array, levels, inner } => {
                let mut inner = inner.clone();
                for level in 0..levels.count() {
                    // Only the innermost is arbitrary; the others hold one entry each.
                    let (name, octet): (&[u8], _) = if *array { (b"", b'A') } else { (b"\x01n", b'F') };
                    let name = if level + 1 == levels.count() { b"" } else { name };
                    inner = [name, &[octet], &long(&inner)].concat();
                }
                if inner.is_empty() { b"V".to_vec() } else { inner }
            }
        }
    }
}

impl Levels {
    fn count(self) -> u16 {
        match self {
            Self::AboutMost(n) => MAX_DEPTH - 4 + u16::from(n % 8),
            Self::Any(levels) => levels % 300,
        }
    }
}

impl Damage {
    fn apply(&self, payload: &mut Vec<u8>) {
        if payload.is_empty() {
            return;
        }
        let at = usize::from(self.at) % payload.len();
        match self.how % 4 {
            0 => payload[at] ^= 1 << (self.octet % 8),
            1 => payload[at] = self.octet,
            2 => drop(payload.remove(at)),
            _ => payload.insert(at, self.octet),
        }
    }
}
