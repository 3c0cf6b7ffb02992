//! The encoded size of message properties.
//!
//! AMQP sends all properties in one content header frame. The broker closes the connection if a frame is
//! larger than the negotiated limit, and the client library does not check it, so the publisher must know the
//! size beforehand.

use amq_protocol::{
    protocol::BasicProperties,
    types::{AMQPValue, FieldTable, ShortString},
};

/// Frame overhead in bytes: type, channel, size and the end octet.
const FRAME: usize = 1 + 2 + 4 + 1;
/// Content header overhead in bytes: class, weight, body size and property flags.
const CONTENT_HEADER: usize = 2 + 2 + 8 + 2;

/// The size of the content header frame of a message with these properties, in bytes.
pub fn header_frame_bytes(properties: &BasicProperties) -> usize {
    let texts = [
        properties.content_type(),
        properties.content_encoding(),
        properties.correlation_id(),
        properties.reply_to(),
        properties.expiration(),
        properties.message_id(),
        properties.kind(),
        properties.user_id(),
        properties.app_id(),
        properties.cluster_id(),
    ];
    let texts: usize = texts.into_iter().flatten().map(short_string).sum();
    let octets = [properties.delivery_mode(), properties.priority()].into_iter().flatten().count();
    let timestamp = properties.timestamp().map_or(0, |_| 8);
    let headers = properties.headers().as_ref().map_or(0, table_bytes);
    FRAME + CONTENT_HEADER + texts + octets + timestamp + headers
}

/// The encoded size of one header in bytes: name, type and value.
pub(crate) fn entry_bytes(name: &ShortString, value: &AMQPValue) -> usize {
    short_string(name) + typed_value(value)
}

fn short_string(text: &ShortString) -> usize {
    1 + text.as_str().len()
}

fn table_bytes(table: &FieldTable) -> usize {
    4 + table.inner().iter().map(|(name, value)| entry_bytes(name, value)).sum::<usize>()
}

fn typed_value(value: &AMQPValue) -> usize {
    let bytes = match value {
        AMQPValue::Void => 0,
        AMQPValue::Boolean(_) | AMQPValue::ShortShortInt(_) | AMQPValue::ShortShortUInt(_) => 1,
        AMQPValue::ShortInt(_) | AMQPValue::ShortUInt(_) => 2,
        AMQPValue::LongInt(_) | AMQPValue::LongUInt(_) | AMQPValue::Float(_) => 4,
        AMQPValue::DecimalValue(_) => 5,
        AMQPValue::LongLongInt(_) | AMQPValue::Timestamp(_) | AMQPValue::Double(_) => 8,
        AMQPValue::ShortString(text) => short_string(text),
        AMQPValue::LongString(text) => 4 + text.as_bytes().len(),
        AMQPValue::ByteArray(bytes) => 4 + bytes.len(),
        AMQPValue::FieldArray(values) => 4 + values.as_slice().iter().map(typed_value).sum::<usize>(),
        AMQPValue::FieldTable(table) => table_bytes(table),
    };
    1 + bytes
}

#[cfg(test)]
pub(super) mod tests {
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
            any::<(u8, u32)>()
                .prop_map(|(scale, value)| AMQPValue::DecimalValue(DecimalValue { scale, value })),
            any_short().prop_map(AMQPValue::ShortString),
            (0..longest, any::<u8>())
                .prop_map(|(length, byte)| AMQPValue::LongString(vec![byte; length].into())),
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
}
