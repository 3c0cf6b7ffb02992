//! Where tasks leave this process: the broker, or whatever stands for it in a test.

use std::{sync::Arc, time::Instant, time::SystemTime};

use futures_util::{
    future::BoxFuture,
    stream::{FuturesUnordered, StreamExt},
};
use garenne_common::{
    broker::{Message, PublishError, Publisher, Target},
    task::NewTask,
    telemetry::metrics::{ConnectionMetrics, PublishResult},
    topology::Names,
};

pub mod memory;

/// Takes tasks and answers once it is known that all of them are safe.
pub trait Outlet: Send + Sync + 'static {
    /// Delivers every task, or says why not all of them are known to be safe. After an error some
    /// may be stored all the same; delivering them again under the same ids has no second effect.
    fn deliver(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>>;
}

/// Publishes each task as a message of its own, many in flight.
pub struct BrokerOutlet {
    publisher: Publisher,
    exchange: String,
    metrics: ConnectionMetrics,
}

impl BrokerOutlet {
    /// Publishes to the task exchange of `names`.
    pub fn new(publisher: Publisher, names: &Names, metrics: ConnectionMetrics) -> Arc<Self> {
        Arc::new(Self { publisher, exchange: names.tasks(), metrics })
    }

    async fn one(&self, task: NewTask) -> Result<(), PublishError> {
        let properties = task.properties(SystemTime::now());
        let target = Target::exchange(self.exchange.clone(), task.kind.as_str().to_owned());
        let started = Instant::now();
        let outcome = self.publisher.publish(Message { target, properties, body: task.body.into() }).await;
        self.metrics.published(PublishResult::of(&outcome), started.elapsed());
        outcome
    }
}

impl Outlet for BrokerOutlet {
    fn deliver(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        Box::pin(async move {
            let mut flying: FuturesUnordered<_> = tasks.into_iter().map(|task| self.one(task)).collect();
            // Every confirm is waited for, also after a failure: what is still in flight must not
            // outlive the answer that the caller gives.
            let mut outcome = Ok(());
            while let Some(result) = flying.next().await {
                if outcome.is_ok() {
                    outcome = result;
                }
            }
            outcome
        })
    }
}
