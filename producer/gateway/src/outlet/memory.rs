//! An outlet that keeps what it is given: for tests of everything in front of a broker, and for
//! measuring that part alone.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use garenne_amqp::PublishError;
use garenne_protocol::task::NewTask;
use tokio::sync::{Semaphore, watch};

use super::Outlet;

/// Confirms at once, or when told to; refuses when told to.
#[derive(Default)]
pub struct MemoryOutlet {
    kept: Mutex<Vec<NewTask>>,
    failure: Mutex<Option<PublishError>>,
    gate: Option<Semaphore>,
    waiting: watch::Sender<usize>,
}

impl MemoryOutlet {
    /// Confirms at once.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Confirms nothing before [`MemoryOutlet::confirm`].
    pub fn gated() -> Arc<Self> {
        Arc::new(Self { gate: Some(Semaphore::new(0)), ..Self::default() })
    }

    /// Lets `deliveries` more deliveries be confirmed.
    pub fn confirm(&self, deliveries: usize) {
        if let Some(gate) = &self.gate {
            gate.add_permits(deliveries);
        }
    }

    /// Resolves once `deliveries` have arrived in all, confirmed or not.
    pub async fn waiting(&self, deliveries: usize) {
        let arrived = self.waiting.subscribe().wait_for(|arrived| *arrived >= deliveries).await.map(drop);
        arrived.expect("the sender is part of self");
    }

    /// From now on every delivery fails so; `None` ends it.
    pub fn fail(&self, failure: Option<PublishError>) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    /// Everything confirmed so far.
    pub fn tasks(&self) -> Vec<NewTask> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Outlet for MemoryOutlet {
    fn deliver(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        Box::pin(async move {
            self.waiting.send_modify(|arrived| *arrived += 1);
            if let Some(gate) = &self.gate {
                gate.acquire().await.expect("the gate is never closed").forget();
            }
            if let Some(failure) = self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone() {
                return Err(failure);
            }
            self.kept.lock().unwrap_or_else(PoisonError::into_inner).extend(tasks);
            Ok(())
        })
    }
}
