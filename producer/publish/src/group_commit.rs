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

use std::{sync::Arc, time::Duration};

use futures_util::{
    FutureExt,
    future::{join, join_all},
};
use garenne_amqp::PublishError;
use garenne_common::{
    config::{Invalid, Size},
    supervise,
};
use garenne_protocol::task::{Kind, MOST_RECORDS, NewTask};
use serde::{Deserialize, Serialize};
use tokio::{runtime::Handle, sync::oneshot, time::Instant};

use crate::{
    messages::{GroupSender, send_each},
    task_sender::shutting_down,
};
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
    /// Each task is a message of its own.
    pub fn off() -> Self {
        Self { records: 1, ..Self::default() }
    }

    fn is_on(&self) -> bool {
        self.records > 1
    }

    /// Checks every bound. The error is the first one that is out of range.
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

/// How long a task may wait for a publisher permit or room in a message before it is refused.
pub const SLOT_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends the tasks of one kind in groups. Tasks that wait for room in a message are refused after [`SLOT_TIMEOUT`]; their
/// memory is bounded by the caller, such as by the gateway's memory budget.
pub struct GroupCommit {
    small: Arc<WaitingRequests>,
    large: Arc<WaitingRequests>,
    kind: Kind,
    sender: Arc<dyn GroupSender>,
    /// Where tasks are sent that need a message of their own: the runtime of the broker's connection. A confirm is then
    /// noticed at once, also while the caller's threads are busy; one that is noticed late would count as that of a slow
    /// broker.
    runtime: Handle,
    config: GroupCommitConfig,
}

/// The outcome of tasks that found no room in a message in time. None of them was published.
fn no_room() -> PublishError {
    PublishError::Busy { what: "room in a message", waited: SLOT_TIMEOUT }
}

/// Submits a small request or a part of a large one.
async fn submit(waiting: &WaitingRequests, tasks: Vec<NewTask>) -> Result<(), PublishError> {
    let (outcome, received) = oneshot::channel();
    let bytes = tasks.iter().map(|task| task.body.len() as u64).sum();
    waiting.add(CommitRequest { tasks, bytes, outcome, created_at: Instant::now() })?;
    received.await.map_err(|_| shutting_down())?
}

impl GroupCommit {
    /// Starts group commit of the tasks of `kind` on the current runtime. Tasks of other kinds are sent singly, on the same
    /// runtime. The background tasks end when the value is dropped and all outcomes are sent.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(sender: Arc<dyn GroupSender>, config: GroupCommitConfig, kind: Kind) -> Arc<Self> {
        let start = |messages| {
            let config = GroupCommitConfig { messages, ..config };
            let waiting = Arc::new(WaitingRequests::new(config));
            if config.is_on() {
                let commits = GroupCommitLoop::new(Arc::clone(&sender), config, Arc::clone(&waiting));
                supervise::restarting("group-commit", commits, |commits| commits.run().boxed())
                    .spawn()
                    .detach();
            }
            waiting
        };
        let large = config.messages / 2;
        let (small, large) = (start(config.messages - large), start(large));
        Arc::new(Self { small, large, kind, sender, runtime: Handle::current(), config })
    }

    /// Resolves when the broker has confirmed all tasks.
    pub async fn group(&self, tasks: Vec<NewTask>) -> Result<(), PublishError> {
        self.sender.check_ready()?;
        let fits_one_group =
            tasks.len() <= self.config.records && !tasks.iter().any(|task| self.needs_own_message(task));
        if fits_one_group {
            submit(self.requests(&tasks), tasks).await
        } else {
            // Boxed, because it is rare and every call holds a future of this function.
            Box::pin(self.group_parts(tasks)).await
        }
    }

    /// Whether many requests of this size fit into one message.
    fn is_small(&self, tasks: &[NewTask]) -> bool {
        let bytes: usize = tasks.iter().map(|task| task.body.len()).sum();
        tasks.len() <= (self.config.records / SMALL_SHARE).max(1)
            && bytes <= self.config.bytes.bytes() / SMALL_SHARE
    }

    /// Whether the task is of another kind, or has a property that a record of a batch message cannot have; or group commit
    /// is off.
    fn needs_own_message(&self, task: &NewTask) -> bool {
        !self.config.is_on()
            || task.kind != self.kind
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

    /// Sends tasks that do not fit into one group.
    async fn group_parts(&self, mut tasks: Vec<NewTask>) -> Result<(), PublishError> {
        let single: Vec<_> = tasks.extract_if(.., |task| self.needs_own_message(task)).collect();
        let requests = self.requests(&tasks);
        let parts = parts(tasks, self.config.records);
        let parts = join_all(parts.into_iter().map(|part| submit(requests, part)));
        // Waits for every confirm, also after a failure: no message may be in flight after the caller has answered.
        let (grouped, single) = join(parts, self.send_singly(single)).await;
        grouped.into_iter().fold(single, Result::and)
    }

    /// Sends each task in a message of its own. If that panics or the runtime shuts down, the tasks are in doubt.
    async fn send_singly(&self, tasks: Vec<NewTask>) -> Result<(), PublishError> {
        if tasks.is_empty() {
            return Ok(());
        }
        let sending = send_each(Arc::clone(&self.sender), tasks);
        let sending = supervise::isolated("publish", sending).spawn_on(&self.runtime);
        sending.await.unwrap_or_else(|_| Err(shutting_down()))
    }
}

/// Parts of at most `most` tasks. Each has no more memory than it needs: what is split off a vector leaves the capacity of
/// the whole behind, for each of many parts.
fn parts(tasks: Vec<NewTask>, most: usize) -> Vec<Vec<NewTask>> {
    let mut parts = Vec::with_capacity(tasks.len().div_ceil(most));
    let mut rest = tasks.into_iter();
    while rest.len() > 0 {
        parts.push(rest.by_ref().take(most).collect());
    }
    parts
}

impl Drop for GroupCommit {
    fn drop(&mut self) {
        self.small.close();
        self.large.close();
    }
}

#[cfg(test)]
mod tests;
