//! Stores tasks in a spool while the broker does not confirm them.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_amqp::PublishError;
use garenne_protocol::task::NewTask;
use garenne_spool::{Spool, SpoolError, task::record_of};
use thiserror::Error;
use tokio::time::timeout;

use crate::task_sender::TaskSender;

/// Where accepted tasks are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// In queues: the broker has confirmed them.
    Confirmed,
    /// In the spool of this gateway.
    Spooled,
}

/// Why tasks were not accepted.
#[derive(Debug, Error)]
pub enum NotAccepted {
    /// The broker has not confirmed them, and there is no spool, or a spool would not help.
    #[error(transparent)]
    Broker(#[from] PublishError),
    /// The spool has not stored them.
    #[error(transparent)]
    Spool(#[from] SpoolError),
}

/// Sends tasks to the broker, or stores them in a spool.
///
/// While the spool has content, everything goes behind it, so that the order of a sender's tasks is kept.
pub struct SpoolingSender {
    mode: SpoolingMode,
}

/// Where tasks go.
enum SpoolingMode {
    Direct(Arc<dyn TaskSender>),
    /// To the broker, and to the spool what it has not confirmed within the wait.
    Spooling {
        direct: Arc<dyn TaskSender>,
        spool: Spool,
        wait: Duration,
    },
    Spool(Spool),
}

impl SpoolingSender {
    /// Sends with `direct` only.
    pub fn direct(direct: Arc<dyn TaskSender>) -> Self {
        Self { mode: SpoolingMode::Direct(direct) }
    }

    /// Stores all tasks in `spool`.
    pub fn spool_only(spool: Spool) -> Self {
        Self { mode: SpoolingMode::Spool(spool) }
    }

    /// Stores tasks in `spool` that `direct` has not confirmed within `wait`.
    pub fn with_spool(direct: Arc<dyn TaskSender>, spool: Spool, wait: Duration) -> Self {
        Self { mode: SpoolingMode::Spooling { direct, spool, wait } }
    }

    /// Whether tasks are kept until their confirm, to be spooled if it does not come.
    pub fn keeps_tasks(&self) -> bool {
        matches!(self.mode, SpoolingMode::Spooling { .. })
    }

    /// Resolves when all tasks are stored. If it fails, some may be stored all the same; sending all of them again
    /// under the same ids has no second effect.
    pub async fn send(&self, tasks: Vec<NewTask>) -> Result<Durability, NotAccepted> {
        let spool = match &self.mode {
            SpoolingMode::Direct(direct) => {
                return Ok(direct.send(tasks).await.map(|()| Durability::Confirmed)?);
            }
            SpoolingMode::Spooling { spool, .. } | SpoolingMode::Spool(spool) => spool,
        };
        let is_empty = spool.status().borrow().records() == 0;
        if let SpoolingMode::Spooling { direct, wait, .. } = &self.mode
            && is_empty
        {
            // If the wait ends, the broker may have stored the tasks. The drain sends them again under the same ids.
            match timeout(*wait, direct.send(tasks.clone())).await {
                Ok(Ok(())) => return Ok(Durability::Confirmed),
                Ok(Err(error @ (PublishError::TooLarge { .. } | PublishError::Unroutable { .. }))) => {
                    return Err(error.into());
                }
                Ok(Err(error)) => tracing::debug!(%error, "tasks go to the spool"),
                Err(_) => tracing::debug!(?wait, "no confirm in time, tasks go to the spool"),
            }
        }
        let now = SystemTime::now();
        // Each task is dropped when its record is made.
        spool.append(tasks.into_iter().map(|task| record_of(&task, now)).collect()).await?;
        Ok(Durability::Spooled)
    }

    /// The same without the spool: what it accepts is confirmed by the broker, and does not wait for what is spooled.
    /// `None` if there is no broker.
    pub fn without_spool(&self) -> Option<Self> {
        match &self.mode {
            SpoolingMode::Direct(direct) | SpoolingMode::Spooling { direct, .. } => {
                Some(Self::direct(Arc::clone(direct)))
            }
            SpoolingMode::Spool(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Mutex};

    use futures_util::future::BoxFuture;
    use garenne_protocol::task::{ContentType, Kind, TaskId};
    use garenne_spool::SpoolConfig;

    use super::*;
    use crate::{SpoolDrain, testing::MemorySender};

    fn task(id: &str) -> NewTask {
        let kind = Kind::parse("reading.process").unwrap();
        let task = NewTask::new(kind, ContentType::Json, b"{}".to_vec());
        NewTask { id: TaskId::parse(id).unwrap(), ..task }
    }

    async fn spooling(directory: &Path, direct: &Arc<MemorySender>) -> (Spool, SpoolingSender) {
        let spool = Spool::open(directory, SpoolConfig::default()).await.unwrap();
        let sender =
            SpoolingSender::with_spool(Arc::clone(direct) as _, spool.clone(), Duration::from_secs(1));
        (spool, sender)
    }

    async fn spooled(spool: &Spool) -> Vec<String> {
        spool.read(0, 100, 1 << 20).await.unwrap().records.into_iter().map(|record| record.id).collect()
    }

    #[tokio::test]
    async fn tasks_go_behind_the_spool_until_it_is_drained() {
        let folder = tempfile::tempdir().unwrap();
        let direct = MemorySender::new();
        let (spool, sender) = spooling(folder.path(), &direct).await;
        assert_eq!(sender.send(vec![task("a")]).await.unwrap(), Durability::Confirmed);
        direct.fail(Some(PublishError::Blocked));
        assert_eq!(sender.send(vec![task("b")]).await.unwrap(), Durability::Spooled);
        direct.fail(None);
        assert_eq!(sender.send(vec![task("c")]).await.unwrap(), Durability::Spooled);
        assert_eq!(spooled(&spool).await, ["b", "c"]);
        assert_eq!(direct.tasks().len(), 1);
        spool.ack(2).await.unwrap();
        assert_eq!(sender.send(vec![task("d")]).await.unwrap(), Durability::Confirmed);
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_whose_confirm_is_overdue_go_to_the_spool() {
        let folder = tempfile::tempdir().unwrap();
        let (spool, sender) = spooling(folder.path(), &MemorySender::gated()).await;
        assert_eq!(sender.send(vec![task("a")]).await.unwrap(), Durability::Spooled);
        assert_eq!(spooled(&spool).await, ["a"]);
    }

    /// The broker stores the tasks, and its confirm never arrives.
    #[derive(Default)]
    struct NeverConfirming(Mutex<Vec<NewTask>>);

    impl TaskSender for NeverConfirming {
        fn send(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
            self.0.lock().unwrap().extend(tasks);
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_whose_confirm_is_late_is_published_again_as_the_same_task() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::open(folder.path(), SpoolConfig::default()).await.unwrap();
        let (direct, later) = (Arc::new(NeverConfirming::default()), MemorySender::new());
        let wait = Duration::from_secs(1);
        let sender = SpoolingSender::with_spool(direct.clone() as _, spool.clone(), wait);
        let task = NewTask { key: Some("d1".into()), group: Some("g".into()), ..task("a") };
        assert_eq!(sender.send(vec![task]).await.unwrap(), Durability::Spooled);
        SpoolDrain::new(spool, later.clone(), None).next_batch().await.unwrap();
        let (first, second) = (direct.0.lock().unwrap().clone(), later.tasks());
        assert_eq!((first.len(), first[0].id.as_str()), (1, "a"));
        assert_eq!(format!("{first:?}"), format!("{second:?}"), "id, kind, key, group and body are equal");
    }

    #[tokio::test]
    async fn tasks_that_can_never_be_published_are_refused_and_not_spooled() {
        let folder = tempfile::tempdir().unwrap();
        let direct = MemorySender::new();
        let (spool, sender) = spooling(folder.path(), &direct).await;
        direct.fail(Some(PublishError::TooLarge { what: "body", bytes: 2, limit: 1 }));
        let refused = sender.send(vec![task("a")]).await;
        assert!(matches!(refused, Err(NotAccepted::Broker(PublishError::TooLarge { .. }))));
        assert_eq!(spool.status().borrow().records(), 0);
    }
}
