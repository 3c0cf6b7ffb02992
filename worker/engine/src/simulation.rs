//! The seams between a worker and its broker, for simulations: a worker that consumes from, and publishes to, anything
//! that implements these traits, on one thread. Compiled only with the undocumented feature `simulation`.

use std::sync::{Arc, atomic::AtomicBool};

use garenne_amqp::{Publisher, simulated::PublishBroker};
use garenne_common::{
    shutdown::{Command, Receipt},
    simulation,
    supervise::Process,
};
use tokio::{sync::mpsc, task::JoinHandle};

pub use crate::consumer::broker::{
    ChannelError, ConsumeBroker, ConsumeChannel, Disposition, Frame, QueueState, RawDelivery, RestoreError,
    SettleChannel,
};
use crate::worker::{
    Worker, WorkerBuilder, WorkerError,
    handler_runtime::HandlerRuntime,
    start::{Resources, publisher_config},
};

/// Commands that wait until the worker takes them.
const COMMANDS: usize = 16;

/// A simulated worker process.
pub struct SimulatedWorker {
    commands: mpsc::Sender<Command>,
    process: Process,
    running: JoinHandle<Result<Receipt, WorkerError>>,
}

impl SimulatedWorker {
    /// Starts the worker of `builder` as a process of its own on the current runtime. It has no admin port. Handlers
    /// run on the current thread, those that keep a processor busy too.
    ///
    /// It consumes from `consume` and publishes to `publish`, unless `blocked` says that an alarm blocks publishers.
    ///
    /// # Errors
    /// As [`WorkerBuilder::build`].
    ///
    /// # Panics
    /// Outside a [`Simulation`](garenne_common::simulation::Simulation), whose random numbers it takes.
    pub fn start<B: ConsumeBroker>(
        builder: WorkerBuilder,
        consume: B,
        publish: Arc<dyn PublishBroker>,
        blocked: Arc<AtomicBool>,
    ) -> Result<Self, WorkerError> {
        assert!(simulation::is_running(), "begin a simulation first");
        let worker = builder.on_one_thread().build()?;
        let (commands, requested) = mpsc::channel(COMMANDS);
        let (process, sender) = (Process::default(), commands.clone());
        let running = process.start(async move {
            let resources = worker.simulated(consume, publish, blocked);
            worker.run_with(async { Ok(resources) }, sender, requested).await
        });
        Ok(Self { commands, process, running })
    }

    /// Gives the worker a command, as its admin port and its control queue do: if too many wait, it is dropped.
    pub fn command(&self, command: Command) {
        let _ = self.commands.try_send(command);
    }

    /// Ends the process: none of its tasks runs any further, and what it held is not settled. The simulated broker must
    /// have closed its connections.
    pub fn crash(&self) {
        self.process.crash();
    }

    /// Whether the worker has stopped, failed to start or crashed.
    pub fn has_ended(&self) -> bool {
        self.running.is_finished()
    }

    /// The worker's receipt, once it has stopped; [`None`] if it crashed.
    pub async fn receipt(self) -> Option<Result<Receipt, WorkerError>> {
        match self.running.await {
            Ok(result) => Some(result),
            Err(error) if error.is_cancelled() => None,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

impl Worker {
    fn simulated<B>(
        &self,
        broker: B,
        publish: Arc<dyn PublishBroker>,
        blocked: Arc<AtomicBool>,
    ) -> Resources<B> {
        let metrics = Some(Arc::new(self.metrics().connection().clone()) as _);
        let replies =
            Publisher::simulated(Arc::clone(&publish), Arc::clone(&blocked), publisher_config(), None);
        Resources {
            admin: None,
            traces: Default::default(),
            broker,
            publisher: Publisher::simulated(publish, blocked, publisher_config(), metrics),
            replies,
            handlers: HandlerRuntime::current(),
        }
    }
}

#[cfg(test)]
mod tests;
