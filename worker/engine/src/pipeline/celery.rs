//! Calls of Celery's senders: what a lane with the setting `celery` receives besides tasks.
//!
//! A call that a worker has a handler for becomes a task here, before anything else looks at it, and stays one: its copies
//! go to the lane's own queue, which no worker of Celery consumes. Other calls stay as they are and go to Celery's workers,
//! if the lane says where these are.

use garenne_common::{clock, config::Lane as LaneConfig};
use garenne_protocol::{
    amqp::BasicProperties,
    task::{CeleryCall, CeleryZone, Kind, Origin},
    topology::{LaneQueues, Names},
};

use super::{adapter::LaneAdapter, quarantine::SUSPICIOUS_RETURNS};
use crate::{consumer::Delivery, registry::Registry};

/// The header in which quorum queues count returns.
const RETURNS: &str = "x-delivery-count";

/// The adapter of a lane that receives calls of Celery's senders.
pub(crate) struct CeleryLane {
    zone: CeleryZone,
    /// The queue of the application, if the lane consumes it.
    queue: Option<String>,
    /// The queue of Celery's workers.
    pass_on: Option<String>,
    /// The lane's own queues, and the exchange in front of several.
    own_queues: Vec<String>,
    own_exchange: String,
    /// The exchanges that clients publish tasks of Garenne to.
    exchanges: [String; 2],
    /// The maximum size of a message's body, in bytes.
    max_payload: usize,
}

impl CeleryLane {
    pub(crate) fn of(names: &Names, name: &str, settings: &LaneConfig, max_payload: usize) -> Self {
        let LaneConfig { celery_timezone, queue, celery_pass_on, shards, .. } = settings;
        Self {
            zone: celery_timezone.clone(),
            queue: queue.clone(),
            pass_on: celery_pass_on.clone(),
            own_queues: LaneQueues::new(names, name, *shards).queues(),
            own_exchange: names.shards(name),
            exchanges: [names.tasks(), names.unroutable()],
            max_payload,
        }
    }

    /// Whether a message came through an exchange or a queue of the fleet. Workers publish to the lane directly, and the
    /// broker moves what waited in a retry queue.
    fn is_from_fleet(&self, delivery: &Delivery) -> bool {
        let (exchange, key) = (delivery.head.exchange.as_str(), delivery.head.routing_key.as_str());
        match exchange {
            "" => self.own_queues.iter().any(|queue| queue == key),
            _ => exchange == self.own_exchange || self.exchanges.iter().any(|it| it == exchange),
        }
    }
}

fn has_handler(registry: &Registry, delivery: &Delivery) -> bool {
    let properties = &delivery.head.properties;
    let named = || properties.kind().as_ref().map(|kind| kind.as_str());
    let kind = CeleryCall::task(properties).or_else(named).unwrap_or(delivery.head.routing_key.as_str());
    // A pattern of kinds may match a name of Celery's that is no kind.
    Kind::parse(kind).is_ok() && registry.get(kind).is_some()
}

/// The properties of a redelivered call with a count of its returns. A classic queue counts none, so that a task that crashes
/// its workers would not be found. A wrong count only delays the task.
fn with_returns(properties: BasicProperties) -> BasicProperties {
    let mut headers = properties.headers().clone().unwrap_or_default();
    if headers.inner().contains_key(RETURNS) {
        return properties;
    }
    headers.insert(RETURNS.into(), i64::from(SUSPICIOUS_RETURNS).into());
    properties.with_headers(headers)
}

impl LaneAdapter for CeleryLane {
    /// A message comes from Celery if it is a call, or if it came through the application's queue.
    fn origin(&self, delivery: &Delivery) -> Option<Origin> {
        // A copy of a task that was made of a call has no such header, and a call that was refused and replayed has.
        let is_of_celery = CeleryCall::task(&delivery.head.properties).is_some()
            || (self.queue.is_some() && !self.is_from_fleet(delivery));
        is_of_celery.then_some(Origin::Publisher)
    }

    /// Tasks of Garenne are not passed on: Celery cannot read them.
    fn pass_on(&self, delivery: &Delivery, registry: &Registry) -> Option<&str> {
        let queue = self.pass_on.as_deref()?;
        let stays = delivery.head.unreadable.is_some()
            || has_handler(registry, delivery)
            || self.origin(delivery).is_none();
        (!stays).then_some(queue)
    }

    fn as_task(&self, mut delivery: Delivery, _origin: Origin) -> Delivery {
        let head = &delivery.head;
        let is_call = head.unreadable.is_none() && CeleryCall::is_call(&head.properties, &delivery.body);
        if !is_call || delivery.body.len() > self.max_payload {
            return delivery;
        }
        match CeleryCall::read(&head.properties, &delivery.body, &self.zone, clock::now()) {
            Ok(CeleryCall { properties, body }) => {
                let properties = if head.redelivered { with_returns(properties) } else { properties };
                delivery.set_properties(properties);
                delivery.set_body(body);
            }
            // Without headers, a payload that only begins like a call is one of a task.
            Err(_) if CeleryCall::task(&head.properties).is_none() => {}
            Err(bad) => {
                let labelled = CeleryCall::refused(&head.properties);
                delivery.set_properties(labelled);
                delivery.set_unreadable(&bad.to_string());
            }
        }
        delivery
    }
}
