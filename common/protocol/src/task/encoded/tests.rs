use amq_protocol::{
    protocol::basic::gen_properties,
    types::{DecimalValue, FieldArray},
};
use proptest::{collection::vec, option, prelude::*};

use super::*;

/// Text that fits a short string.
fn any_short() -> impl Strategy<Value = ShortString> {
    vec(any::<char>(), 0..64).prop_map(|chars| chars.into_iter().collect::<String>().into())
}

/// Any header value, nested ones included; a long string has fewer than `longest` bytes.
pub(in crate::task) fn any_value(longest: usize) -> impl Strategy<Value = AMQPValue> {
    let flat = prop_oneof![
        any::<bool>().prop_map(AMQPValue::Boolean),
        any::<i8>().prop_map(AMQPValue::ShortShortInt),
        any::<u8>().prop_map(AMQPValue::ShortShortUInt),
        any::<i16>().prop_map(AMQPValue::ShortInt),
        any::<u16>().prop_map(AMQPValue::ShortUInt),
        any::<i32>().prop_map(AMQPValue::LongInt),
        any::<u32>().prop_map(AMQPValue::LongUInt),
        any::<i64>().prop_map(AMQPValue::LongLongInt),
        any::<f32>().prop_map(AMQPValue::Float),
        any::<f64>().prop_map(AMQPValue::Double),
        any::<(u8, u32)>().prop_map(|(scale, value)| AMQPValue::DecimalValue(DecimalValue { scale, value })),
        any_short().prop_map(AMQPValue::ShortString),
        (0..longest, any::<u8>()).prop_map(|(length, byte)| AMQPValue::LongString(vec![byte; length].into())),
        any::<u64>().prop_map(AMQPValue::Timestamp),
        vec(any::<u8>(), 0..64).prop_map(|bytes| AMQPValue::ByteArray(bytes.into())),
        Just(AMQPValue::Void),
    ];
    flat.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(|all| AMQPValue::FieldArray(FieldArray::from(all))),
            vec((any_short(), inner), 0..4).prop_map(|all| AMQPValue::FieldTable(table(all))),
        ]
    })
}

fn table(entries: Vec<(ShortString, AMQPValue)>) -> FieldTable {
    entries.into_iter().collect::<std::collections::BTreeMap<_, _>>().into()
}

/// Any properties, each of them optional. Headers have these names or random ones.
pub(in crate::task) fn any_properties(
    names: &'static [&'static str],
    longest: usize,
) -> impl Strategy<Value = BasicProperties> {
    let name = prop_oneof![proptest::sample::select(names).prop_map(ShortString::from), any_short()];
    let texts = vec(option::of(any_short()), 9);
    let headers = option::of(vec((name, any_value(longest)), 0..24));
    let numbers = (option::of(any::<u8>()), option::of(any::<u8>()), option::of(any::<u64>()));
    (texts, headers, numbers).prop_map(|(texts, headers, (mode, priority, timestamp))| {
        let mut all = BasicProperties::default();
        let set = [
            BasicProperties::with_content_type,
            BasicProperties::with_content_encoding,
            BasicProperties::with_correlation_id,
            BasicProperties::with_reply_to,
            BasicProperties::with_expiration,
            BasicProperties::with_message_id,
            BasicProperties::with_type,
            BasicProperties::with_user_id,
            BasicProperties::with_app_id,
        ];
        for (set, text) in set.into_iter().zip(texts) {
            all = text.into_iter().fold(all, set);
        }
        all = headers.map(table).into_iter().fold(all, BasicProperties::with_headers);
        all = mode.into_iter().fold(all, BasicProperties::with_delivery_mode);
        all = priority.into_iter().fold(all, BasicProperties::with_priority);
        timestamp.into_iter().fold(all, BasicProperties::with_timestamp)
    })
}

proptest! {
    #[test]
    fn the_size_equals_the_client_librarys_encoding(properties in any_properties(&["x-death", "mine"], 300)) {
        let written = gen_properties(&properties)(Vec::new().into()).unwrap();
        // `gen_properties` writes the property flags, which CONTENT_HEADER also counts.
        let expected = FRAME + CONTENT_HEADER - 2 + written.write.len();
        prop_assert_eq!(header_frame_bytes(&properties), expected);
    }
}
