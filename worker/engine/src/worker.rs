//! A worker: built from settings and handlers, run until it is told to stop.

use std::{borrow::Cow, future::Future, sync::Arc};

use futures_util::{FutureExt, future::BoxFuture};
use garenne_amqp::{BrokerError, PublishError, declare::TopologyError};
use garenne_common::{
    config::{Common, ConfigError, Invalid, Settings},
    exit::{Exit, Failure, HasExit},
    shutdown::{Command, Mode, Receipt, Tally},
    telemetry::Metrics,
};
use thiserror::Error;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    budget,
    consumer::{ConsumeBroker, Intake},
    fleet::FleetError,
    handler::{Handler, MissingData, Payload, TaskOptions, WorkerData},
    layer::{ErasedHandler, Function, Layer, Next, erase},
    registry::{Registry, RegistryEntry, RegistryError},
    settings::{SinkName, WorkerConfig},
    sink::Sink,
};

mod catch_all;
mod companion;
mod consumers;
mod drain;
mod handle;
pub(crate) mod handler_runtime;
mod lane;
mod lane_pause;
mod lane_readiness;
mod lane_starter;
mod lane_states;
pub(crate) mod start;
mod unroutable;

pub use companion::Companion;
pub use garenne_pool::ConfigError as PoolError;

pub use handle::{EndedEarly, WorkerHandle};

use companion::RunCompanion;
use drain::requested_stop;
use start::Resources;

/// Why a worker could not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// A handler cannot be registered.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A setting of a file, of the environment or of a flag is not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A setting that was made in code, or that only the whole shows to be wrong.
    #[error(transparent)]
    Setting(#[from] Invalid),
    /// The pool of a lane cannot be started.
    #[error("lane {lane}: {problem}")]
    Pool {
        /// The lane.
        lane: String,
        /// The problem.
        problem: PoolError,
    },
    /// The broker cannot be reached, or refuses something.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The connection for publishing cannot be opened.
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

/// Collects layers, data, handlers and sinks. `L` are the layers.
///
/// ```
/// # use garenne::{Data, Worker, WorkerConfig, TaskOptions};
/// # #[derive(serde::Deserialize)]
/// # struct Mail { to: String }
/// # garenne::json_payload!(Mail, "email.send");
/// # struct Mailer;
/// # async fn send(_: Data<Mailer>, mail: Mail) -> garenne::Result<String> { Ok(mail.to) }
/// let worker = Worker::builder(WorkerConfig::default())
///     .data(Mailer)
///     .handle_with(send, TaskOptions::short())
///     .build()?;
/// # garenne::Result::<()>::Ok(())
/// ```
pub struct WorkerBuilder<L = ()> {
    config: WorkerConfig,
    layers: Arc<L>,
    data: WorkerData,
    handlers: Vec<Registered>,
    sinks: Vec<Arc<dyn Sink>>,
    named_sinks: Vec<(&'static str, OpenSink)>,
    companions: Vec<RunCompanion>,
    /// The first mistake in what was added. [`build`](Self::build) returns it.
    mistake: Option<RegistryError>,
}

/// A handler with its layers, and whether the worker has the data that it needs.
struct Registered {
    kind: &'static str,
    handler: Arc<dyn ErasedHandler>,
    options: TaskOptions,
    check_data: fn(&WorkerData) -> Result<(), MissingData>,
}

impl<L: Layer> WorkerBuilder<L> {
    /// Adds a [layer](crate::layer) around all handlers, inside of the layers that were added before. Layers are added
    /// before handlers.
    #[must_use]
    pub fn layer<N: Layer>(self, layer: N) -> WorkerBuilder<(Arc<L>, N)> {
        let Self { config, layers, data, handlers, sinks, named_sinks, companions, mistake } = self;
        let late = handlers.first().map(|first| RegistryError::LateLayer { kind: first.kind.to_owned() });
        let (layers, mistake) = (Arc::new((layers, layer)), mistake.or(late));
        WorkerBuilder { config, layers, data, handlers, sinks, named_sinks, companions, mistake }
    }

    /// Adds a value that handlers share. A handler takes it as an argument of type [`Data<T>`](crate::Data). One value of
    /// each type; all handlers may use it, also those that were added before.
    #[must_use]
    pub fn data<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        if !self.data.insert(Arc::new(value)) {
            self.mistake.get_or_insert(RegistryError::DataTwice(std::any::type_name::<T>()));
        }
        self
    }

    /// Adds a [handler](Handler) of short tasks.
    #[must_use]
    pub fn handle<H, Arguments>(self, handler: H) -> Self
    where
        H: Handler<Arguments>,
        Arguments: 'static,
    {
        self.handle_with(handler, TaskOptions::short())
    }

    /// Adds a handler whose tasks run as `options` say.
    #[must_use]
    pub fn handle_with<H, Arguments>(self, handler: H, options: TaskOptions) -> Self
    where
        H: Handler<Arguments>,
        Arguments: 'static,
    {
        self.handle_kind(H::Payload::KIND, handler, options)
    }

    /// Adds a handler of another kind than its payload's own: an older name of it, or one that is known only
    /// when the program runs.
    #[must_use]
    pub fn handle_kind<H, Arguments>(
        mut self,
        kind: impl Into<Cow<'static, str>>,
        handler: H,
        options: TaskOptions,
    ) -> Self
    where
        H: Handler<Arguments>,
        Arguments: 'static,
    {
        let kind = kept(kind.into());
        let handler = erase(Arc::clone(&self.layers), Function::<H, Arguments>::new(handler));
        self.handlers.push(Registered { kind, handler, options, check_data: H::check_data });
        self
    }

    /// Adds code that runs the tasks of a kind as [layers](crate::layer) see them, without reading a payload: to pass them
    /// on to another program. A topic pattern such as `image.*` stands for all kinds that match it and have no handler of their
    /// own. Metrics and heartbeats name the pattern.
    #[must_use]
    pub fn handle_task(
        mut self,
        kind: impl Into<Cow<'static, str>>,
        handler: impl Next + 'static,
        options: TaskOptions,
    ) -> Self {
        let (kind, handler) = (kept(kind.into()), erase(Arc::clone(&self.layers), handler));
        self.handlers.push(Registered { kind, handler, options, check_data: |_| Ok(()) });
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

    /// Runs `run` beside the handlers, on their runtime: for processes or connections that a handler works with.
    ///
    /// It starts before the worker consumes. When all tasks have ended, [`Companion::stopping`] is cancelled, and the worker
    /// waits for it as long as the setting `hard_grace`.
    #[must_use]
    pub fn companion<F, R>(mut self, run: F) -> Self
    where
        F: Fn(Companion) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        self.companions.push(Arc::new(move |companion| run(companion).boxed()));
        self
    }

    /// Handlers that keep a processor busy run like all others, and not on threads of their own.
    #[cfg(feature = "simulation")]
    pub(crate) fn on_one_thread(mut self) -> Self {
        self.handlers.iter_mut().for_each(|handler| handler.options.cpu_bound = false);
        self
    }

    /// The settings so far.
    pub fn config(&self) -> &WorkerConfig {
        &self.config
    }

    /// Validates the settings and returns the worker.
    ///
    /// # Errors
    /// [`WorkerError::Setting`] for settings that a file could not have either: they are validated as those of a file.
    /// [`WorkerError::Registry`] for no handler, two for one kind, a kind that could not be a routing key, options
    /// with which no task could succeed, data that a handler needs and that is missing, a layer that came after a handler,
    /// or a sink of the settings that is neither built in nor added.
    pub fn build(self) -> Result<Worker, WorkerError> {
        let Self { config, data, handlers, sinks, named_sinks, companions, mistake, .. } = self;
        config.validate()?;
        if let Some(mistake) = mistake {
            return Err(mistake.into());
        }
        let built_in = [SinkName::STDOUT, SinkName::RESULTS].into_iter();
        let known: Vec<_> = built_in.chain(named_sinks.iter().map(|sink| sink.0)).collect();
        if let Some(SinkName(name)) = config.sinks.iter().find(|sink| !known.contains(&&*sink.0)) {
            return Err(RegistryError::Sink { name: name.clone(), known: known.join(", ") }.into());
        }
        let metrics = Metrics::new("worker");
        metrics.register_kinds(handlers.iter().map(|handler| handler.kind));
        let mut registry = Registry::default();
        for Registered { kind, handler, options, check_data } in handlers {
            check_data(&data).map_err(|missing| RegistryError::Data { kind: kind.to_owned(), missing })?;
            registry.add(kind, RegistryEntry { kind, handler, options, metrics: metrics.kind(kind) })?;
        }
        if registry.is_empty() {
            return Err(RegistryError::Empty.into());
        }
        let lanes = config.lanes.clone().serving(registry.deadlines().map(|(kind, _)| kind));
        let config = WorkerConfig { lanes, ..config };
        if config.lanes.iter().next().is_none() {
            return Err(RegistryError::no_lane(registry.deadlines().map(|(kind, _)| kind)).into());
        }
        budget::check(&config, registry.deadlines())?;
        let name: Arc<str> = config.name().into();
        let (registry, tally) = (Arc::new(registry), Arc::default());
        let (sender, commands) = mpsc::channel(8);
        let handle = WorkerHandle::new(Arc::clone(&name), sender, metrics.clone());
        let asks_for_admin = false;
        let commands = Some(commands);
        Ok(Worker {
            name,
            config,
            registry,
            data,
            sinks,
            named_sinks,
            companions,
            metrics,
            tally,
            handle,
            commands,
            asks_for_admin,
        })
    }
}

/// A worker ready to run.
pub struct Worker {
    name: Arc<str>,
    config: WorkerConfig,
    registry: Arc<Registry>,
    data: WorkerData,
    sinks: Vec<Arc<dyn Sink>>,
    named_sinks: Vec<(&'static str, OpenSink)>,
    companions: Vec<RunCompanion>,
    metrics: Metrics,
    tally: Arc<Tally>,
    handle: WorkerHandle,
    /// Those of the handle. [`None`] once the worker runs.
    commands: Option<mpsc::Receiver<Command>>,
    /// Whether the admin port is open although no setting asks for it.
    asks_for_admin: bool,
}

impl Worker {
    /// Starts building one.
    pub fn builder(config: WorkerConfig) -> WorkerBuilder {
        WorkerBuilder {
            config,
            layers: Arc::new(()),
            data: WorkerData::default(),
            handlers: Vec::new(),
            sinks: Vec::new(),
            named_sinks: Vec::new(),
            companions: Vec::new(),
            mistake: None,
        }
    }

    #[cfg(feature = "simulation")]
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn into_parts(self) -> (Arc<Registry>, WorkerData) {
        (self.registry, self.data)
    }

    /// A handle for the program around the worker.
    pub fn handle(&self) -> WorkerHandle {
        self.handle.clone()
    }

    fn has_admin_port(&self) -> bool {
        let Common { admin, admin_token_file, admin_tls_cert, .. } = &self.config.common;
        self.asks_for_admin || admin.is_some() || admin_token_file.is_some() || admin_tls_cert.is_some()
    }

    /// Opens the admin port, also without a setting.
    #[cfg(feature = "cli")]
    pub(crate) fn with_admin_port(self) -> Self {
        Self { asks_for_admin: true, ..self }
    }

    /// Runs until `shutdown` completes, or the [handle](Self::handle) stops the worker, and then stops in the configured mode.
    /// The receipt says what became of every delivery.
    ///
    /// It handles no signal, and opens no port unless the setting `admin` asks for it (with the feature `admin`). Dropping the
    /// future is no stop: the broker delivers the tasks again, as after a crash.
    ///
    /// # Errors
    /// [`WorkerError`] when it cannot start.
    pub async fn run_until(mut self, shutdown: impl Future<Output = ()>) -> Result<Receipt, WorkerError> {
        let (sender, mode) = (self.handle.commands(), self.config.shutdown_mode);
        let commands = self.commands.take().expect("a worker runs once");
        let requests = sender.clone();
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
        let (began, _ends) = (Instant::now(), self.handle.ends_with_this());
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
        self.handle.begin(Arc::clone(&running.status) as _);
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

/// A kind for as long as the process lives: a worker is built once, and its metrics name its kinds.
fn kept(kind: Cow<'static, str>) -> &'static str {
    match kind {
        Cow::Borrowed(kind) => kind,
        Cow::Owned(kind) => kind.leak(),
    }
}

#[cfg(test)]
mod tests;
