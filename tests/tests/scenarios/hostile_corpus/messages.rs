//! The corpus: hostile messages that any client may publish.

use std::fmt::{self, Display, Formatter};

use garenne_tests::harness::raw_amqp::{Property, RawMessage, Table};
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};

/// Digits of a message's number in its body.
pub(super) const DIGITS: usize = 8;

/// Bytes of a message's properties that a failure shows.
const MAX_SHOWN: usize = 400;

const BATCH: &str = "application/vnd.garenne.batch+json";

/// Headers that Garenne programs write or read, among others.
const HEADERS: [&str; 27] = [
    "garenne-attempt",
    "garenne-timeout-ms",
    "garenne-delay-ms",
    "garenne-not-before",
    "garenne-group",
    "garenne-key",
    "garenne-expires-at",
    "garenne-user-id",
    "garenne-quarantine-runs",
    "garenne-quarantine-armed",
    "garenne-quarantine-incarnation",
    "garenne-depth",
    "garenne-parent",
    "garenne-reason",
    "garenne-error",
    "garenne-worker",
    "garenne-first-seen",
    "garenne-died-at",
    "garenne-lane",
    "garenne-replayed-at",
    "garenne-anything",
    "garenne-malformed",
    "traceparent",
    "tracestate",
    "x-death",
    "x-delivery-count",
    "x-first-death-queue",
];

/// Delays. A valid value delays the task for up to a month, so the corpus only has values out of range.
const DELAYS: [&str; 2] = ["garenne-delay-ms", "garenne-not-before"];

/// Properties that the broker itself checks. It refuses messages with bad values.
const CHECKED: [Property; 2] = [Property::Expiration, Property::UserId];

/// A message and a description of its changes.
pub(super) struct Hostile {
    pub(super) message: RawMessage,
    pub(super) what: String,
    /// Whether the broker may close the connection because of it.
    pub(super) may_close: bool,
    /// Whether its records may have separate outcomes.
    pub(super) is_batch: bool,
}

impl Display for Hostile {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let properties = self.message.encoded_properties();
        let shown = &properties[..properties.len().min(MAX_SHOWN)];
        write!(formatter, "{}; properties {}", self.what, shown.escape_ascii())
    }
}

/// Generates the message with this number. Its body always contains the number.
pub(super) fn hostile(random: &mut StdRng, number: usize, frame_max: usize) -> Hostile {
    let mark = format!("corpus-{number:0DIGITS$}");
    let (exchange, key) = match random.random_range(0..20) {
        0 => ("", "garenne.quarantine"),
        1..=3 => ("", "garenne.tasks.fast"),
        _ => ("garenne.tasks", if random.random_bool(0.2) { "bench.fail" } else { "bench.echo" }),
    };
    let mut message = RawMessage::to(exchange, key)
        .property(Property::DeliveryMode, [2])
        .body(format!(r#"{{"mark":"{mark}","times":4294967295}}"#));
    if exchange.is_empty() {
        message = message.property(Property::Type, "bench.echo");
    }
    if random.random_bool(0.5) {
        message = message.property(Property::MessageId, &mark);
    }
    let mut made =
        Hostile { message, what: format!("to {exchange:?} {key:?}"), may_close: false, is_batch: false };
    let mut headers = Table::new();
    for _ in 0..random.random_range(1..=3) {
        change(random, &mut made, &mut headers, &mark);
    }
    if !headers.0.is_empty() {
        made.message = made.message.headers(&headers);
    }
    if random.random_bool(0.03) {
        // Up to the largest frame that the broker accepts.
        let size = frame_max + random.random_range(0..=40) - 32;
        if made.message.header().len() + 64 < size {
            made.what += &format!("; a header frame of {size} bytes");
            made.message = made.message.padded_to(&headers, size);
        }
    }
    if random.random_bool(0.08) {
        mutate(random, &mut made);
    }
    made
}

/// Makes one random change to a message.
fn change(random: &mut StdRng, made: &mut Hostile, headers: &mut Table, mark: &str) {
    let message = std::mem::take(&mut made.message);
    let what;
    made.message = match random.random_range(0..14) {
        0..=1 => {
            let property = short_string(random);
            let value = bad_text(random);
            what = format!("{property:?} is {value:x?}");
            message.property(property, value)
        }
        2 => {
            let property = short_string(random);
            let length = *[0, 1, 128, 129, 255].choose(random).expect("a choice");
            let character = *b"a\0\x1b\n\xc3".choose(random).expect("a choice");
            what = format!("{property:?} is {length} times {character:#x}");
            message.property(property, vec![character; length])
        }
        3 => {
            let name = bad_text(random);
            what = format!("a header's name is {name:x?}");
            *headers = std::mem::take(headers).text(name, "value");
            message
        }
        4 if message.exchange == b"garenne.tasks" => {
            let key = [b"bench.", &bad_text(random)[..]].concat();
            what = format!("the routing key is {key:x?}");
            let mut message = message;
            message.routing_key = key;
            message
        }
        4..=5 => {
            let (kind, value) = field(random, 3);
            what = format!("a header of type {:?}", char::from(kind));
            *headers = std::mem::take(headers).field("any", kind, &value);
            message
        }
        6 => {
            let levels = *[2, 20, 60, 130, 300, 1_000, 3_000, 9_000].choose(random).expect("a choice");
            let arrays = random.random_bool(0.5);
            what = format!("{levels} levels, of arrays: {arrays}");
            let deep = if arrays { Table::nested_arrays(levels) } else { Table::nested_tables(levels) };
            if headers.0.len() + deep.0.len() < 100_000 {
                *headers = std::mem::take(headers).table("deep", &deep);
            }
            message
        }
        7..=8 => {
            let name = *HEADERS.choose(random).expect("a header");
            let (kind, value, shown) = header_value(random, DELAYS.contains(&name));
            what = format!("{name} is {shown}");
            *headers = std::mem::take(headers).field(name, kind, &value);
            message
        }
        9 => {
            let count = *[1, 16, 700, 131_056, 131_064, 131_065, 262_200].choose(random).expect("a choice");
            let mut body = mark.as_bytes().to_vec();
            body.extend((0..count).map(|_| random.random::<u8>()));
            what = format!("a body of {count} random bytes");
            message.body(body)
        }
        10 => {
            let levels = *[10, 127, 128, 5_000].choose(random).expect("a choice");
            let body = format!(r#"{{"mark":"{mark}","deep":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
            what = format!("JSON of {levels} levels");
            message.body(body)
        }
        11 => {
            made.is_batch = true;
            let body = batch(random, mark);
            what = format!("a batch {}", body.chars().take(60).collect::<String>());
            message.property(Property::ContentType, BATCH).body(body)
        }
        12 => {
            let seconds = number(random);
            what = format!("timestamp {seconds}, any priority and delivery mode");
            message
                .property(Property::Timestamp, seconds.to_be_bytes())
                .property(Property::Priority, [random.random()])
                .property(Property::DeliveryMode, [random.random()])
        }
        _ => {
            let expiration = *["0", "1", "50", "4294967295"].choose(random).expect("a choice");
            what = format!("expiration {expiration}");
            message.property(Property::Expiration, expiration)
        }
    };
    made.what += "; ";
    made.what += &what;
}

/// Changes, inserts or removes a few bytes of the encoded properties.
fn mutate(random: &mut StdRng, made: &mut Hostile) {
    let mut bytes = made.message.encoded_properties();
    for _ in 0..random.random_range(1..=4) {
        let at = random.random_range(0..bytes.len());
        match random.random_range(0..3) {
            0 => bytes[at] = random.random(),
            1 => bytes.insert(at, random.random()),
            _ if bytes.len() > 2 => drop(bytes.remove(at)),
            _ => {}
        }
    }
    made.what += "; mutated properties";
    made.may_close = true;
    made.message = std::mem::take(&mut made.message).raw_properties(bytes);
}

fn short_string(random: &mut StdRng) -> Property {
    let free = |property: &Property| property.is_short_string() && !CHECKED.contains(property);
    let all: Vec<_> = Property::ALL.into_iter().filter(free).collect();
    *all.choose(random).expect("a property")
}

/// Text that is not UTF-8, or UTF-8 with control characters.
fn bad_text(random: &mut StdRng) -> Vec<u8> {
    let known: [&[u8]; 10] = [
        b"\xff",
        b"\xc0\x80",
        b"a\x80b",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xe2\x82",
        b"\0",
        b"\x1b[2J",
        "\u{202e}gnp".as_bytes(),
        b"\xfe\xff\0a",
    ];
    if random.random_bool(0.5) {
        return known.choose(random).expect("a text").to_vec();
    }
    (0..random.random_range(1..=40)).map(|_| random.random()).collect()
}

fn number(random: &mut StdRng) -> i64 {
    let known = [0, 1, -1, 255, 1 << 31, 1_790_000_000, 1_790_000_000_000, 1_790_000_000_000_000_000];
    match random.random_range(0..4) {
        0 => i64::MIN,
        1 => i64::MAX,
        2 => random.random(),
        _ => *known.choose(random).expect("a number"),
    }
}

/// Type, value and description of a header that Garenne programs read.
fn header_value(random: &mut StdRng, out_of_range: bool) -> (u8, Vec<u8>, String) {
    let sized = |text: &[u8]| Table(text.to_vec()).sized();
    match random.random_range(if out_of_range { 2..7 } else { 0..7 }) {
        0 => {
            let number = number(random);
            (b'l', number.to_be_bytes().to_vec(), number.to_string())
        }
        1 => {
            let number = number(random).to_string();
            (b'S', sized(number.as_bytes()), format!("{number:?}"))
        }
        2 => {
            let length = *[0, 1, 128, 239, 240, 255, 256, 300, 20_000].choose(random).expect("a choice");
            (b'S', sized(&vec![b'q'; length]), format!("{length} bytes of text"))
        }
        3 => {
            let text = bad_text(random);
            (b'S', sized(&text), format!("{text:x?}"))
        }
        4 => {
            let text =
                *["ghost", "fast", "slow", "-1", "1e9", "99999999999999999999", "garenne.dead", "#", "../x"]
                    .choose(random)
                    .expect("a text");
            (b'S', sized(text.as_bytes()), format!("{text:?}"))
        }
        5 => {
            (b'l', (-1_i64 - i64::from(random.random::<u32>())).to_be_bytes().to_vec(), "negative".to_owned())
        }
        _ => {
            let (kind, value) = loop {
                let (kind, value) = field(random, 2);
                if !b"bBsuiIlT".contains(&kind) {
                    break (kind, value);
                }
            };
            (kind, value, format!("of type {:?}", char::from(kind)))
        }
    }
}

/// A field of a random type that the broker knows, with a random value.
fn field(random: &mut StdRng, depth: usize) -> (u8, Vec<u8>) {
    let kind = *b"tbBsuIilfdDTSxAFV".choose(random).expect("a type");
    let size = match kind {
        b't' | b'b' | b'B' => 1,
        b's' | b'u' => 2,
        b'I' | b'i' | b'f' => 4,
        b'D' => 5,
        b'l' | b'd' | b'T' => 8,
        _ => 0,
    };
    let mut value: Vec<u8> = (0..size).map(|_| random.random()).collect();
    let inner = if depth == 0 { 0 } else { random.random_range(0..4) };
    match kind {
        b'S' | b'x' => {
            value = Table((0..random.random_range(0..300)).map(|_| random.random()).collect()).sized();
        }
        b'F' => {
            let mut table = Table::new();
            for n in 0..inner {
                let (kind, value) = field(random, depth - 1);
                let name =
                    if random.random_bool(0.2) { bad_text(random) } else { format!("n{n}").into_bytes() };
                table = table.field(name, kind, &value);
            }
            value = table.sized();
        }
        b'A' => {
            let mut array = Table::new();
            for _ in 0..inner {
                let (kind, value) = field(random, depth - 1);
                array = array.value(kind, &value);
            }
            value = array.sized();
        }
        _ => {}
    }
    (kind, value)
}

/// The body of an invalid batch, or of one with invalid records.
fn batch(random: &mut StdRng, mark: &str) -> String {
    let record = |id: &str| format!(r#"{{"id":{id},"payload":{{"mark":"{mark}","times":4294967295}}}}"#);
    match random.random_range(0..8) {
        0 => format!("[{mark}"),
        1 => format!(r#"[]"{mark}""#),
        2 => format!("[{}]", record("7")),
        3 => format!("[{}]", record(r#""""#)),
        4 => format!("[{}]", record(&format!("{:?}", "i".repeat(129)))),
        5 => format!("[{}]", vec![record(r#""same""#); 1001].join(",")),
        6 => format!(r#"[{},{{"id":"x","payload":[[[[]]]],"senml":true}}]"#, record(r#""fine""#)),
        _ => format!(r#"{{"mark":"{mark}"}}"#),
    }
}
