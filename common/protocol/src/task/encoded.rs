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
pub(super) mod tests;
