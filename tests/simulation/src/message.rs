//! Messages as published, as stored and as delivered.

use std::{sync::Arc, time::Duration};

use amq_protocol::{
    protocol::BasicProperties,
    types::{AMQPValue, FieldTable},
};
use bytes::Bytes;
use garenne_protocol::task::header;

use crate::id::{ConsumerId, Serial};

/// A message as it is stored. A requeue shares it; a dead-lettering replaces it.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// The exchange that it was published to, or dead-lettered to.
    pub exchange: Arc<str>,
    /// The routing key.
    pub routing_key: Arc<str>,
    /// The properties.
    pub properties: BasicProperties,
    /// The body.
    pub body: Bytes,
}

impl Message {
    /// `message_id`, or an empty text.
    pub fn id(&self) -> &str {
        self.properties.message_id().as_ref().map_or("", |id| id.as_str())
    }
}

/// `basic.publish`.
#[derive(Clone, Debug)]
pub struct Publish {
    /// What is published, and where.
    pub message: Message,
    /// Whether it is returned if it reaches no queue.
    pub mandatory: bool,
}

impl Publish {
    /// A mandatory message.
    pub fn mandatory(exchange: &str, routing_key: &str, properties: BasicProperties, body: Bytes) -> Self {
        let (exchange, routing_key) = (exchange.into(), routing_key.into());
        Self { message: Message { exchange, routing_key, properties, body }, mandatory: true }
    }
}

/// `basic.deliver`, or the message that `basic.get` returned.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The consumer.
    pub consumer: ConsumerId,
    /// The delivery tag.
    pub tag: u64,
    /// Which stored message this is. Clients do not see it; checks and traces do.
    pub serial: Serial,
    /// Whether it was delivered before.
    pub redelivered: bool,
    /// `x-delivery-count`.
    pub delivery_count: u32,
    /// `x-acquired-count`, from 4.3.
    pub acquired_count: Option<u32>,
    /// `x-stream-offset`, in a stream.
    pub offset: Option<i64>,
    /// The message.
    pub message: Arc<Message>,
}

impl Delivery {
    /// The properties as the client reads them, with the headers that the broker adds. Counts of 0 are left out.
    pub fn properties(&self) -> BasicProperties {
        let number = |name: &'static str, value: Option<i64>| {
            value.filter(|value| *value > 0 || name == "x-stream-offset").map(|value| (name, value))
        };
        let added = [
            number("x-delivery-count", Some(self.delivery_count.into())),
            number("x-acquired-count", self.acquired_count.map(i64::from)),
            number("x-stream-offset", self.offset),
        ];
        let properties = self.message.properties.clone();
        if added.iter().all(Option::is_none) {
            return properties;
        }
        let mut headers = properties.headers().clone().unwrap_or_default();
        for (name, value) in added.into_iter().flatten() {
            headers.insert(name.into(), AMQPValue::LongLongInt(value));
        }
        properties.with_headers(headers)
    }
}

/// A message in a queue.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) serial: Serial,
    pub(crate) message: Arc<Message>,
    /// Where and why it was dead-lettered, newest first.
    pub(crate) deaths: Vec<Death>,
    /// Returns that count against the delivery limit.
    pub(crate) delivery_count: u32,
    /// All returns.
    pub(crate) acquired_count: u32,
    /// When it expires, since the start.
    pub(crate) expires: Option<Duration>,
}

/// An entry of `x-death`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Death {
    pub(crate) queue: Arc<str>,
    pub(crate) reason: Arc<str>,
    pub(crate) exchange: Arc<str>,
    pub(crate) key: Arc<str>,
    pub(crate) count: i64,
}

impl Death {
    /// The entries that a client published.
    pub(crate) fn published(properties: &BasicProperties) -> Vec<Self> {
        let Some(AMQPValue::FieldArray(entries)) = header::get(properties.headers(), "x-death") else {
            return Vec::new();
        };
        let tables = entries.as_slice().iter().filter_map(AMQPValue::as_field_table);
        let text = |table: &FieldTable, name: &str| -> Arc<str> {
            table.inner().get(name).and_then(header::text).unwrap_or_default().into()
        };
        let entry = |table: &FieldTable| Self {
            queue: text(table, "queue"),
            reason: text(table, "reason"),
            exchange: text(table, "exchange"),
            key: "".into(),
            count: table.inner().get("count").and_then(header::integer).unwrap_or(1),
        };
        tables.map(entry).collect()
    }

    /// Records one more death at the front. Deaths in the same queue for the same reason are one entry.
    pub(crate) fn record(deaths: &mut Vec<Self>, mut death: Self) {
        if let Some(at) = deaths.iter().position(|it| it.queue == death.queue && it.reason == death.reason) {
            death.count += deaths.remove(at).count;
        }
        deaths.insert(0, death);
    }

    fn table(&self) -> AMQPValue {
        let mut table = FieldTable::default();
        table.insert("queue".into(), header::long(&self.queue));
        table.insert("reason".into(), header::long(&self.reason));
        table.insert("exchange".into(), header::long(&self.exchange));
        table.insert("routing-keys".into(), AMQPValue::FieldArray(vec![header::long(&self.key)].into()));
        table.insert("count".into(), AMQPValue::LongLongInt(self.count));
        AMQPValue::FieldTable(table)
    }

    /// The properties of a message with these deaths. `x-first-death-*` is kept if it exists.
    pub(crate) fn properties(deaths: &[Self], of: &BasicProperties, with_last: bool) -> BasicProperties {
        let mut headers = of.headers().clone().unwrap_or_default();
        let tables: Vec<_> = deaths.iter().map(Self::table).collect();
        headers.insert("x-death".into(), AMQPValue::FieldArray(tables.into()));
        let newest = &deaths[0];
        for (prefix, wanted) in
            [("x-first-death", !headers.contains_key("x-first-death-queue")), ("x-last-death", with_last)]
        {
            for (name, value) in
                [("queue", &newest.queue), ("reason", &newest.reason), ("exchange", &newest.exchange)]
            {
                if wanted {
                    headers.insert(format!("{prefix}-{name}").as_str().into(), header::long(value));
                }
            }
        }
        without_expiration(of).with_headers(headers)
    }
}

/// A dead letter has none, so that it does not expire in the next queue too.
fn without_expiration(of: &BasicProperties) -> BasicProperties {
    if of.expiration().is_none() {
        return of.clone();
    }
    let mut kept = BasicProperties::default();
    kept = with(kept, of.content_type(), BasicProperties::with_content_type);
    kept = with(kept, of.content_encoding(), BasicProperties::with_content_encoding);
    kept = with(kept, of.delivery_mode(), BasicProperties::with_delivery_mode);
    kept = with(kept, of.priority(), BasicProperties::with_priority);
    kept = with(kept, of.correlation_id(), BasicProperties::with_correlation_id);
    kept = with(kept, of.reply_to(), BasicProperties::with_reply_to);
    kept = with(kept, of.message_id(), BasicProperties::with_message_id);
    kept = with(kept, of.timestamp(), BasicProperties::with_timestamp);
    kept = with(kept, of.kind(), BasicProperties::with_type);
    kept = with(kept, of.user_id(), BasicProperties::with_user_id);
    with(kept, of.app_id(), BasicProperties::with_app_id)
}

/// Sets a property if there is a value.
fn with<T: Clone>(
    properties: BasicProperties,
    value: &Option<T>,
    set: fn(BasicProperties, T) -> BasicProperties,
) -> BasicProperties {
    value.iter().cloned().fold(properties, set)
}
