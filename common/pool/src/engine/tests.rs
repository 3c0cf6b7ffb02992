//! A pool core whose workers are never spawned, so that tests decide what each worker does.

use std::{
    ops::RangeInclusive,
    sync::{Arc, mpsc},
    time::Duration,
};

use tokio::runtime;

use super::{admission::admit, core::PoolCore, worker::Worker};
use crate::{
    config::{PoolConfig, PoolOptions},
    context::TaskContext,
    ending::Ending,
    pool_types::TypesOf,
    refusal::Refusal,
    spec::Spec,
    state::worker_slot::WorkerSlot,
    task::{Completion, Task},
};

pub(crate) struct TestTask;

impl Task for TestTask {
    type Output = ();

    async fn run(self, _cx: TaskContext) {}
}

pub(crate) struct SendEnding(mpsc::Sender<Ending<()>>);

impl Completion<()> for SendEnding {
    fn complete(self, ending: Ending<()>) {
        self.0.send(ending).unwrap();
    }
}

pub(crate) type TestTypes = TypesOf<TestTask, SendEnding>;
pub(crate) type Core = Arc<PoolCore<TestTypes>>;
pub(crate) type Slot = Arc<WorkerSlot<TestTypes>>;

/// A core on a runtime with `threads` threads.
pub(crate) struct TestCore {
    pub(crate) core: Core,
    pub(crate) endings: mpsc::Receiver<Ending<()>>,
    sender: mpsc::Sender<Ending<()>>,
    _runtime: runtime::Runtime,
}

impl TestCore {
    pub(crate) fn new(workers: RangeInclusive<usize>, threads: usize) -> Self {
        let runtime =
            runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap();
        let config = PoolConfig {
            name: "test".to_owned(),
            queue: 100,
            workers,
            idle_timeout: Duration::from_secs(1),
            default_deadline: Duration::from_secs(1),
            grace: Duration::from_secs(1),
        };
        let core = PoolCore::new(None, config, PoolOptions::default(), runtime.handle().clone(), |_, _| {});
        let (sender, endings) = mpsc::channel();
        Self { core, endings, sender, _runtime: runtime }
    }

    pub(crate) fn submit(&self, spec: Spec) -> Result<u64, Refusal> {
        let completion = SendEnding(self.sender.clone());
        admit(&self.core, spec, TestTask, completion, None).map_err(|refused| refused.reason)
    }

    pub(crate) fn worker(&self, slot: &Slot) -> Worker<TestTypes> {
        Worker { core: Arc::clone(&self.core), slot: Arc::clone(slot) }
    }

    /// Adds a worker that waits for its first task.
    pub(crate) fn add_worker(&self) -> Slot {
        self.core.lock().workers.add()
    }
}
