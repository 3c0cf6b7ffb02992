//! A worker: built from settings and handlers, run until it is told to stop.

use std::{future::Future, sync::Arc};

use futures_util::{FutureExt, future::BoxFuture};
use garenne_amqp::{BrokerError, PublishError, declare::TopologyError};
use garenne_common::{
    config::{ConfigError, Invalid, Settings},
    exit::{Exit, Failure, HasExit},
    shutdown::{Command, Mode, Receipt, Tally},
    telemetry::Metrics,
};
use garenne_pool as pool;
use thiserror::Error;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    consumer::{ConsumeBroker, Intake},
    fleet::FleetError,
    handler::{ErasedHandler, IntoOutput, Payload, TaskContext, TaskError, TaskOptions, erase},
    registry::{Entry, Registry, RegistryError},
    settings::{SinkName, WorkerConfig},
    sink::Sink,
};

mod catch_all;
mod drain;
pub(crate) mod handler_runtime;
mod lane;
mod lane_pause;
mod lane_starter;
pub(crate) mod start;

use drain::requested_stop;
use start::Resources;

/// Why a worker could not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// A handler.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A setting.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A setting that was made in code, or that only the whole shows to be wrong.
    #[error(transparent)]
    Setting(#[from] Invalid),
    /// A lane's pool.
    #[error("lane {lane}: {problem}")]
    Pool {
        /// The lane.
        lane: String,
        /// The problem.
        problem: pool::ConfigError,
    },
    /// The broker.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The publishing connection.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The exchanges and queues.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The streams that every worker reads before it works.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// A sink of the settings could not be opened.
    #[error("{0}")]
    Sink(Failure),
    /// The operating system.
    #[error("cannot start threads: {0}")]
    Threads(std::io::Error),
}

impl HasExit for WorkerError {
    fn exit(&self) -> Exit {
        match self {
            Self::Registry(_) | Self::Config(_) | Self::Setting(_) | Self::Pool { .. } => Exit::Config,
            Self::Broker(error) => error.exit(),
            Self::Publish(error) => error.exit(),
            Self::Topology(error) => error.exit(),
            Self::Fleet(error) => error.exit(),
            Self::Sink(failure) => failure.exit,
            Self::Threads(_) => Exit::Failed,
        }
    }
}

impl WorkerError {
    /// The exit code if this attempt to connect was the last one. A login that was refused counts as an unavailable
    /// broker while its URL is read again from a file: the password there may be about to change.
    fn exit_of_attempt(&self) -> Exit {
        match self {
            Self::Broker(error) | Self::Publish(PublishError::Connect(error)) if !error.is_final() => {
                Exit::BrokerUnavailable
            }
            error => error.exit(),
        }
    }
}

/// Opens a sink while the worker starts.
type OpenSink = Arc<dyn Fn() -> BoxFuture<'static, Result<Arc<dyn Sink>, Failure>> + Send + Sync>;

/// Collects handlers and sinks.
pub struct WorkerBuilder {
    config: WorkerConfig,
    handlers: Vec<(&'static str, Arc<ErasedHandler>, TaskOptions)>,
    sinks: Vec<Arc<dyn Sink>>,
    named_sinks: Vec<(&'static str, OpenSink)>,
}

impl WorkerBuilder {
    /// Adds a handler of short tasks.
    #[must_use]
    pub fn handle<F, P, R, O>(self, handler: F) -> Self
    where
        F: Fn(TaskContext, P) -> R + Send + Sync + 'static,
        P: Payload,
        R: Future<Output = Result<O, TaskError>> + Send + 'static,
        O: IntoOutput + 'static,
    {
        self.handle_with(handler, TaskOptions::short())
    }

    /// Adds a handler whose tasks run as `options` say.
    #[must_use]
    pub fn handle_with<F, P, R, O>(self, handler: F, options: TaskOptions) -> Self
    where
        F: Fn(TaskContext, P) -> R + Send + Sync + 'static,
        P: Payload,
        R: Future<Output = Result<O, TaskError>> + Send + 'static,
        O: IntoOutput + 'static,
    {
        self.handle_kind(P::KIND, handler, options)
    }

    /// Adds a handler of another kind than its payload's own: an older name of it, or one that is known only
    /// when the program runs.
    #[must_use]
    pub fn handle_kind<F, P, R, O>(mut self, kind: &'static str, handler: F, options: TaskOptions) -> Self
    where
        F: Fn(TaskContext, P) -> R + Send + Sync + 'static,
        P: Payload,
        R: Future<Output = Result<O, TaskError>> + Send + 'static,
        O: IntoOutput + 'static,
    {
        self.handlers.push((kind, erase(handler), options));
        self
    }

    /// Adds a sink besides those of the settings.
    #[must_use]
    pub fn sink(mut self, sink: Arc<dyn Sink>) -> Self {
        self.sinks.push(sink);
        self
    }

    /// Adds a sink that the setting `sinks` can name besides `stdout` and `results`.
    ///
    /// `open` is called while the worker starts, if the setting contains `name`. An error ends the start.
    #[must_use]
    pub fn named_sink<F, R>(mut self, name: &'static str, open: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<Arc<dyn Sink>, Failure>> + Send + 'static,
    {
        self.named_sinks.push((name, Arc::new(move || open().boxed())));
        self
    }

    /// Handlers that keep a processor busy run like all others, and not on threads of their own.
    #[cfg(feature = "simulation")]
    pub(crate) fn on_one_thread(mut self) -> Self {
        self.handlers.iter_mut().for_each(|(.., options)| options.cpu_bound = false);
        self
    }

    /// The settings so far.
    pub fn config(&self) -> &WorkerConfig {
        &self.config
    }

    /// The finished worker.
    ///
    /// # Errors
    /// [`WorkerError::Setting`] for settings that a file could not have either: they are validated as those of a file.
    /// [`WorkerError::Registry`] for no handler, two for one kind, a kind that could not be a routing key, options
    /// with which no task could succeed, or a sink of the settings that is neither built in nor added.
    pub fn build(self) -> Result<Worker, WorkerError> {
        let Self { config, handlers, sinks, named_sinks } = self;
        config.validate()?;
        let built_in = [SinkName::STDOUT, SinkName::RESULTS].into_iter();
        let known: Vec<_> = built_in.chain(named_sinks.iter().map(|sink| sink.0)).collect();
        if let Some(SinkName(name)) = config.sinks.iter().find(|sink| !known.contains(&&*sink.0)) {
            return Err(RegistryError::Sink { name: name.clone(), known: known.join(", ") }.into());
        }
        let metrics = Metrics::new("worker");
        metrics.register_kinds(handlers.iter().map(|(kind, ..)| *kind));
        let mut registry = Registry::default();
        for (kind, handler, options) in handlers {
            registry.add(kind, Entry { kind, handler, options, metrics: metrics.kind(kind) })?;
        }
        if registry.is_empty() {
            return Err(RegistryError::Empty.into());
        }
        let lanes = config.lanes.clone().serving(registry.deadlines().map(|(kind, _)| kind));
        let config = WorkerConfig { lanes, ..config };
        let name = config.name().into();
        let (registry, tally) = (Arc::new(registry), Arc::default());
        Ok(Worker { name, config, registry, sinks, named_sinks, metrics, tally })
    }
}

/// A worker ready to run.
pub struct Worker {
    name: Arc<str>,
    config: WorkerConfig,
    registry: Arc<Registry>,
    sinks: Vec<Arc<dyn Sink>>,
    named_sinks: Vec<(&'static str, OpenSink)>,
    metrics: Metrics,
    tally: Arc<Tally>,
}

impl Worker {
    /// Starts building one.
    pub fn builder(config: WorkerConfig) -> WorkerBuilder {
        WorkerBuilder { config, handlers: Vec::new(), sinks: Vec::new(), named_sinks: Vec::new() }
    }

    #[cfg(feature = "simulation")]
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn into_registry(self) -> Arc<Registry> {
        self.registry
    }

    /// Runs until `shutdown` completes, then stops in the configured mode. The receipt says what
    /// became of every delivery.
    ///
    /// # Errors
    /// [`WorkerError`] when it cannot start.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<Receipt, WorkerError> {
        let (sender, commands) = mpsc::channel(1);
        let (requests, mode) = (sender.clone(), self.config.shutdown_mode);
        let mut running = std::pin::pin!(self.run(sender, commands));
        tokio::select! {
            biased;
            receipt = &mut running => return receipt,
            () = shutdown => {}
        }
        // The worker reads commands for as long as it runs.
        let (_, receipt) = tokio::join!(requests.send(Command::Shutdown(mode)), running);
        receipt
    }

    /// Runs until a command stops it, also one that comes before it is ready. `sender` feeds the same channel: the
    /// admin port uses it.
    ///
    /// # Errors
    /// [`WorkerError`] when it cannot start. Once it runs, trouble with the broker is waited out.
    pub async fn run(
        self,
        sender: mpsc::Sender<Command>,
        commands: mpsc::Receiver<Command>,
    ) -> Result<Receipt, WorkerError> {
        self.run_with(start::open(&self, &sender), sender.clone(), commands).await
    }

    /// As [`run`](Self::run), with the connections that `open` returns.
    pub(crate) async fn run_with<B: ConsumeBroker>(
        &self,
        open: impl Future<Output = Result<Resources<B>, WorkerError>>,
        sender: mpsc::Sender<Command>,
        mut commands: mpsc::Receiver<Command>,
    ) -> Result<Receipt, WorkerError> {
        let began = Instant::now();
        let (intake, stopping) = (watch::Sender::new(Intake::Open), CancellationToken::new());
        let mut starting = std::pin::pin!(start::start(self, open, sender, intake.clone(), &stopping));
        let (running, stop) = tokio::select! {
            biased;
            started = &mut starting => (started?, None),
            mode = requested_stop(&mut commands, &intake) => {
                stopping.cancel();
                // An error of a start that is not wanted any more does not matter.
                (starting.await.unwrap_or_default(), Some(mode))
            }
        };
        let Some(mut running) = running else {
            tracing::info!(worker = %self.name, "stopped before the start was complete");
            let mode = stop.unwrap_or(self.config.shutdown_mode);
            return Ok(self.tally.receipt(&self.name, mode, false, began.elapsed()));
        };
        tracing::info!(worker = %self.name, lanes = running.status.lanes.len(), "consuming");
        let wanted = match stop {
            Some(mode) => Ok(mode),
            None => running.until_shutdown(&mut commands).await,
        };
        let mode = *wanted.as_ref().unwrap_or(&Mode::Hard);
        let began = Instant::now();
        let escalated = running.drain(mode, &mut commands, &self.config).await;
        // The deliveries that it did get have been handed back by now.
        wanted?;
        Ok(self.tally.receipt(&self.name, mode, escalated, began.elapsed()))
    }
}

#[cfg(test)]
mod tests;
