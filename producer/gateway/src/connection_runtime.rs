//! The threads that serve sensors' connections.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};

/// A runtime for sensors' connections and nothing else.
///
/// However many of them want to be served, the broker's confirms, the heartbeats and the admin port do not wait behind
/// them. On one runtime they do, and the gateway takes its own delay for a slow broker and refuses readings.
pub(super) struct ConnectionRuntime(Option<Runtime>);

impl ConnectionRuntime {
    /// # Errors
    /// The system has no more threads.
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_multi_thread().thread_name("connections").enable_all().build()?;
        Ok(Self(Some(runtime)))
    }

    /// For what is spawned there.
    pub(super) fn handle(&self) -> &Handle {
        self.0.as_ref().expect("it ends with self").handle()
    }
}

impl Drop for ConnectionRuntime {
    /// Without waiting: a runtime's own drop may not happen on a thread of another runtime.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use tokio::sync::oneshot;

    use super::*;
    use crate::delivery::Deliveries;

    #[tokio::test]
    async fn deliveries_end_while_every_thread_of_the_connections_is_busy() {
        let connections = ConnectionRuntime::start().unwrap();
        let (begin, begun) = oneshot::channel();
        let (confirm, confirmed) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let deliveries = Deliveries::here();
        let connection = connections.handle().spawn(async move {
            let delivering = async move {
                begin.send(()).unwrap();
                confirmed.await.unwrap();
                end.send(()).unwrap();
            };
            deliveries.run(delivering).await
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
        assert!(!connection.is_finished(), "there is no thread for it");
        idle.wait();
        assert_eq!(connection.await.unwrap(), Some(()));
    }
}
