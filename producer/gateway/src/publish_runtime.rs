//! Runs publishes independently of the connections that wait for them.

use garenne_common::supervise;
use tokio::{runtime::Handle, sync::oneshot};

/// Runs publishes on the runtime of the broker's connection.
///
/// A publish continues when its sender disconnects: the message stays in memory until its confirm, and so does the
/// memory reservation that the future holds.
#[derive(Clone, Debug)]
pub(super) struct PublishRuntime(Handle);

impl PublishRuntime {
    /// The current runtime.
    pub(super) fn current() -> Self {
        Self(Handle::current())
    }

    /// Runs `publish` and returns its outcome; `None` if it panics or the runtime shuts down before.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        publish: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (sender, outcome) = oneshot::channel();
        let publish = async move {
            // Fails if the sender of the request has disconnected.
            let _ = sender.send(publish.await);
        };
        supervise::isolated("publish", publish).spawn_on(&self.0).detach();
        outcome.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_publish_continues_after_its_sender_disconnects() {
        let (confirm, confirmed) = oneshot::channel::<()>();
        let (end, mut ended) = oneshot::channel::<()>();
        let runtime = PublishRuntime::current();
        let mut publish = Box::pin(runtime.run(async move {
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
