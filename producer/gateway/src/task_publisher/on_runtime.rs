//! Publishes on the runtime of the broker's connection, wherever it is called.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use garenne_amqp::PublishError;
use garenne_common::supervise;
use garenne_protocol::task::NewTask;
use tokio::runtime::Handle;

use super::{GroupPublisher, TaskPublisher, shutting_down};

/// Publishes with `P` on a runtime. A confirm is then noticed at once, also while the caller's threads are busy; a
/// confirm that is noticed late would count as that of a slow broker.
pub(super) struct OnRuntime<P: ?Sized> {
    next: Arc<P>,
    runtime: Handle,
}

impl<P: ?Sized> OnRuntime<P> {
    /// Publishes with `next` on the current runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(super) fn current(next: Arc<P>) -> Arc<Self> {
        Arc::new(Self { next, runtime: Handle::current() })
    }

    /// Runs a publish on the runtime. If it panics or the runtime shuts down, the tasks are in doubt.
    async fn run(
        &self,
        publish: impl Future<Output = Result<(), PublishError>> + Send + 'static,
    ) -> Result<(), PublishError> {
        let publishing = supervise::isolated("publish", publish).spawn_on(&self.runtime);
        publishing.await.unwrap_or_else(|_| Err(shutting_down()))
    }
}

impl<P: TaskPublisher + ?Sized> TaskPublisher for OnRuntime<P> {
    fn publish(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        let next = Arc::clone(&self.next);
        Box::pin(self.run(async move { next.publish(tasks).await }))
    }
}

impl<P: GroupPublisher + ?Sized> GroupPublisher for OnRuntime<P> {
    fn check_ready(&self) -> Result<(), PublishError> {
        self.next.check_ready()
    }

    fn publish_group(self: Arc<Self>, tasks: Vec<NewTask>) -> BoxFuture<'static, Result<(), PublishError>> {
        Box::pin(async move { self.run(Arc::clone(&self.next).publish_group(tasks)).await })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use garenne_protocol::task::{ContentType, Kind};

    use super::*;
    use crate::{runtimes::connection_runtime, tests::memory_publisher::MemoryPublisher};

    /// Panics instead of publishing.
    struct Panicking;

    impl TaskPublisher for Panicking {
        fn publish(&self, _: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
            Box::pin(async { std::panic::resume_unwind(Box::new("broken")) })
        }
    }

    fn task() -> NewTask {
        NewTask::new(Kind::parse("alert.raise").unwrap(), ContentType::Json, b"{}".to_vec())
    }

    #[tokio::test]
    async fn publishes_complete_while_all_connection_threads_are_busy() {
        let connections = connection_runtime().unwrap();
        let memory = MemoryPublisher::gated();
        let publisher = OnRuntime::current(Arc::clone(&memory));
        let connection = connections.handle().spawn(async move { publisher.publish(vec![task()]).await });
        memory.received(1).await;

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
        memory.confirm(1);
        while memory.tasks().is_empty() {
            tokio::task::yield_now().await;
        }
        assert!(!connection.is_finished(), "no thread is free to poll it");
        idle.wait();
        connection.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn tasks_of_a_publish_that_panics_are_in_doubt() {
        let outcome = OnRuntime::current(Arc::new(Panicking)).publish(vec![task()]).await;
        assert!(outcome.unwrap_err().in_doubt());
    }
}
