//! Property tests: any traffic, in any chunks.

use amq_protocol::frame::parsing::parse_content_header;
use lapin::types::{AMQPValue, DecimalValue, FieldArray, ShortString};
use proptest::{collection::vec, prelude::*};

use super::{super::check::Problem, *};

fn short_string() -> impl Strategy<Value = ShortString> {
    "[a-zé\u{1F980}.-]{0,20}".prop_map(ShortString::from)
}

fn value() -> impl Strategy<Value = AMQPValue> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(AMQPValue::Boolean),
        any::<i8>().prop_map(AMQPValue::ShortShortInt),
        any::<u8>().prop_map(AMQPValue::ShortShortUInt),
        any::<i16>().prop_map(AMQPValue::ShortInt),
        any::<u16>().prop_map(AMQPValue::ShortUInt),
        any::<i32>().prop_map(AMQPValue::LongInt),
        any::<u32>().prop_map(AMQPValue::LongUInt),
        any::<i64>().prop_map(AMQPValue::LongLongInt),
        any::<i32>().prop_map(|n| AMQPValue::Float(n as f32)),
        any::<i64>().prop_map(|n| AMQPValue::Double(n as f64)),
        (any::<u8>(), any::<u32>())
            .prop_map(|(scale, value)| AMQPValue::DecimalValue(DecimalValue { scale, value })),
        vec(any::<u8>(), 0..20).prop_map(|bytes| AMQPValue::LongString(bytes.into())),
        vec(any::<u8>(), 0..20).prop_map(|bytes| AMQPValue::ByteArray(bytes.into())),
        any::<u64>().prop_map(AMQPValue::Timestamp),
        Just(AMQPValue::Void),
    ];
    leaf.prop_recursive(4, 16, 4, |inner| {
        prop_oneof![
            table(inner.clone()).prop_map(AMQPValue::FieldTable),
            vec(inner, 0..4).prop_map(|values| AMQPValue::FieldArray(FieldArray::from(values))),
        ]
    })
}

fn table(of: impl Strategy<Value = AMQPValue>) -> impl Strategy<Value = FieldTable> {
    vec((short_string(), of), 0..5).prop_map(|entries| {
        let mut table = FieldTable::default();
        for (name, value) in entries {
            table.insert(name, value);
        }
        table
    })
}

fn properties() -> impl Strategy<Value = BasicProperties> {
    let optional = || proptest::option::of(short_string());
    let octets = (proptest::option::of(any::<u8>()), proptest::option::of(any::<u64>()));
    (vec(optional(), 10), octets, proptest::option::of(table(value()))).prop_map(
        |(texts, (octet, time), headers)| {
            let mut properties = BasicProperties::default();
            let with: [fn(BasicProperties, ShortString) -> BasicProperties; 10] = [
                BasicProperties::with_content_type,
                BasicProperties::with_content_encoding,
                BasicProperties::with_correlation_id,
                BasicProperties::with_reply_to,
                BasicProperties::with_expiration,
                BasicProperties::with_message_id,
                BasicProperties::with_type,
                BasicProperties::with_user_id,
                BasicProperties::with_app_id,
                BasicProperties::with_cluster_id,
            ];
            for (with, text) in with.into_iter().zip(texts) {
                properties = text.into_iter().fold(properties, with);
            }
            properties = octet.into_iter().fold(properties, BasicProperties::with_priority);
            properties = octet.into_iter().fold(properties, BasicProperties::with_delivery_mode);
            properties = time.into_iter().fold(properties, BasicProperties::with_timestamp);
            headers.into_iter().fold(properties, BasicProperties::with_headers)
        },
    )
}

/// Changes, removals and insertions of single bytes.
fn mutations() -> impl Strategy<Value = Vec<(prop::sample::Index, u8, u8)>> {
    vec((any::<prop::sample::Index>(), 0..4_u8, any::<u8>()), 0..4)
}

fn mutated(mut bytes: Vec<u8>, mutations: &[(prop::sample::Index, u8, u8)]) -> Vec<u8> {
    for (at, how, byte) in mutations {
        if bytes.is_empty() {
            break;
        }
        let at = at.index(bytes.len());
        match how {
            0 => bytes[at] ^= 1 << (byte % 8),
            1 => bytes[at] = *byte,
            2 => drop(bytes.remove(at)),
            _ => bytes.insert(at, *byte),
        }
    }
    bytes
}

/// The frames of a message, of which some may be unparseable.
fn message() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let key = prop_oneof![3 => "[a-z.]{0,30}".prop_map(String::into_bytes), 1 => vec(any::<u8>(), 0..60)];
    let body = vec(any::<u8>(), 0..300);
    (key, properties(), mutations(), body, any::<bool>()).prop_map(
        |(key, properties, mutations, body, beat)| {
            let header = good_header(properties, body.len() as u64);
            let payload = mutated(header[7..header.len() - 1].to_vec(), &mutations);
            let mut frames = vec![deliver(b"garenne.tasks", &key), raw(2, 1, &payload), raw(3, 1, &body)];
            if beat {
                frames.insert(2, raw(8, 0, b""));
            }
            frames
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 600 }))]

    /// The check decides exactly as amq-protocol's parser does.
    #[test]
    fn the_check_agrees_with_the_parser(properties in properties(), mutations in mutations()) {
        let header = good_header(properties, 7);
        let payload = mutated(header[7..header.len() - 1].to_vec(), &mutations);
        let parses = parse_content_header(&payload[..]).is_ok_and(|(rest, _)| rest.is_empty());
        match check::check(&payload) {
            Err(Problem::TooDeep) => {}
            checked => prop_assert_eq!(checked.is_ok(), parses, "{:?}", checked),
        }
    }

    #[test]
    fn random_bytes_are_checked_as_the_parser_does(flags: u16, rest in vec(any::<u8>(), 0..80)) {
        let payload = header_payload(7, flags, &rest);
        let parses = parse_content_header(&payload[..]).is_ok_and(|(rest, _)| rest.is_empty());
        prop_assert_eq!(check::check(&payload).is_ok(), parses);
    }

    /// Each frame yields exactly one frame that can be parsed; a frame that could be parsed is unchanged.
    #[test]
    fn every_output_frame_can_be_parsed(messages in vec(message(), 1..6), sizes in vec(1..400_usize, 1..20)) {
        let frames: Vec<Vec<u8>> = messages.concat();
        let stream = frames.concat();
        let mut rest = &stream[..];
        let mut chunks = Vec::new();
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (chunk, after) = rest.split_at((*size).min(rest.len()));
            chunks.push(chunk);
            rest = after;
        }
        let out = filtered(&mut filter(), chunks);
        let mut bytes = &out[..];
        let mut bad_method = false;
        for frame in &frames {
            let (after, parsed) = parse_frame(bytes).expect("can be parsed");
            let same = &bytes[..bytes.len() - after.len()] == frame.as_slice();
            let could = parse_frame(&frame[..]).is_ok();
            match &parsed {
                AMQPFrame::Method(..) => {
                    prop_assert_eq!(same, could);
                    bad_method = !could;
                }
                AMQPFrame::Header(_, header) => {
                    prop_assert_eq!(same, could && !bad_method);
                    prop_assert_eq!(unreadable(&header.properties).is_none(), same);
                }
                _ => prop_assert!(same),
            }
            bytes = after;
        }
        prop_assert!(bytes.is_empty());
    }
}

#[test]
fn chunk_boundaries_make_no_difference() {
    let bad = raw(2, 1, &header_payload(5, 1 << 7, &short(b"\xff")));
    let good = good_header(BasicProperties::default().with_message_id("id".into()), 5);
    let stream = [
        &deliver(b"x", b"key")[..],
        &bad,
        &raw(3, 1, b"hello"),
        &deliver(b"x", b"k\xff"),
        &good,
        &raw(3, 1, b"hello"),
        &raw(8, 0, b""),
        &deliver(b"x", b"key"),
        &good,
    ]
    .concat();
    let whole = filtered(&mut filter(), [&stream[..]]);
    assert_eq!(parsed(&whole).len(), 9);
    for cut in 0..stream.len() {
        assert_eq!(filtered(&mut filter(), [&stream[..cut], &stream[cut..]]), whole, "cut at {cut}");
    }
    assert_eq!(filtered(&mut filter(), stream.chunks(1)), whole);
}
