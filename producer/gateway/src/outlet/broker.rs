//! Publishes tasks to the broker.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{
    future::BoxFuture,
    stream::{FuturesUnordered, StreamExt},
};
use garenne_amqp::{Message, PublishError, Publisher, Target};
use garenne_common::config::Lanes;
use garenne_protocol::{
    task::{Kind, NewTask, TaskId, batch_properties, write_batch},
    topology::Names,
};

use super::{Outlet, gather::Parcels, pressure::Pressure};

/// Messages of one delivery under way at once.
const AT_ONCE: usize = 512;

/// Publishes each task as a message of its own, many in flight.
#[derive(Clone)]
pub struct BrokerOutlet {
    publisher: Publisher,
    exchange: String,
    /// Whose tasks want a key, because several queues share them.
    lanes: Arc<Lanes>,
    pressure: Arc<Pressure>,
}

impl BrokerOutlet {
    /// Publishes to the task exchange of `names`, for these lanes.
    pub fn new(publisher: Publisher, names: &Names, lanes: &Lanes) -> Arc<Self> {
        Self::within(publisher, names, lanes, Duration::MAX)
    }

    /// The same, refusing what comes while a confirm has been outstanding for longer than `limit`.
    pub fn within(publisher: Publisher, names: &Names, lanes: &Lanes, limit: Duration) -> Arc<Self> {
        let (exchange, lanes) = (names.tasks(), Arc::new(lanes.clone()));
        Arc::new(Self { publisher, exchange, lanes, pressure: Arc::new(Pressure::new(limit)) })
    }

    fn target(&self, kind: &Kind) -> Target {
        Target::exchange(self.exchange.clone(), kind.as_str().to_owned())
    }

    async fn one(&self, task: NewTask) -> Result<(), PublishError> {
        let task = if self.lanes.spread(task.kind.as_str()) { task.keyed() } else { task };
        let (target, properties) = (self.target(&task.kind), task.properties(SystemTime::now()));
        let _sent = self.pressure.send();
        self.publisher.publish(Message { target, properties, body: task.body.into() }).await
    }

    /// Each task as a message of its own. What a message needs while it is under way is only held for so many of
    /// them at once.
    async fn each(&self, tasks: Vec<NewTask>) -> Result<(), PublishError> {
        let mut tasks = tasks.into_iter();
        let mut flying: FuturesUnordered<_> =
            tasks.by_ref().take(AT_ONCE).map(|task| self.one(task)).collect();
        // Every confirm is waited for, also after a failure: what is still in flight must not
        // outlive the answer that the caller gives.
        let mut outcome = Ok(());
        while let Some(result) = flying.next().await {
            outcome = outcome.and(result);
            if outcome.is_ok()
                && let Some(task) = tasks.next()
            {
                flying.push(self.one(task));
            }
        }
        outcome
    }
}

impl Parcels for BrokerOutlet {
    fn ready(&self) -> Result<(), PublishError> {
        self.pressure.check()
    }

    fn send(&self, tasks: Vec<NewTask>) -> BoxFuture<'static, Result<(), PublishError>> {
        let outlet = self.clone();
        Box::pin(async move {
            let pack = match &tasks[..] {
                [first, _, ..] => write_batch(&tasks).ok().map(|body| (first.kind.clone(), body)),
                _ => None,
            };
            match pack {
                Some((kind, body)) => {
                    let key = outlet.lanes.spread(kind.as_str()).then(|| pack_key(&tasks));
                    let properties = batch_properties(&kind, key.as_deref(), SystemTime::now());
                    let target = outlet.target(&kind);
                    let _sent = outlet.pressure.send();
                    outlet.publisher.publish(Message { target, properties, body: body.into() }).await
                }
                // One task is a message as any other; so are several that cannot be packed.
                None => outlet.each(tasks).await,
            }
        })
    }
}

/// The key of all its tasks where they have the same; one of its own otherwise: to gather by key would make
/// as many messages as there are devices.
fn pack_key(tasks: &[NewTask]) -> String {
    let first = tasks.first().and_then(|task| task.key.as_ref());
    let shared = first.filter(|key| tasks.iter().all(|task| task.key.as_ref() == Some(key)));
    shared.cloned().unwrap_or_else(|| TaskId::random().as_str().to_owned())
}

impl Outlet for BrokerOutlet {
    fn deliver(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        Box::pin(async move {
            self.pressure.check()?;
            self.each(tasks).await
        })
    }
}
