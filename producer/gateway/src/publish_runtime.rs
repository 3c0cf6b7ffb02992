//! Runs publishes independently of the connections that wait for them.

use std::panic::resume_unwind;

use tokio::runtime::Handle;

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

    /// Runs `publish` and returns its outcome; `None` if the runtime shuts down before.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        publish: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        match self.0.spawn(publish).await {
            Ok(outcome) => Some(outcome),
            // The panic continues here: it ends the connection and is logged.
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            Err(_) => None,
        }
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
