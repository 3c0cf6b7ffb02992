//! Examples of frames that are replaced or passed on.

use lapin::types::AMQPValue;

use super::{super::repair::lossy, *};

#[test]
fn short_strings_that_are_not_utf8_are_replaced_and_named() {
    let flags = [
        (15, "content_type"),
        (14, "content_encoding"),
        (10, "correlation_id"),
        (9, "reply_to"),
        (8, "expiration"),
        (7, "message_id"),
        (5, "type"),
        (4, "user_id"),
        (3, "app_id"),
        (2, "cluster_id"),
    ];
    for (bit, name) in flags {
        let properties = received(&raw(2, 1, &header_payload(2, 1 << bit, &short(b"bad\xff"))));
        assert_eq!(unreadable(&properties).unwrap(), format!("{name} is not UTF-8"));
        assert!(format!("{properties:?}").contains("bad\u{fffd}"), "{properties:?}");
    }
}

#[test]
fn readable_properties_of_a_bad_header_are_kept() {
    let table = [&short(b"good")[..], b"I\0\0\0\x05", &short(b"b\xfed"), b"S", &long(b"\xff\xff")].concat();
    let encoded = [&long(&table)[..], &[2], &short(b"id"), &7_u64.to_be_bytes()].concat();
    let flags = 1 << 13 | 1 << 12 | 1 << 7 | 1 << 6;
    let mut properties = received(&raw(2, 1, &header_payload(2, flags, &encoded)));
    assert_eq!(take_unreadable(&mut properties).as_deref(), Some("a header name is not UTF-8"));
    assert_eq!(properties.delivery_mode(), &Some(2));
    assert_eq!(properties.message_id().as_ref().unwrap().as_str(), "id");
    assert_eq!(properties.timestamp(), &Some(7));
    let table = table_of(&properties);
    assert_eq!(table.inner()["good"], AMQPValue::LongInt(5));
    // A long string is bytes.
    assert_eq!(table.inner()["b\u{fffd}d"], AMQPValue::LongString(b"\xff\xff".as_slice().into()));
    assert_eq!(table.inner().len(), 2, "the mark is removed: {table:?}");
}

/// A table that holds a table, and so on; `depth` tables in all.
fn nested(depth: usize, kind: u8) -> Vec<u8> {
    let mut table = Vec::new();
    for _ in 1..depth {
        let name = if kind == b'F' { short(b"a") } else { Vec::new() };
        table = [&name[..], &[kind], &long(&table)].concat();
    }
    if kind == b'F' { table } else { [&short(b"a")[..], &[kind], &long(&table)].concat() }
}

#[test]
fn nesting_is_bounded() {
    for kind in [b'F', b'A'] {
        let levels = |depth| if kind == b'F' { depth } else { depth - 1 };
        let properties = received(&headers(&nested(levels(MAX_DEPTH), kind)));
        assert_eq!(unreadable(&properties), None);
        for depth in [MAX_DEPTH + 1, 300, 3000, 15_000] {
            let properties = received(&headers(&nested(levels(depth), kind)));
            let expected = "headers are nested more than 32 levels deep";
            assert!(unreadable(&properties).unwrap().starts_with(expected), "{depth}");
        }
    }
}

#[test]
fn unknown_types_and_wrong_lengths_are_named() {
    let named = |header: &[u8]| unreadable(&received(header)).expect("a mark").to_owned();
    let odd = [&short(b"before")[..], b"t\x01", &short(b"odd"), b"zsomething"].concat();
    assert_eq!(named(&headers(&odd)), "a header has the unknown type 0x7a");
    assert!(table_of(&received(&headers(&odd))).contains_key("before"));
    let cut = [&short(b"cut")[..], b"S\0\0\x01\0abc"].concat();
    assert_eq!(named(&headers(&cut)), "the length of a header is wrong");
    let table = table_of(&received(&headers(&cut))).clone();
    assert_eq!(table.inner()["cut"], AMQPValue::LongString("abc".into()));
    assert_eq!(named(&headers(b"\x20name")), "the length of a header name is wrong");
    let message_id = raw(2, 1, &header_payload(2, 1 << 7, b"\x20short"));
    assert_eq!(named(&message_id), "the length of message_id is wrong");
    let left_over = raw(2, 1, &header_payload(2, 0, b"more"));
    assert_eq!(named(&left_over), "the length of the properties is wrong");
    assert_eq!(
        named(&raw(2, 1, b"\0\x3c\0\0\0\0\0\0\0\0\0\x02")),
        "the length of the content header is wrong"
    );
}

fn text(name: &[u8], bytes: usize) -> Vec<u8> {
    [&short(name)[..], b"S", &long(&vec![b'x'; bytes])].concat()
}

#[test]
fn a_header_frame_over_frame_max_keeps_its_small_headers() {
    let offset = [&short(b"x-stream-offset")[..], b"l", &9_u64.to_be_bytes()].concat();
    let table = [&text(b"small", 10)[..], &text(b"big", 70_000), &text(b"bigger", 70_000), &offset].concat();
    let properties = received(&headers(&table));
    let problem = unreadable(&properties).unwrap();
    let bytes = headers(&table).len();
    let expected = format!("the header frame has {bytes} bytes, frame_max is 131072; 2 headers are left out");
    assert_eq!(problem, expected);
    let names: Vec<_> = table_of(&properties).inner().keys().map(|name| name.as_str()).collect();
    assert_eq!(names, [UNREADABLE, "small", "x-stream-offset"]);

    // Headers that the broker writes for consumers stay, even if all others are smaller.
    let many: Vec<u8> =
        (0..30_000_u32).flat_map(|n| [&short(&n.to_be_bytes()[1..])[..], b"V"].concat()).collect();
    let properties = received(&headers(&[&many[..], &offset].concat()));
    assert!(table_of(&properties).contains_key("x-stream-offset"));
}

#[test]
fn the_rest_of_a_frame_over_the_buffer_limit_is_dropped() {
    let large = headers(&[&text(b"small", 10)[..], &text(b"big", 3 << 20)].concat());
    let properties = received(&large);
    assert!(unreadable(&properties).unwrap().contains("the header frame has"));
    assert!(table_of(&properties).contains_key("small"));
}

#[test]
fn a_replaced_header_fits_the_smallest_frame() {
    let tune = [&[0, 10, 0, 30, 0, 0][..], &4096_u32.to_be_bytes(), &[0, 0]].concat();
    let mut filter = filter();
    assert_eq!(filtered(&mut filter, [&raw(1, 0, &tune)[..]]), raw(1, 0, &tune));
    let bad: Vec<u8> = (0..10).flat_map(|_| short(&[0xff; 255])).collect();
    let flags = 0b1100_0111_1011_1100;
    let out = filtered(&mut filter, [&raw(2, 1, &header_payload(2, flags, &bad))[..]]);
    assert!(out.len() <= 4096, "{}", out.len());
    let frames = parsed(&out);
    assert!(unreadable(&header_of(&frames).properties).is_some());
    let table = [&text(b"a", 2000)[..], &text(b"b", 3000)].concat();
    let out = filtered(&mut filter, [&headers(&table)[..]]);
    assert!(out.len() <= 4096, "{}", out.len());
    assert_eq!(
        unreadable(&header_of(&parsed(&out)).properties).unwrap(),
        "the header frame has 5040 bytes, frame_max is 4096; 1 header is left out"
    );
    // The headers fit by themselves, but not beside the other properties.
    let texts = |count| (0..count).flat_map(|_| short(&[b'x'; 255])).collect::<Vec<_>>();
    let encoded = [texts(2), long(&text(b"a", 2000)), texts(8)].concat();
    let out = filtered(&mut filter, [&raw(2, 1, &header_payload(2, flags | 1 << 13, &encoded))[..]]);
    assert!(out.len() <= 4096, "{}", out.len());
    assert_eq!(
        unreadable(&header_of(&parsed(&out)).properties).unwrap(),
        "the header frame has 4593 bytes, frame_max is 4096; 1 header is left out"
    );
}

#[test]
fn a_routing_key_that_is_not_utf8_marks_only_its_message() {
    let good = good_header(BasicProperties::default().with_message_id("7".into()), 0);
    for (exchange, key, name) in
        [(&b"x"[..], &b"k\xff"[..], "the routing key"), (b"\xff", b"k", "the exchange name")]
    {
        let stream = [&deliver(exchange, key)[..], &good, &deliver(b"x", b"k"), &good].concat();
        let out = filtered(&mut filter(), [&stream[..]]);
        let frames = parsed(&out);
        let problems: Vec<_> = frames
            .iter()
            .filter_map(|frame| match frame {
                AMQPFrame::Header(_, header) => Some(unreadable(&header.properties)),
                _ => None,
            })
            .collect();
        assert_eq!(problems, [Some(format!("{name} is not UTF-8").as_str()), None]);
        let (first, second) = (format!("{:?}", frames[0]), format!("{:?}", frames[2]));
        assert!(first.contains('\u{fffd}') && !second.contains('\u{fffd}'), "{first} {second}");
        assert!(out.ends_with(&[&deliver(b"x", b"k")[..], &good].concat()), "the good message is unchanged");
    }
}

#[test]
fn a_reply_text_truncated_within_a_character_does_not_end_the_connection() {
    let text = [&[b'a'; 251][..], b"\xc3..."].concat();
    let close = raw(1, 1, &[&[0, 20, 0, 40, 1, 0x94][..], &short(&text), &[0, 60, 0, 40]].concat());
    let frames = parsed(&filtered(&mut filter(), [&close[..]]));
    let shown = format!("{:?}", frames[0]);
    assert!(shown.contains("reply_code: 404") && shown.contains("class_id: 60"), "{shown}");
}

#[test]
fn a_lossy_short_string_has_at_most_255_bytes() {
    assert_eq!(lossy(&[0xff; 255]).as_str().len(), 255);
    assert_eq!(lossy(&[&[b'a'; 254][..], b"\xff"].concat()).as_str(), "a".repeat(254));
    assert_eq!(lossy("é".as_bytes()).as_str(), "é");
}

#[test]
fn a_forged_mark_is_an_ordinary_header() {
    let forged = text(UNREADABLE.as_bytes(), 40);
    let mut properties = received(&headers(&forged));
    assert_eq!(take_unreadable(&mut properties), None);
    assert!(table_of(&properties).contains_key(UNREADABLE), "kept like any other header");
    // In a message that is replaced, the real mark takes its place.
    let properties = received(&headers(&[&forged[..], &short(b"\xff"), b"V"].concat()));
    assert_eq!(unreadable(&properties), Some("a header name is not UTF-8"));
}

#[test]
fn the_version_is_read_from_connection_start() {
    let capabilities = [&short(b"basic.nack")[..], b"t\x01"].concat();
    let server = [
        &short(b"capabilities")[..],
        b"F",
        &long(&capabilities),
        &short(b"product"),
        b"S",
        &long(b"RabbitMQ"),
        &short(b"version"),
        b"S",
        &long(b"3.10.8"),
    ]
    .concat();
    let start = [&[0, 10, 0, 10, 0, 9][..], &long(&server), &long(b"PLAIN"), &long(b"en_US")].concat();
    for cut in 0..start.len() {
        let version = Arc::new(OnceLock::new());
        let mut filter = FrameFilter::new(FRAME_MAX, Arc::clone(&version));
        let frame = raw(1, 0, &start);
        assert_eq!(filtered(&mut filter, [&frame[..cut], &frame[cut..]]), frame);
        assert_eq!(version.get().map(ToString::to_string).as_deref(), Some("3.10"));
    }
}

#[test]
fn bytes_that_are_not_amqp_pass_unchanged() {
    let no_end = raw(2, 1, &header_payload(2, 0, b"")).iter().map(|byte| byte & 0x7f).collect::<Vec<_>>();
    for bytes in [
        &b"AMQP\0\0\x09\x01"[..],
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x01\0\0\xff\xff\xff\xff\xff",
        &no_end,
    ] {
        assert_eq!(filtered(&mut filter(), bytes.chunks(3)), bytes);
    }
}
