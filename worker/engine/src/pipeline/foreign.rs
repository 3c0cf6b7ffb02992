//! Foreign messages: what a lane with maps receives from its exchange.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use garenne_protocol::amqp::BasicProperties;
use garenne_protocol::{
    task::{DeadReason, Origin, Source, foreign_properties, is_foreign_copy},
    topology::LaneExchange,
};

use super::adapter::LaneAdapter;
use crate::consumer::Delivery;

/// Values of the property `content_encoding` that change nothing.
const PLAIN: [&str; 3] = ["", "identity", "utf-8"];

/// The adapter of a lane with maps.
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

/// The encoding of a payload that would have to be decoded first.
fn encoding(properties: &BasicProperties) -> Option<&str> {
    let encoding = properties.content_encoding().as_ref()?.as_str();
    (!PLAIN.iter().any(|plain| encoding.eq_ignore_ascii_case(plain))).then_some(encoding)
}

impl LaneAdapter for ForeignLane {
    /// Workers and `garenne dead replay` write copies, which are recognized when they come back.
    fn origin(&self, delivery: &Delivery) -> Option<Origin> {
        let is_foreign =
            !delivery.head.exchange.as_str().is_empty() || !is_foreign_copy(&delivery.head.properties);
        is_foreign.then_some(Origin::Foreign)
    }

    fn as_task(&self, mut delivery: Delivery, origin: Origin) -> Delivery {
        if origin != Origin::Foreign {
            return delivery;
        }
        let head = &delivery.head;
        let key = head.routing_key.as_str();
        let came_through = !head.exchange.as_str().is_empty();
        let topic = (came_through && self.exchange == LaneExchange::Mqtt).then(|| Source::mqtt_topic(key));
        let source = topic.as_deref().map_or(Source::RoutingKey(key), Source::Topic);
        let properties = foreign_properties(&head.properties, source, self.arrival(head.received_at));
        delivery.set_properties(properties);
        delivery
    }

    fn refusal(&self, delivery: &Delivery) -> Option<(DeadReason, String)> {
        let encoding = encoding(&delivery.head.properties)?;
        let error =
            format!("the content encoding {encoding:?} is not supported; send the payload without one");
        Some((DeadReason::Unmapped, error))
    }

    fn may_close_connection(&self) -> bool {
        true
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
