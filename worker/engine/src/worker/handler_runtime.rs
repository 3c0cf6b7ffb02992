//! The runtime that handlers run on.

use tokio::runtime::{Builder, Handle, Runtime};

use super::WorkerError;

/// Handlers run on threads of their own, so that they cannot delay heartbeats and acks.
///
/// Dropping it does not wait: a handler that ignores its cancellation must not hold the process, and a runtime cannot
/// be waited for inside another one.
pub(crate) struct HandlerRuntime {
    handle: Handle,
    /// [`None`] if they run on the current runtime, in a simulation.
    own: Option<Runtime>,
}

impl HandlerRuntime {
    /// Starts one thread per processor.
    pub(crate) fn start() -> Result<Self, WorkerError> {
        let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let runtime =
            Builder::new_multi_thread().worker_threads(threads).thread_name("handler").enable_all().build();
        let runtime = runtime.map_err(WorkerError::Threads)?;
        Ok(Self { handle: runtime.handle().clone(), own: Some(runtime) })
    }

    /// Lets handlers run on the current runtime.
    #[cfg(feature = "simulation")]
    pub(crate) fn current() -> Self {
        Self { handle: Handle::current(), own: None }
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for HandlerRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.own.take() {
            runtime.shutdown_background();
        }
    }
}
