//! Publishes to an MQTT broker as Zigbee2MQTT does, from which a bridge takes the readings.

use std::{collections::HashMap, sync::LazyLock};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use garenne_common::exit::{Exit, Failure};
use garenne_map::{Map as Rules, Source};
use garenne_mqtt::{MqttPublishError, MqttPublisher};
use garenne_protocol::{
    sensor::{Limits, Reading, Timestamp},
    task::{TaskId, reading_id},
};
use serde_json::{Map, Value};

use super::{Destination, SendError};

/// The field with the time of a message.
const TIME: &str = "last_seen";

/// An MQTT broker. A reading counts as confirmed when the broker has acknowledged its message (QoS 1).
pub(super) struct MqttDestination(pub(super) MqttPublisher);

/// The map with which a bridge reads the messages.
static MAP: LazyLock<Rules> =
    LazyLock::new(|| Rules::load("builtin:zigbee2mqtt").expect("the shipped map is valid"));

/// A message, and the index of its first reading.
struct Message {
    first: usize,
    topic: String,
    fields: Map<String, Value>,
}

/// The messages of the readings: consecutive ones of one device and time are one message.
fn messages(readings: &[Reading]) -> Result<Vec<Message>, SendError> {
    let mut messages: Vec<Message> = Vec::new();
    for (index, reading) in readings.iter().enumerate() {
        let invalid = |reason: &str| SendError::InvalidReading { index, reason: reason.to_owned() };
        if reading.device.contains(['+', '#', '\0']) {
            return Err(invalid("a topic must not contain +, # and NUL, and the device's name does"));
        }
        if &*reading.metric == TIME {
            return Err(invalid("last_seen is the time of a message, and cannot be a metric"));
        }
        let topic = format!("zigbee2mqtt/{}", reading.device);
        let time = Value::from(reading.time.to_string());
        let same = messages.last_mut().filter(|last| {
            let fields = &last.fields;
            last.topic == topic && fields.get(TIME) == Some(&time) && !fields.contains_key(&*reading.metric)
        });
        let message = match same {
            Some(message) => message,
            None => {
                let fields = Map::from_iter([(TIME.to_owned(), time)]);
                messages.push(Message { first: index, topic, fields });
                messages.last_mut().expect("it was pushed")
            }
        };
        message.fields.insert(reading.metric.to_string(), Value::from(reading.value));
    }
    Ok(messages)
}

/// The topic and payload of each message.
fn packets(messages: &[Message]) -> Vec<(String, Bytes)> {
    let payload = |message: &Message| Bytes::from(Value::from(message.fields.clone()).to_string());
    messages.iter().map(|message| (message.topic.clone(), payload(message))).collect()
}

/// The ids of the readings as a bridge makes them of the packets: the map gives them units.
fn ids(readings: &[Reading], packets: &[(String, Bytes)]) -> Vec<TaskId> {
    let without_unit = |reading: &Reading| reading_id(&Reading { unit: None, ..reading.clone() });
    // Each message has its time, so that of the arrival does not matter.
    let apply = |(topic, payload): &(String, Bytes)| {
        MAP.apply(Source::Topic(topic), payload, Timestamp::UNIX_EPOCH, &Limits::default()).ok()
    };
    let ids: HashMap<_, _> = packets
        .iter()
        .filter_map(apply)
        .flat_map(|mapped| mapped.records)
        .map(|record| (without_unit(&record.reading), reading_id(&record.reading)))
        .collect();
    let id =
        |reading: &Reading| ids.get(&without_unit(reading)).cloned().unwrap_or_else(|| reading_id(reading));
    readings.iter().map(id).collect()
}

impl MqttDestination {
    async fn publish(&self, readings: &[Reading]) -> Result<Vec<TaskId>, SendError> {
        let messages = messages(readings)?;
        let packets = packets(&messages);
        self.0.publish(&packets).await.map_err(|error| match error {
            MqttPublishError::Unavailable(reason) => SendError::Retry { reason, retry_after: None },
            MqttPublishError::Denied(reason) => SendError::Fatal(Failure::new(Exit::Denied, reason)),
            MqttPublishError::Message { index, reason } => {
                SendError::InvalidReading { index: messages[index].first, reason }
            }
        })?;
        Ok(ids(readings, &packets))
    }
}

impl Destination for MqttDestination {
    fn send<'a>(&'a self, readings: &'a [Reading]) -> BoxFuture<'a, Result<Vec<TaskId>, SendError>> {
        Box::pin(self.publish(readings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(device: &str, metric: &str, value: f64, micros: i64) -> Reading {
        Reading {
            device: device.into(),
            metric: metric.into(),
            value,
            unit: None,
            counter: None,
            time: Timestamp::from_unix_seconds(0.0).unwrap().plus_seconds(micros as f64 / 1e6).unwrap(),
        }
    }

    #[test]
    fn the_shipped_map_makes_the_same_readings_of_the_messages() {
        const SECOND: i64 = 1_790_000_000_000_000;
        let readings = [
            reading("kitchen", "temperature", 21.123_456_789_012_345, SECOND + 123_456),
            reading("kitchen", "humidity", 0.1 + 0.2, SECOND + 123_456),
            // The same metric and time again, another time, and another device.
            reading("kitchen", "humidity", 61.0, SECOND + 123_456),
            reading("kitchen", "humidity", 62.0, SECOND + 123_457),
            reading("hall/door", "battery", -1e-9, SECOND),
        ];
        let messages = messages(&readings).unwrap();
        assert_eq!(messages.iter().map(|message| message.first).collect::<Vec<_>>(), [0, 2, 3, 4]);
        let mut ids = ids(&readings, &packets(&messages));
        let mut mapped = Vec::new();
        for Message { topic, fields, .. } in messages {
            let payload = Value::from(fields).to_string();
            let records = MAP.apply(
                Source::Topic(&topic),
                payload.as_bytes(),
                reading("", "", 0.0, 0).time,
                &Limits::default(),
            );
            mapped.extend(records.unwrap().records.into_iter().map(|record| reading_id(&record.reading)));
        }
        mapped.sort_unstable();
        ids.sort_unstable();
        assert_eq!(mapped, ids);
    }

    #[test]
    fn readings_without_a_topic_or_a_field_are_invalid() {
        let refused = |device, metric| match messages(&[reading(device, metric, 1.0, 0)]) {
            Err(SendError::InvalidReading { index: 0, reason }) => reason,
            _ => panic!("accepted"),
        };
        assert_eq!(refused("a/+", "t"), "a topic must not contain +, # and NUL, and the device's name does");
        assert_eq!(refused("a", "last_seen"), "last_seen is the time of a message, and cannot be a metric");
    }
}
