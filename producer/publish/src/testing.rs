//! Keeps tasks in memory instead of sending them, for tests.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use garenne_amqp::PublishError;
use garenne_protocol::task::NewTask;
use tokio::sync::{Semaphore, watch};

use crate::{messages::GroupSender, task_sender::TaskSender};

/// Confirms at once or on demand, and fails on demand.
#[derive(Default)]
pub struct MemorySender {
    confirmed: Mutex<Vec<NewTask>>,
    failure: Mutex<Option<PublishError>>,
    /// The kind of tasks that are returned as unroutable.
    returned: Mutex<Option<String>>,
    gate: Option<Semaphore>,
    received: watch::Sender<usize>,
}

impl MemorySender {
    /// Confirms at once.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Confirms nothing before [`MemorySender::confirm`].
    pub fn gated() -> Arc<Self> {
        Arc::new(Self { gate: Some(Semaphore::new(0)), ..Self::default() })
    }

    /// Confirms the tasks of `calls` more calls.
    pub fn confirm(&self, calls: usize) {
        if let Some(gate) = &self.gate {
            gate.add_permits(calls);
        }
    }

    /// Resolves when `calls` calls have been made since the start, confirmed or not.
    pub async fn received(&self, calls: usize) {
        let reached = self.received.subscribe().wait_for(|received| *received >= calls).await.map(drop);
        reached.expect("the sender is part of self");
    }

    /// From now on every call fails with `failure`; `None` ends this.
    pub fn fail(&self, failure: Option<PublishError>) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    /// From now on tasks of this kind are returned as unroutable, and others of the same call are confirmed; `None` ends
    /// this.
    pub fn return_kind(&self, kind: Option<&str>) {
        *self.returned.lock().unwrap_or_else(PoisonError::into_inner) = kind.map(str::to_owned);
    }

    /// All tasks that were confirmed.
    pub fn tasks(&self) -> Vec<NewTask> {
        self.confirmed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl GroupSender for MemorySender {
    fn send_group(self: Arc<Self>, tasks: Vec<NewTask>) -> BoxFuture<'static, Result<(), PublishError>> {
        Box::pin(async move { self.send(tasks).await })
    }
}

impl TaskSender for MemorySender {
    fn send(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        Box::pin(async move {
            self.received.send_modify(|received| *received += 1);
            if let Some(gate) = &self.gate {
                gate.acquire().await.expect("the gate is never closed").forget();
            }
            if let Some(failure) = self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone() {
                return Err(failure);
            }
            let returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let is_returned = |task: &NewTask| returned.as_deref() == Some(task.kind.as_str());
            let (returned, confirmed): (Vec<_>, Vec<_>) = tasks.into_iter().partition(is_returned);
            self.confirmed.lock().unwrap_or_else(PoisonError::into_inner).extend(confirmed);
            match returned.first() {
                Some(task) => Err(PublishError::Unroutable {
                    exchange: "garenne.tasks".to_owned(),
                    routing_key: task.kind.to_string(),
                }),
                None => Ok(()),
            }
        })
    }
}
