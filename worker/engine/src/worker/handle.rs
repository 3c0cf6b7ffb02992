//! A worker as the program around it sees it.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use garenne_common::{
    shutdown::{Command, Mode},
    telemetry::{Metrics, admin::Process},
};
use prometheus::Registry;
use tokio::{sync::mpsc, time::sleep};

/// Time between two looks at the worker's readiness.
const READY_INTERVAL: Duration = Duration::from_millis(20);

/// A worker has ended before it was ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the worker has ended before it was ready")]
pub struct EndedEarly;

/// A worker inside of a program: its readiness, its metrics, and the commands that stop it. Cheap to clone; it outlives the
/// worker.
///
/// ```no_run
/// # use garenne::{Worker, WorkerConfig, json_payload, shutdown::Mode};
/// # #[derive(serde::Deserialize)]
/// # struct Mail {}
/// # json_payload!(Mail, "email.send");
/// # async fn send(_: Mail) -> garenne::Result<()> { Ok(()) }
/// # async fn serve_http(ready: impl Fn() -> bool) {}
/// # async fn run() -> garenne::Result<()> {
/// let worker = Worker::builder(WorkerConfig::default()).handle(send).build()?;
/// let handle = worker.handle();
/// let http = serve_http({
///     let handle = handle.clone();
///     move || handle.ready().is_ok()
/// });
/// // The HTTP server of the program decides when both stop.
/// let (receipt, ()) = tokio::join!(worker.run_until(std::future::pending()), async {
///     http.await;
///     handle.drain(Mode::SoftTimeout).await;
/// });
/// assert!(receipt?.balances());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct WorkerHandle(Arc<Shared>);

pub(super) struct Shared {
    name: Arc<str>,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) metrics: Metrics,
    /// Set when the worker consumes.
    pub(super) process: OnceLock<Arc<dyn Process>>,
    has_ended: AtomicBool,
}

/// Records that the worker has ended, also if the program drops its future.
pub(super) struct EndGuard(WorkerHandle);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.0.has_ended.store(true, Ordering::Relaxed);
    }
}

impl WorkerHandle {
    pub(super) fn new(name: Arc<str>, commands: mpsc::Sender<Command>, metrics: Metrics) -> Self {
        Self(Arc::new(Shared {
            name,
            commands,
            metrics,
            process: OnceLock::new(),
            has_ended: AtomicBool::new(false),
        }))
    }

    pub(super) fn ends_with_this(&self) -> EndGuard {
        EndGuard(self.clone())
    }

    pub(super) fn begin(&self, process: Arc<dyn Process>) {
        // A worker runs once.
        let _ = self.0.process.set(process);
    }

    pub(super) fn commands(&self) -> mpsc::Sender<Command> {
        self.0.commands.clone()
    }

    /// Whether the worker consumes all its lanes and can settle tasks. One that is [quiet](Self::quiet) stays ready; one that
    /// stops, or has ended, is not.
    ///
    /// # Errors
    /// The reasons why it is not ready, each as one line: what `/readyz` of the admin port answers.
    pub fn ready(&self) -> Result<(), Vec<String>> {
        if self.0.has_ended.load(Ordering::Relaxed) {
            return Err(vec!["the worker has ended".to_owned()]);
        }
        match self.0.process.get() {
            Some(process) => process.ready(),
            None => Err(vec!["starting: connecting to the broker and the sinks".to_owned()]),
        }
    }

    /// Waits until the worker is [ready](Self::ready), so that its topology exists and its lanes are consumed.
    ///
    /// # Errors
    /// The worker has ended before it was ready. [`Worker::run_until`](super::Worker::run_until) returns why.
    pub async fn until_ready(&self) -> Result<(), EndedEarly> {
        while self.ready().is_err() {
            if self.0.has_ended.load(Ordering::Relaxed) {
                return Err(EndedEarly);
            }
            sleep(READY_INTERVAL).await;
        }
        Ok(())
    }

    /// The registry of the worker's metrics, for the program's own exporter.
    pub fn registry(&self) -> &Registry {
        self.0.metrics.registry()
    }

    /// The worker's metrics in the text format of Prometheus, with the present figures.
    pub fn metrics(&self) -> String {
        self.0.metrics.encode()
    }

    /// The metrics of several workers of one program as one text. Each series has the label `worker` with the worker's name:
    /// without it, the text would have every series several times.
    ///
    /// ```
    /// # use garenne::WorkerHandle;
    /// fn metrics(workers: &[WorkerHandle]) -> String {
    ///     WorkerHandle::metrics_of(workers)
    /// }
    /// # assert_eq!(metrics(&[]), "");
    /// ```
    pub fn metrics_of<'w>(workers: impl IntoIterator<Item = &'w Self>) -> String {
        Metrics::encode_all(workers.into_iter().map(|worker| (&*worker.0.name, &worker.0.metrics)))
    }

    /// Stops consuming new tasks. Those that the worker holds are finished.
    pub async fn quiet(&self) {
        self.send(Command::Quiet).await;
    }

    /// Consumes again after [`quiet`](Self::quiet).
    pub async fn resume(&self) {
        self.send(Command::Resume).await;
    }

    /// Stops the worker in this mode, and returns at once. [`Worker::run_until`](super::Worker::run_until) returns when it has
    /// stopped.
    pub async fn drain(&self, mode: Mode) {
        self.send(Command::Shutdown(mode)).await;
    }

    async fn send(&self, command: Command) {
        // Without a receiver, the worker has stopped.
        let _ = self.0.commands.send(command).await;
    }
}
