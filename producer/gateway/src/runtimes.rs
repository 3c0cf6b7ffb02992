//! The runtimes: one for the connections of senders, one for everything else.

use std::{io, ops::Deref};

use futures_util::FutureExt;
use garenne_common::supervise;
use scopeguard::guard;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::oneshot,
};

/// Starts a tokio runtime for the connections of senders only.
///
/// Publisher confirms, heartbeats and the admin port run on another runtime, so that they do not wait behind the
/// connections. On one runtime, a busy gateway would see late confirms, take the broker for slow, and refuse readings.
///
/// The runtime is shut down in the background: the drop of a `Runtime` blocks, which panics on a thread of another
/// runtime.
///
/// # Errors
/// The OS refuses to start the threads.
pub(super) fn connection_runtime() -> io::Result<impl Deref<Target = Runtime>> {
    let runtime = Builder::new_multi_thread().thread_name("connections").enable_all().build()?;
    Ok(guard(runtime, Runtime::shutdown_background))
}

/// Runs `publish` on `runtime`, that of the broker's connection, and returns its outcome; `None` if it panics or the
/// runtime shuts down before.
///
/// A publish continues when its sender disconnects: the message stays in memory until its confirm, and so does the
/// memory reservation that the future holds.
pub(super) async fn publish_on<T: Send + 'static>(
    runtime: &Handle,
    publish: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let (sender, outcome) = oneshot::channel();
    let publish = publish.map(|outcome| {
        // Fails if the sender of the request has disconnected.
        let _ = sender.send(outcome);
    });
    supervise::isolated("publish", publish).spawn_on(runtime).detach();
    outcome.await.ok()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;

    #[tokio::test]
    async fn publishes_complete_while_all_connection_threads_are_busy() {
        let connections = connection_runtime().unwrap();
        let (begin, begun) = oneshot::channel();
        let (confirm, confirmed) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let publish_runtime = Handle::current();
        let connection = connections.handle().spawn(async move {
            let publish = async move {
                begin.send(()).unwrap();
                confirmed.await.unwrap();
                end.send(()).unwrap();
            };
            publish_on(&publish_runtime, publish).await
        });
        begun.await.unwrap();

        let threads = connections.handle().metrics().num_workers();
        let (busy, idle) = (Arc::new(Barrier::new(threads + 1)), Arc::new(Barrier::new(threads + 1)));
        for _ in 0..threads {
            let (busy, idle) = (Arc::clone(&busy), Arc::clone(&idle));
            connections.handle().spawn(async move {
                busy.wait();
                idle.wait();
            });
        }
        busy.wait();
        confirm.send(()).unwrap();
        ended.await.unwrap();
        assert!(!connection.is_finished(), "no thread is free to poll it");
        idle.wait();
        assert_eq!(connection.await.unwrap(), Some(()));
    }

    #[tokio::test]
    async fn a_publish_continues_after_its_sender_disconnects() {
        let (confirm, confirmed) = oneshot::channel::<()>();
        let (end, mut ended) = oneshot::channel::<()>();
        let runtime = Handle::current();
        let mut publish = Box::pin(publish_on(&runtime, async move {
            let _held = end;
            let _ = confirmed.await;
        }));
        assert!(futures_util::poll!(&mut publish).is_pending());
        drop(publish);
        tokio::task::yield_now().await;
        assert_eq!(ended.try_recv(), Err(oneshot::error::TryRecvError::Empty), "still held");
        confirm.send(()).unwrap();
        assert!(ended.await.is_err(), "released");
    }
}
