//! Calls of Celery's senders: what a lane with the setting `celery` receives besides tasks.
//!
//! A call that a worker has a handler for becomes a task here, before anything else looks at it, and stays one: its copies
//! go to the lane's own queue, which no worker of Celery consumes. Other calls stay as they are and go to Celery's workers,
//! if the lane says where these are.

use std::sync::Arc;

use garenne_common::{clock, config::Lane as LaneConfig};
use garenne_protocol::{
    amqp::BasicProperties,
    task::{CeleryCall, CeleryZone, Kind},
    topology::{LaneQueues, Names},
};

use super::{LanePipeline, quarantine::SUSPICIOUS_RETURNS};
use crate::consumer::Delivery;

/// The header in which quorum queues count returns.
const RETURNS: &str = "x-delivery-count";

/// The additional state of a lane that receives calls of Celery's senders.
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
}

impl CeleryLane {
    /// That of a lane with these settings.
    pub(crate) fn of(names: &Names, name: &str, settings: &LaneConfig) -> Option<Self> {
        let LaneConfig { celery_timezone, queue, celery_pass_on, shards, .. } = settings;
        settings.celery.then(|| Self {
            zone: celery_timezone.clone(),
            queue: queue.clone(),
            pass_on: celery_pass_on.clone(),
            own_queues: LaneQueues::new(names, name, *shards).queues(),
            own_exchange: names.shards(name),
            exchanges: [names.tasks(), names.unroutable()],
        })
    }
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

impl LanePipeline {
    /// Passes a message on to Celery's workers if this worker has no handler for its kind. Tasks of Garenne are not passed
    /// on: Celery cannot read them.
    pub(super) fn unless_celery_runs_it(self: &Arc<Self>, delivery: Delivery) -> Option<Delivery> {
        let Some(queue) = self.celery.as_ref().and_then(|lane| lane.pass_on.as_ref()) else {
            return Some(delivery);
        };
        if delivery.head.unreadable.is_some()
            || self.is_handled_here(&delivery)
            || !self.is_of_celery(&delivery)
        {
            return Some(delivery);
        }
        let (fingerprint, settler) = (delivery.fingerprint(), Arc::clone(&self.settler));
        let (lane, queue) = (Arc::clone(&self.lane), queue.clone());
        self.admit_later(fingerprint, async move { settler.pass_on_unchanged(lane, delivery, queue).await });
        None
    }

    fn is_handled_here(&self, delivery: &Delivery) -> bool {
        let properties = &delivery.head.properties;
        let named = || properties.kind().as_ref().map(|kind| kind.as_str());
        let kind = CeleryCall::task(properties).or_else(named).unwrap_or(delivery.head.routing_key.as_str());
        // A pattern of kinds may match a name of Celery's that is no kind.
        Kind::parse(kind).is_ok() && self.registry.get(kind).is_some()
    }

    /// Whether a message comes from Celery: it is a call, or it came through the application's queue.
    pub(super) fn is_of_celery(&self, delivery: &Delivery) -> bool {
        let Some(lane) = &self.celery else { return false };
        let (exchange, key) = (delivery.head.exchange.as_str(), delivery.head.routing_key.as_str());
        // Workers publish to the lane directly, and the broker moves what waited in a retry queue.
        let is_from_worker = match exchange {
            "" => lane.own_queues.iter().any(|queue| queue == key),
            exchange => exchange == lane.own_exchange,
        };
        let is_from_fleet = || is_from_worker || lane.exchanges.iter().any(|it| it == exchange);
        match CeleryCall::task(&delivery.head.properties) {
            // A copy of a task that was made of a call has no such header, and a call that was refused and replayed has.
            Some(_) => true,
            None => lane.queue.is_some() && !is_from_fleet(),
        }
    }

    /// A call as a task. What cannot be one keeps its message and says why.
    pub(super) fn call_as_task(&self, mut delivery: Delivery) -> Delivery {
        let Some(lane) = &self.celery else { return delivery };
        let head = &delivery.head;
        let is_call = head.unreadable.is_none() && CeleryCall::is_call(&head.properties, &delivery.body);
        if !is_call || delivery.body.len() > self.max_payload {
            return delivery;
        }
        match CeleryCall::read(&head.properties, &delivery.body, &lane.zone, clock::now()) {
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
