//! Group commit: tasks that arrive while a confirm is outstanding are published together in one message.
//!
//! The broker's cost is per message: storing, replicating and confirming a hundred readings in one message costs little
//! more than one reading. If no message is unconfirmed, a task is published at once, so group commit adds no latency at
//! low load.
//!
//! Small and large requests are grouped separately, and each has half of the messages in flight. So a single reading
//! does not wait behind the parts of a request with thousands of records.

mod commit_loop;
mod config;

use std::{mem, sync::Arc};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join, join_all, ready};
use garenne_amqp::PublishError;
use garenne_common::supervise;
use garenne_protocol::task::{Kind, NewTask};
use tokio::{
    sync::{
        mpsc::{
            self,
            error::{SendTimeoutError, TrySendError},
        },
        oneshot,
    },
    time::Instant,
};

use super::{PUBLISH_SLOT_TIMEOUT, TaskPublisher, shutting_down};
use commit_loop::GroupCommitLoop;
pub use config::GroupCommitConfig;

/// Publishes a group of tasks as one message.
pub trait GroupPublisher: Send + Sync + 'static {
    /// Checks whether tasks may be published now.
    ///
    /// # Errors
    /// New tasks should be refused with this error.
    fn check_ready(&self) -> Result<(), PublishError> {
        Ok(())
    }

    /// Resolves when the broker has confirmed the message.
    fn publish_group(&self, tasks: Vec<NewTask>) -> BoxFuture<'static, Result<(), PublishError>>;
}

/// Most requests of one size class that wait to be grouped.
const MAX_WAITING_REQUESTS: usize = 4096;

/// A request is small if at least this many of its size fit into one message.
const SMALL_SHARE: usize = 16;

/// Publishes the tasks of one kind in groups.
pub struct GroupCommit {
    small: mpsc::Sender<CommitRequest>,
    large: mpsc::Sender<CommitRequest>,
    kind: Kind,
    /// For tasks that need a message of their own.
    publisher: Arc<dyn GroupPublisher>,
    config: GroupCommitConfig,
}

/// Tasks that are published together, and where to send the outcome.
struct CommitRequest {
    tasks: Vec<NewTask>,
    outcome: oneshot::Sender<Result<(), PublishError>>,
    created_at: Instant,
}

/// The outcome of tasks that got no place in a message in time. None of them was published.
fn no_place() -> PublishError {
    PublishError::Busy { what: "place in a message", waited: PUBLISH_SLOT_TIMEOUT }
}

/// Submits a small request or a part of a large one. The slow path is boxed to keep this future small: there is one for
/// each waiting sender.
async fn submit(requests: &mpsc::Sender<CommitRequest>, tasks: Vec<NewTask>) -> Result<(), PublishError> {
    let (outcome, received) = oneshot::channel();
    match requests.try_send(CommitRequest { tasks, outcome, created_at: Instant::now() }) {
        Ok(()) => {}
        Err(TrySendError::Full(request)) => Box::pin(submit_later(requests, request)).await?,
        Err(TrySendError::Closed(_)) => return Err(shutting_down()),
    }
    received.await.map_err(|_| shutting_down())?
}

/// Waits until the queue of requests has room.
async fn submit_later(
    requests: &mpsc::Sender<CommitRequest>,
    request: CommitRequest,
) -> Result<(), PublishError> {
    requests.send_timeout(request, PUBLISH_SLOT_TIMEOUT).await.map_err(|refused| match refused {
        SendTimeoutError::Timeout(_) => no_place(),
        SendTimeoutError::Closed(_) => shutting_down(),
    })
}

impl GroupCommit {
    /// Starts group commit of the tasks of `kind` on the current runtime. Tasks of other kinds are published singly.
    /// The background tasks end when the value is dropped and all outcomes are sent.
    pub fn start(publisher: Arc<dyn GroupPublisher>, config: GroupCommitConfig, kind: Kind) -> Arc<Self> {
        let start = |messages| {
            let (requests, receiver) = mpsc::channel(MAX_WAITING_REQUESTS);
            let config = GroupCommitConfig { messages, ..config };
            let commits = GroupCommitLoop::new(Arc::clone(&publisher), config, receiver);
            supervise::restarting("group-commit", commits, |commits| commits.run().boxed()).spawn().detach();
            requests
        };
        let large = config.messages / 2;
        let (small, large) = (start(config.messages - large), start(large));
        Arc::new(Self { small, large, kind, publisher, config })
    }

    /// Whether many requests of this size fit into one message.
    fn is_small(&self, tasks: &[NewTask]) -> bool {
        let bytes: usize = tasks.iter().map(|task| task.body.len()).sum();
        tasks.len() <= (self.config.records / SMALL_SHARE).max(1)
            && bytes <= self.config.bytes.bytes() / SMALL_SHARE
    }

    /// Whether the task is of another kind, or has a property that a record of a batch message cannot have.
    fn needs_own_message(&self, task: &NewTask) -> bool {
        task.kind != self.kind
            || task.group.is_some()
            || task.delay.is_some()
            || task.timeout.is_some()
            || task.parent.is_some()
            || task.body.len() as u64 > self.config.bytes.0
    }

    /// The queue for requests of this size.
    fn requests(&self, tasks: &[NewTask]) -> &mpsc::Sender<CommitRequest> {
        if self.is_small(tasks) { &self.small } else { &self.large }
    }

    /// Publishes tasks that do not fit into one group.
    async fn publish_parts(&self, tasks: Vec<NewTask>) -> Result<(), PublishError> {
        let (single, mut grouped): (Vec<_>, Vec<_>) =
            tasks.into_iter().partition(|task| self.needs_own_message(task));
        let requests = self.requests(&grouped);
        let mut parts = Vec::new();
        while !grouped.is_empty() {
            let rest = grouped.split_off(grouped.len().min(self.config.records));
            parts.push(mem::replace(&mut grouped, rest));
        }
        let single = single.into_iter().map(|task| self.publisher.publish_group(vec![task]));
        // Waits for every confirm, also after a failure: no message may be in flight after the caller has answered.
        let (grouped, single) =
            join(join_all(parts.into_iter().map(|part| submit(requests, part))), join_all(single)).await;
        grouped.into_iter().chain(single).collect()
    }
}

impl TaskPublisher for GroupCommit {
    fn publish(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        if let Err(error) = self.publisher.check_ready() {
            return Box::pin(ready(Err(error)));
        }
        let fits_one_group =
            tasks.len() <= self.config.records && !tasks.iter().any(|task| self.needs_own_message(task));
        if fits_one_group {
            Box::pin(submit(self.requests(&tasks), tasks))
        } else {
            Box::pin(self.publish_parts(tasks))
        }
    }
}

#[cfg(test)]
mod tests;
