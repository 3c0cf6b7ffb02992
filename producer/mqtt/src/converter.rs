//! Turns messages into tasks, or into dead letters.

use std::{sync::Arc, time::SystemTime};

use bytes::Bytes;
use garenne_common::supervise;
use garenne_map::{MapChain, Source};
use garenne_protocol::{
    sensor::Limits,
    task::{DeadReason, Kind, ReadingTasks, TaskId},
};
use prometheus::IntCounter;
use time::OffsetDateTime;

use crate::{frames::TooLarge, letter::Letter, packet::Message};

/// The tasks or the dead letter of a message, or both. Cheap to clone, except for a dead letter.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Readings. There are none if the map skips the message.
    Tasks(Arc<ReadingTasks>),
    /// A dead letter.
    Letter(Letter),
    /// Readings, and a dead letter with the values that are refused.
    Partial(Arc<ReadingTasks>, Letter),
}

/// The content of a message, and the codes of what is left out.
pub(crate) type Converted = (Content, Vec<&'static str>);

/// Turns messages into tasks.
pub(crate) struct Converter {
    maps: MapChain,
    kind: Kind,
    /// Whether the lane of readings has several shards. A task then has its device as its key.
    sharded: bool,
    limits: Limits,
    /// How often a map left out values because nothing was measured.
    unmeasured: IntCounter,
}

impl Converter {
    /// `kind` is that of readings.
    pub(crate) fn new(
        maps: MapChain,
        kind: Kind,
        sharded: bool,
        limits: Limits,
        unmeasured: IntCounter,
    ) -> Self {
        Self { maps, kind, sharded, limits, unmeasured }
    }

    /// Maps a message. Call it in the order of arrival: births of Sparkplug nodes name the metrics of what follows.
    pub(crate) fn convert(&self, message: &Message) -> Converted {
        let now = OffsetDateTime::now_utc();
        // After a panic the message would come again and end the next process too.
        let source = Source::Topic(&message.topic);
        let mapped = supervise::catch(|| self.maps.apply(source, &message.payload, now.into(), &self.limits));
        let mapped = mapped.map_err(|panic| format!("the map panicked: {panic}"));
        let letter = |error: String, payload: Bytes| Letter {
            id: TaskId::random(),
            reason: DeadReason::Unmapped,
            error,
            topic: message.topic.clone(),
            content_type: message.content_type.clone(),
            payload,
            received: now.into(),
        };
        let mapped = match mapped.and_then(|mapped| mapped.map_err(|unmapped| unmapped.to_string())) {
            Ok(mapped) => mapped,
            Err(error) => {
                return (Content::Letter(letter(error, message.payload.clone())), vec!["unmapped"]);
            }
        };
        self.unmeasured.inc_by(mapped.unmeasured as u64);
        let tasks = ReadingTasks::new(&self.kind, self.sharded, &mapped.records, |_| TaskId::random());
        let tasks = Arc::new(tasks);
        if mapped.refused.is_empty() {
            return (Content::Tasks(tasks), Vec::new());
        }
        let remainder = self.maps.remainder(source, &message.payload, now.into(), &self.limits);
        (Content::Partial(tasks, letter(mapped.refusal(), remainder.into())), mapped.codes())
    }
}

/// A dead letter for a message whose packet was not kept.
pub(crate) fn too_large(message: &TooLarge, max: usize) -> Letter {
    Letter {
        id: TaskId::random(),
        reason: DeadReason::TooLarge,
        error: format!(
            "the packet has {} bytes, {max} are allowed (mqtt.max_packet); the payload is lost",
            message.bytes
        ),
        topic: message.topic.clone(),
        content_type: None,
        payload: bytes::Bytes::new(),
        received: SystemTime::now(),
    }
}

#[cfg(test)]
mod tests {
    use garenne_map::Map;

    use super::*;

    fn converter(maps: &[&str]) -> Converter {
        let maps = maps.iter().map(|map| Map::parse("test", map).unwrap()).collect();
        let unmeasured = IntCounter::new("unmeasured", "of a test").unwrap();
        Converter::new(maps, Kind::parse("reading.process").unwrap(), false, Limits::default(), unmeasured)
    }

    fn message(topic: &str, payload: &str) -> Message {
        Message {
            topic: topic.to_owned(),
            payload: payload.to_owned().into(),
            packet_id: Some(1),
            dup: false,
            retain: false,
            content_type: None,
        }
    }

    const NUMBERS: &str = "[[map]]\ntopic = \"n/+\"\ndevice = \"{1}\"\nmetric = \"m\"\n";
    const TIMED: &str =
        "[[map]]\ntopic = \"t/+\"\ndevice = \"{1}\"\nmetric = \"m\"\nvalue = \"{/v}\"\ntime = \"{/t}\"\n";

    fn tasks((content, _): Converted) -> (Vec<String>, bool) {
        match content {
            Content::Tasks(readings) => {
                (readings.tasks.iter().map(|task| task.id.to_string()).collect(), readings.repeatable)
            }
            content => panic!("{content:?}"),
        }
    }

    #[test]
    fn a_message_with_a_time_has_the_same_ids_each_time_and_one_without_has_not() {
        let converter = converter(&[NUMBERS, TIMED]);
        let timed = || tasks(converter.convert(&message("t/a", r#"{"v":1,"t":1790000000}"#)));
        assert_eq!(timed(), timed());
        assert!(timed().1);
        let number = || tasks(converter.convert(&message("n/a", "1")));
        assert_ne!(number(), number());
        assert!(!number().1);
    }

    #[test]
    fn values_that_nobody_measured_are_counted() {
        let rules = "[[map]]\ntopic = \"+\"\ndevice = \"d\"\nvalues = \"/v\"\nvalues_if = [\"/raw\"]\nallow_empty = true\n";
        let converter = converter(&[rules]);
        for (payload, readings, unmeasured) in [
            (r#"{"raw":"00","v":{"a":0}}"#, 1, 0),
            (r#"{"v":{"a":0}}"#, 0, 1),
            (r#"{"raw":"","v":{"a":0}}"#, 0, 2),
        ] {
            assert_eq!(tasks(converter.convert(&message("t", payload))).0.len(), readings, "{payload}");
            assert_eq!(converter.unmeasured.get(), unmeasured, "{payload}");
        }
    }

    #[test]
    fn a_letter_beside_readings_has_only_what_was_refused() {
        let map = "[[map]]\ndevice = \"d\"\nmetric = \"{name}\"\nvalues = \"/v\"\ntime = \"{/t}\"\n";
        let sent = message("x", r#"{"t":1790000000,"v":{"a":1,"b":nan,"c":3}}"#);
        let (Content::Partial(readings, letter), codes) = converter(&[map]).convert(&sent) else { panic!() };
        assert_eq!((readings.tasks.len(), readings.repeatable, codes), (2, true, vec!["not-finite"]));
        assert_eq!((letter.reason, letter.topic.as_str()), (DeadReason::Unmapped, "x"));
        assert_eq!(letter.error, "rule 1: record 1: b: not a finite number");
        assert_eq!(letter.payload, r#"{"t":1790000000,"v":{"a":null,"b":nan,"c":null}}"#);
    }

    #[test]
    fn a_message_that_cannot_be_mapped_becomes_a_letter_with_its_payload() {
        let letter =
            |topic: &str, payload: &str| match converter(&[TIMED]).convert(&message(topic, payload)).0 {
                Content::Letter(letter) => letter,
                content => panic!("{content:?}"),
            };
        let unknown = letter("x", "1");
        assert_eq!((unknown.reason, unknown.error.as_str()), (DeadReason::Unmapped, "no rule matches"));
        let broken = letter("t/a", "{");
        assert!(broken.error.starts_with("rule 1: not JSON"), "{}", broken.error);
        assert_eq!((broken.topic.as_str(), &broken.payload[..]), ("t/a", &b"{"[..]));
    }
}
