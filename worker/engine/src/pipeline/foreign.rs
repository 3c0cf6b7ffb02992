//! Foreign messages: what a lane with maps receives from its exchange.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use garenne_protocol::amqp::BasicProperties;
use garenne_protocol::{
    task::{ForeignMessage, Source},
    topology::LaneExchange,
};

use super::LanePipeline;
use crate::consumer::Delivery;

/// Values of the property `content_encoding` that change nothing.
const PLAIN: [&str; 3] = ["", "identity", "utf-8"];

/// The additional state of a lane with maps.
pub(crate) struct ForeignLane {
    exchange: LaneExchange,
    /// The latest time of arrival, in microseconds since 1970.
    last_arrival: AtomicU64,
}

impl ForeignLane {
    pub(crate) fn new(exchange: LaneExchange) -> Self {
        Self { exchange, last_arrival: AtomicU64::new(0) }
    }

    /// The time of arrival of a message that was received at `received_at`. It is another one for each message: two
    /// readings of one device and metric with one time would be in conflict, and messages that RabbitMQ delivers again
    /// come many in a microsecond.
    fn arrival(&self, received_at: SystemTime) -> SystemTime {
        let since = received_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        let next = |last: u64| micros.max(last.saturating_add(1));
        let last =
            self.last_arrival.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        UNIX_EPOCH + Duration::from_micros(next(last.unwrap_or_default()))
    }
}

/// Whether a delivery of a lane with maps was not written by a worker or by `garenne dead replay`.
pub(super) fn is_foreign(delivery: &Delivery) -> bool {
    !delivery.head.exchange.as_str().is_empty() || !ForeignMessage::is_copy(&delivery.head.properties)
}

/// The encoding of a payload that would have to be decoded first.
pub(super) fn encoding(properties: &BasicProperties) -> Option<&str> {
    let encoding = properties.content_encoding().as_ref()?.as_str();
    (!PLAIN.iter().any(|plain| encoding.eq_ignore_ascii_case(plain))).then_some(encoding)
}

impl LanePipeline {
    /// A foreign message as a task, whose copies are recognized when they come back.
    pub(super) fn as_task(&self, mut delivery: Delivery, lane: &ForeignLane) -> Delivery {
        let key = delivery.head.routing_key.as_str();
        let came_through = !delivery.head.exchange.as_str().is_empty();
        let topic = (came_through && lane.exchange == LaneExchange::Mqtt).then(|| Source::mqtt_topic(key));
        let source = topic.as_deref().map_or(Source::RoutingKey(key), Source::Topic);
        let message =
            ForeignMessage::read(&delivery.head.properties, source, lane.arrival(delivery.head.received_at));
        if !message.ignored.is_empty() {
            let ignored = &message.ignored;
            tracing::debug!(lane = %self.lane, %source, ?ignored, "ignored headers of a foreign message");
        }
        self.count_ignored(message.ignored);
        delivery.set_properties(message.properties);
        delivery
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_has_another_time_of_arrival() {
        let lane = ForeignLane::new(LaneExchange::Mqtt);
        let at = |micros: u64| UNIX_EPOCH + Duration::from_micros(micros);
        let arrivals =
            [at(7), at(7), at(7) + Duration::from_nanos(900), at(5), at(20)].map(|it| lane.arrival(it));
        assert_eq!(arrivals, [at(7), at(8), at(9), at(10), at(20)]);
    }

    #[test]
    fn only_an_encoding_that_changes_the_payload_counts() {
        let with = |encoding: &str| BasicProperties::default().with_content_encoding(encoding.into());
        assert_eq!(encoding(&BasicProperties::default()), None);
        assert!(["", "identity", "UTF-8"].iter().all(|plain| encoding(&with(plain)).is_none()));
        assert_eq!(encoding(&with("gzip")), Some("gzip"));
    }
}
