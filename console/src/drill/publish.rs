//! Publishers that do not give up: what is in doubt is sent again under the same id.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use garenne_amqp::{Broker, Message, PublishError, Publisher, PublisherConfig, Target};
use garenne_common::backoff::Backoff;
use garenne_protocol::{
    task::{ContentType, Kind, NewTask, TaskId},
    topology::Names,
};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

/// Unconfirmed tasks of one publisher at once.
const IN_FLIGHT: usize = 500;
/// Between two looks at what is due.
const TICK: Duration = Duration::from_millis(20);

/// What is published.
#[derive(Clone)]
pub(super) struct Load {
    pub(super) broker: Broker,
    pub(super) names: Names,
    pub(super) kind: Kind,
    pub(super) payload: Vec<u8>,
    /// Ids are this, a hyphen and a number.
    pub(super) stem: String,
    pub(super) tasks: u64,
    pub(super) publishers: u64,
    /// A second, all publishers together.
    pub(super) rate: u64,
}

/// What has been confirmed.
#[derive(Debug, Default)]
pub(super) struct Published {
    fresh: Mutex<Vec<String>>,
    confirmed: AtomicU64,
    again: AtomicU64,
    refusal: Mutex<Option<String>>,
}

impl Published {
    /// Ids confirmed since the last call.
    pub(super) fn fresh(&self) -> Vec<String> {
        std::mem::take(&mut *self.fresh.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Confirmed in all.
    pub(super) fn confirmed(&self) -> u64 {
        self.confirmed.load(Relaxed)
    }

    /// Sent again because nobody knew whether they had arrived.
    pub(super) fn again(&self) -> u64 {
        self.again.load(Relaxed)
    }

    /// Why nothing can be published, if so.
    pub(super) fn refusal(&self) -> Option<String> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Starts the publishers; they end when every task is confirmed, or none ever will be.
pub(super) fn start(load: &Load, published: &Arc<Published>) -> JoinSet<()> {
    let mut publishers = JoinSet::new();
    for number in 0..load.publishers {
        publishers.spawn(publish(load.clone(), number, Arc::clone(published)));
    }
    publishers
}

/// One publisher sends every n-th task.
async fn publish(load: Load, number: u64, published: Arc<Published>) {
    let config = PublisherConfig { in_flight: IN_FLIGHT, ..PublisherConfig::default() };
    let publisher = Publisher::new(load.broker.clone(), config);
    let per_tick = load.rate as f64 / load.publishers as f64 * TICK.as_secs_f64();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut under_way = FuturesUnordered::new();
    let (mut next, mut due) = (number, 0.0);
    while next < load.tasks {
        tokio::select! {
            _ = ticks.tick() => due = (due + per_tick).min(IN_FLIGHT as f64),
            Some(()) = under_way.next() => {}
        }
        while due >= 1.0 && next < load.tasks && under_way.len() < IN_FLIGHT {
            under_way.push(deliver(&publisher, &load, next, &published));
            next += load.publishers;
            due -= 1.0;
        }
        if published.refusal().is_some() {
            return;
        }
    }
    while under_way.next().await.is_some() {}
    publisher.close().await;
}

async fn deliver(publisher: &Publisher, load: &Load, number: u64, published: &Published) {
    let id = format!("{}-{number}", load.stem);
    let mut task = NewTask::new(load.kind.clone(), ContentType::Json, load.payload.clone());
    task.id = TaskId::parse(&id).expect("a short name and a number");
    let properties = task.properties(SystemTime::now());
    let mut backoff = Backoff::default();
    loop {
        let target = Target::exchange(load.names.tasks(), load.kind.to_string());
        let message = Message { target, properties: properties.clone(), body: load.payload.clone().into() };
        match publisher.publish(message).await {
            Ok(()) => {
                published.fresh.lock().unwrap_or_else(PoisonError::into_inner).push(id);
                published.confirmed.fetch_add(1, Relaxed);
                return;
            }
            Err(error) if is_final(&error) => {
                let mut refusal = published.refusal.lock().unwrap_or_else(PoisonError::into_inner);
                refusal.get_or_insert_with(|| error.to_string());
                return;
            }
            Err(error) => {
                if error.in_doubt() {
                    published.again.fetch_add(1, Relaxed);
                }
                tokio::time::sleep(backoff.next_wait()).await;
            }
        }
    }
}

fn is_final(error: &PublishError) -> bool {
    match error {
        PublishError::Unroutable { .. } | PublishError::TooLarge { .. } => true,
        PublishError::Connect(error) => error.is_final(),
        _ => false,
    }
}
