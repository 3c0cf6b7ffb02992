//! The runtime of the harness's servers.
//!
//! Every `#[tokio::test]` has its own runtime, which ends with the test. The Docker client of a shared broker must
//! outlive it.

use std::sync::OnceLock;

use tokio::runtime::{Builder, Runtime};

/// Runs a future on the harness's runtime and waits for it from any other runtime.
///
/// A panic of the future is propagated to the caller.
pub(crate) async fn on_harness<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    match runtime().spawn(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Runs a future on the harness's runtime and blocks this thread until it is done: for `Drop`.
pub(crate) fn block_on_harness<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    runtime().spawn(async move {
        let _ = sender.send(work.await);
    });
    receiver.recv().ok()
}

/// Starts a future on the harness's runtime without waiting for it.
pub(crate) fn spawn_on_harness(work: impl Future<Output = ()> + Send + 'static) {
    runtime().spawn(work);
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("harness")
            .enable_all()
            .build()
            .expect("a runtime for the harness")
    })
}
