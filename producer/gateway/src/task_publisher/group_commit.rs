//! Group commit: tasks that arrive while a confirm is outstanding are published together in one message.
//!
//! The broker's cost is per message: storing, replicating and confirming a hundred readings in one message costs little
//! more than one reading. If no message is unconfirmed, a task is published at once, so group commit adds no latency at
//! low load, unless [`GroupCommitConfig::linger`] is set.
//!
//! Small and large requests are grouped separately, and each has half of the messages in flight. So a single reading
//! does not wait behind the parts of a request with thousands of records.

mod commit_loop;
mod waiting;

use std::{mem, sync::Arc, time::Duration};

use futures_util::{
    FutureExt,
    future::{BoxFuture, join, join_all},
};
use garenne_amqp::PublishError;
use garenne_common::{
    config::{Invalid, Size},
    supervise,
};
use garenne_protocol::task::{Kind, MOST_RECORDS, NewTask};
use serde::{Deserialize, Serialize};
use tokio::{sync::oneshot, time::Instant};

use super::{GroupPublisher, PUBLISH_SLOT_TIMEOUT, TaskPublisher, on_runtime::OnRuntime, shutting_down};
use commit_loop::GroupCommitLoop;
use waiting::{CommitRequest, WaitingRequests};

/// Bounds of group commit; the table `group_commit` of the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GroupCommitConfig {
    /// Most records in one message; 1 disables group commit.
    pub records: usize,
    /// Most bytes of payload in one message; a larger task gets a message of its own.
    pub bytes: Size,
    /// Longest time that a record waits for others while a confirm is outstanding.
    #[serde(with = "humantime_serde")]
    pub wait: Duration,
    /// Most unconfirmed messages, half of them for large requests. Above it, records wait in groups.
    pub messages: usize,
    /// Longest time that a request waits for others while nothing is unconfirmed; eight requests do not wait. Not a setting
    /// of the gateway, whose senders wait for the answer.
    #[serde(skip)]
    pub linger: Duration,
}

impl Default for GroupCommitConfig {
    fn default() -> Self {
        Self {
            records: 500,
            bytes: Size::kib(128),
            wait: Duration::from_millis(5),
            messages: 16,
            linger: Duration::ZERO,
        }
    }
}

/// Range of `bytes`. A batch message with the ids and traces of its records must fit into a worker's `max_payload`.
const BYTES: (Size, Size) = (Size::kib(1), Size::mib(1));
/// Largest `wait`.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Largest `messages`.
const MAX_MESSAGES: usize = 1024;

impl GroupCommitConfig {
    /// # Errors
    /// The first bound that is out of range.
    pub fn validate(&self) -> Result<(), Invalid> {
        let (least, most) = BYTES;
        let (name, value, expected) = if !(1..=MOST_RECORDS).contains(&self.records) {
            ("records", self.records.to_string(), format!("1 (off) to {MOST_RECORDS}"))
        } else if !(least..=most).contains(&self.bytes) {
            ("bytes", self.bytes.to_string(), format!("{least} to {most}"))
        } else if self.wait > MAX_WAIT {
            ("wait", humantime::format_duration(self.wait).to_string(), "0s to 1s, such as 5ms".to_owned())
        } else if !(2..=MAX_MESSAGES).contains(&self.messages) {
            ("messages", self.messages.to_string(), format!("2 to {MAX_MESSAGES}"))
        } else {
            return Ok(());
        };
        Err(Invalid::new(format!("group_commit.{name}"), value, format!("expected {expected}")))
    }
}

/// Most requests that linger. More are published at once, so that a sender with a small window, which sends nothing more
/// until it gets an answer, is not slowed down.
const MAX_LINGERING: usize = 7;

/// A request is small if at least this many of its size fit into one message.
const SMALL_SHARE: usize = 16;

/// Publishes the tasks of one kind in groups. Tasks that wait for room in a message are refused after
/// [`PUBLISH_SLOT_TIMEOUT`]; their memory is bounded by the caller, such as by the gateway's memory budget.
pub struct GroupCommit {
    small: Arc<WaitingRequests>,
    large: Arc<WaitingRequests>,
    kind: Kind,
    /// For tasks that need a message of their own.
    publisher: Arc<dyn GroupPublisher>,
    config: GroupCommitConfig,
}

/// The outcome of tasks that found no room in a message in time. None of them was published.
fn no_room() -> PublishError {
    PublishError::Busy { what: "room in a message", waited: PUBLISH_SLOT_TIMEOUT }
}

/// Submits a small request or a part of a large one.
async fn submit(waiting: &WaitingRequests, tasks: Vec<NewTask>) -> Result<(), PublishError> {
    let (outcome, received) = oneshot::channel();
    let bytes = tasks.iter().map(|task| task.body.len() as u64).sum();
    waiting.add(CommitRequest { tasks, bytes, outcome, created_at: Instant::now() })?;
    received.await.map_err(|_| shutting_down())?
}

impl GroupCommit {
    /// Starts group commit of the tasks of `kind` on the current runtime. Tasks of other kinds are published singly, on
    /// the same runtime.
    /// The background tasks end when the value is dropped and all outcomes are sent.
    pub fn start(publisher: Arc<dyn GroupPublisher>, config: GroupCommitConfig, kind: Kind) -> Arc<Self> {
        let start = |messages| {
            let config = GroupCommitConfig { messages, ..config };
            let waiting = Arc::new(WaitingRequests::new(config));
            let commits = GroupCommitLoop::new(Arc::clone(&publisher), config, Arc::clone(&waiting));
            supervise::restarting("group-commit", commits, |commits| commits.run().boxed()).spawn().detach();
            waiting
        };
        let large = config.messages / 2;
        let (small, large) = (start(config.messages - large), start(large));
        Arc::new(Self { small, large, kind, publisher: OnRuntime::current(publisher), config })
    }

    /// Group commit in front of `publisher`, or only `publisher` on the current runtime if `config` disables group
    /// commit.
    pub fn in_front_of<P: GroupPublisher + TaskPublisher>(
        publisher: Arc<P>,
        config: GroupCommitConfig,
        kind: Kind,
    ) -> Arc<dyn TaskPublisher> {
        match config {
            GroupCommitConfig { records: 1, .. } => OnRuntime::current(publisher),
            config => Self::start(publisher, config, kind),
        }
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
    fn requests(&self, tasks: &[NewTask]) -> &WaitingRequests {
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
        let single = single.into_iter().map(|task| Arc::clone(&self.publisher).publish_group(vec![task]));
        // Waits for every confirm, also after a failure: no message may be in flight after the caller has answered.
        let (grouped, single) =
            join(join_all(parts.into_iter().map(|part| submit(requests, part))), join_all(single)).await;
        grouped.into_iter().chain(single).collect()
    }
}

impl TaskPublisher for GroupCommit {
    fn publish(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        Box::pin(async move {
            self.publisher.check_ready()?;
            let fits_one_group =
                tasks.len() <= self.config.records && !tasks.iter().any(|task| self.needs_own_message(task));
            if fits_one_group {
                submit(self.requests(&tasks), tasks).await
            } else {
                // Boxed, because it is rare and every publish holds a future of this function.
                Box::pin(self.publish_parts(tasks)).await
            }
        })
    }
}

impl Drop for GroupCommit {
    fn drop(&mut self) {
        self.small.close();
        self.large.close();
    }
}

#[cfg(test)]
mod tests;
