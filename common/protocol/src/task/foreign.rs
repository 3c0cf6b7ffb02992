//! Messages that were not written for Garenne. Of such a message, only the payload and where it came from count.

use std::time::{SystemTime, UNIX_EPOCH};

use amq_protocol::protocol::BasicProperties;

use super::{
    content_type::BATCH,
    envelope::epoch_ms,
    header::{self, long},
    origin::Origin,
    source::Source,
};

/// The kind of a foreign message's task: a map makes readings of the payload.
pub const FOREIGN_KIND: &str = "message.map";

/// The kind of tasks that stand for dead letters of an MQTT bridge while these cannot be published. It goes to the lane of
/// readings, which workers with the stock kinds consume.
pub const UNMAPPED_TASK_KIND: &str = "reading.unmapped";

/// The task's properties of a foreign message that came from `source` and that a worker received at `arrived_at`.
///
/// Ids, kinds, times, priorities and all of Garenne's headers that the sender wrote are ignored. The task has no id: it gets a
/// new one with each delivery.
pub fn foreign_properties(
    properties: &BasicProperties,
    source: Source<'_>,
    arrived_at: SystemTime,
) -> BasicProperties {
    let believed = Origin::Foreign.believable(properties).map(|(believed, _)| believed);
    let mut headers = believed.as_ref().unwrap_or(properties).headers().clone().unwrap_or_default();
    headers.insert(header::SOURCE.into(), long(&source.to_label()));
    headers.insert(header::FIRST_SEEN.into(), epoch_ms(arrived_at).into());
    let micros = arrived_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    headers.insert(header::ARRIVED_US.into(), i64::try_from(micros).unwrap_or(i64::MAX).into());
    let mut read = BasicProperties::default().with_type(FOREIGN_KIND.into()).with_headers(headers);
    if let Some(content_type) = properties.content_type()
        && content_type.as_str() != BATCH
    {
        read = read.with_content_type(content_type.clone());
    }
    if let Some(encoding) = properties.content_encoding() {
        read = read.with_content_encoding(encoding.clone());
    }
    read
}

/// Whether these are the properties of a copy that a worker made of a foreign message.
pub fn is_foreign_copy(properties: &BasicProperties) -> bool {
    let is = |text: &Option<amq_protocol::types::ShortString>, expected: &str| {
        text.as_ref().is_some_and(|text| text.as_str() == expected)
    };
    is(properties.kind(), FOREIGN_KIND)
        && !is(properties.content_type(), BATCH)
        && header::get(properties.headers(), header::SOURCE).is_some()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use amq_protocol::types::FieldTable;

    use super::*;
    use crate::task::{Arrival, Copied, Envelope};

    /// Headers that a sender may write to pass for a worker.
    fn forged() -> BasicProperties {
        let mut headers = FieldTable::default();
        for name in header::ALL {
            headers.insert((*name).into(), long("1"));
        }
        headers.insert("x-death".into(), long("zz"));
        headers.insert("mine".into(), long("kept"));
        BasicProperties::default()
            .with_message_id("someone-elses".into())
            .with_type("bench.abort".into())
            .with_content_type(BATCH.into())
            .with_correlation_id("c".into())
            .with_reply_to("amq.gen-x".into())
            .with_priority(9)
            .with_expiration("1".into())
            .with_timestamp(7)
            .with_headers(headers)
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_sender_decides_nothing_but_the_payload_and_the_source() {
        let message = foreign_properties(&forged(), Source::Topic("a/b"), at(9));
        let task = Envelope::read("alert.notify", &message, None, |_| true, at(9)).unwrap();
        assert_eq!((task.kind.as_str(), task.id_given), (FOREIGN_KIND, false));
        let arrival = Arrival { source: Some("topic:a/b".to_owned()), at_us: Some(9_000_000) };
        assert_eq!(task.arrival.as_deref(), Some(&arrival));
        let plain = foreign_properties(&BasicProperties::default(), Source::Topic("a/b"), at(9));
        let expected = Envelope::read("x", &plain, None, |_| true, at(9)).unwrap();
        assert_eq!(Envelope { id: expected.id.clone(), ..task }, expected);
        let headers = message.headers().as_ref().unwrap().inner();
        let names: Vec<_> = headers.keys().map(|name| name.as_str()).collect();
        assert_eq!(names, [header::ARRIVED_US, header::FIRST_SEEN, header::SOURCE, "mine", "x-death"]);
        let labels: Vec<_> = Origin::labels().collect();
        let (_, ignored) = Origin::Foreign.believable(&forged()).unwrap();
        assert!(ignored.iter().all(|label| labels.contains(label)));
        assert!(ignored.contains(&header::ATTEMPT) && ignored.contains(&header::SOURCE));
    }

    #[test]
    fn a_copy_keeps_source_and_time_of_arrival_and_is_recognized() {
        let sent = forged().with_content_type("text/plain".into()).with_content_encoding("gzip".into());
        let properties = foreign_properties(&sent, Source::RoutingKey("a.b"), at(9));
        assert_eq!(properties.content_encoding().as_ref().unwrap().as_str(), "gzip");
        let task = Envelope::read("a.b", &properties, None, |_| true, at(9)).unwrap();
        let copy = Copied::of(&properties, &task, at(20)).first_seen(at(20)).into_properties();
        assert!(is_foreign_copy(&copy));
        let again = Envelope::read("garenne.tasks.mqtt", &copy, None, |_| true, at(30)).unwrap();
        assert_eq!(again.arrival.as_ref().unwrap().at_us, Some(9_000_000));
        assert_eq!((again.id, again.arrival), (task.id, task.arrival));
        assert!(!is_foreign_copy(&forged()));
        for other in [
            copy.clone().with_type("bench.abort".into()),
            copy.clone().with_content_type(BATCH.into()),
            copy.with_headers(FieldTable::default()),
        ] {
            assert!(!is_foreign_copy(&other), "{other:?}");
        }
    }

    #[test]
    fn the_smallest_dead_letter_has_the_longest_source() {
        let key = "k".repeat(255);
        let properties = foreign_properties(&forged(), Source::RoutingKey(&key), at(9));
        let bare = Copied::verbatim(&properties, &key, at(9)).bare().into_properties();
        let source = header::get(bare.headers(), header::SOURCE).and_then(header::text).unwrap();
        assert_eq!(Source::from_label(&source), Some(Source::RoutingKey(&key)));
    }
}
