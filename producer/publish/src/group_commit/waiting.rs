//! The requests that wait for room in a message.
//!
//! Senders add requests, and the loop of their size class publishes them. To wake the loop costs more than to add a
//! request, so it is woken for the first one, which starts a wait, and then when a message is full.

use std::{collections::VecDeque, sync::Mutex};

use garenne_amqp::PublishError;
use garenne_common::lock::lock;
use garenne_protocol::task::NewTask;
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use super::{GroupCommitConfig, MAX_LINGERING};
use crate::task_sender::shutting_down;

pub(super) type Outcome = Result<(), PublishError>;

/// Tasks that are published together, and where to send the outcome.
pub(super) struct CommitRequest {
    pub(super) tasks: Vec<NewTask>,
    pub(super) bytes: u64,
    pub(super) outcome: oneshot::Sender<Outcome>,
    pub(super) created_at: Instant,
}

/// Requests that are published in one message.
pub(super) struct Group {
    pub(super) tasks: Vec<NewTask>,
    pub(super) outcomes: Vec<oneshot::Sender<Outcome>>,
}

/// The event that the loop waits for, besides time and confirms.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    Nothing,
    Request,
    /// More requests than may linger, or a full group.
    EndOfLinger,
    FullGroup,
}

/// The waiting requests of one size class.
pub(super) struct WaitingRequests {
    config: GroupCommitConfig,
    state: Mutex<State>,
    reached: Notify,
}

struct State {
    /// Oldest first.
    requests: VecDeque<CommitRequest>,
    records: usize,
    bytes: u64,
    awaited: Awaited,
    /// No request is added any more.
    closed: bool,
}

impl WaitingRequests {
    pub(super) fn new(config: GroupCommitConfig) -> Self {
        let (requests, awaited) = (VecDeque::new(), Awaited::Request);
        let state = State { requests, records: 0, bytes: 0, awaited, closed: false };
        Self { config, state: Mutex::new(state), reached: Notify::new() }
    }

    /// Adds a request and wakes the loop if it waits for it. Fails if the loop has ended.
    pub(super) fn add(&self, request: CommitRequest) -> Outcome {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(shutting_down());
        }
        state.records += request.tasks.len();
        state.bytes += request.bytes;
        state.requests.push_back(request);
        self.wake_if_reached(&mut state);
        Ok(())
    }

    /// Waits for `awaited`, of which a first request is a part. Returns when the oldest request was created.
    pub(super) fn wake_at(&self, awaited: Awaited) -> Option<Instant> {
        let mut state = lock(&self.state);
        let oldest = state.requests.front().map(|oldest| oldest.created_at);
        state.awaited = if oldest.is_none() { Awaited::Request } else { awaited };
        self.wake_if_reached(&mut state);
        oldest
    }

    /// Resolves when what is awaited was reached or the requests were closed, and perhaps without a reason.
    pub(super) async fn reached(&self) {
        self.reached.notified().await;
    }

    /// Whether requests wait that need not wait for others.
    pub(super) fn linger_is_over(&self) -> bool {
        lock(&self.state).linger_is_over(self.config)
    }

    pub(super) fn has_full_group(&self) -> bool {
        lock(&self.state).is_full_group(self.config)
    }

    /// Whether nothing waits and nothing will.
    pub(super) fn are_ended(&self) -> bool {
        let state = lock(&self.state);
        state.closed && state.requests.is_empty()
    }

    /// Takes the oldest request.
    pub(super) fn take_oldest(&self) -> Option<CommitRequest> {
        lock(&self.state).take_if(|_| true)
    }

    /// Takes the oldest requests, as many as fit into one message; `None` if nothing waits. A request whose caller has
    /// gone is dropped: the caller may have stored its tasks elsewhere.
    pub(super) fn take_group(&self) -> Option<Group> {
        let GroupCommitConfig { records, bytes: max_bytes, .. } = self.config;
        let mut state = lock(&self.state);
        state.drop_cancelled();
        let CommitRequest { mut tasks, mut bytes, outcome, .. } = state.take_if(|_| true)?;
        let mut outcomes = vec![outcome];
        while let Some(next) = state
            .take_if(|next| tasks.len() + next.tasks.len() <= records && bytes + next.bytes <= max_bytes.0)
        {
            tasks.extend(next.tasks);
            bytes += next.bytes;
            outcomes.push(next.outcome);
            state.drop_cancelled();
        }
        Some(Group { tasks, outcomes })
    }

    /// Adds no more requests.
    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.reached.notify_one();
    }

    /// Adds no more requests and drops those that wait.
    pub(super) fn abandon(&self) {
        self.close();
        let abandoned = std::mem::take(&mut lock(&self.state).requests);
        drop(abandoned);
    }

    fn wake_if_reached(&self, state: &mut State) {
        let is_reached = match state.awaited {
            Awaited::Nothing => false,
            Awaited::Request => !state.requests.is_empty(),
            Awaited::EndOfLinger => state.linger_is_over(self.config),
            Awaited::FullGroup => state.is_full_group(self.config),
        };
        if is_reached {
            state.awaited = Awaited::Nothing;
            self.reached.notify_one();
        }
    }
}

impl State {
    fn is_full_group(&self, config: GroupCommitConfig) -> bool {
        self.records >= config.records || self.bytes >= config.bytes.0 / 4 * 3
    }

    /// Whether more requests wait than may linger, or a full group.
    fn linger_is_over(&self, config: GroupCommitConfig) -> bool {
        let most = if config.linger.is_zero() { 0 } else { MAX_LINGERING };
        self.requests.len() > most || self.is_full_group(config)
    }

    /// Drops the oldest requests up to the first one whose caller still waits.
    fn drop_cancelled(&mut self) {
        while self.take_if(|request| request.outcome.is_closed()).is_some() {}
    }

    fn take_if(&mut self, condition: impl FnOnce(&CommitRequest) -> bool) -> Option<CommitRequest> {
        let request = self.requests.pop_front_if(|request| condition(request))?;
        self.records -= request.tasks.len();
        self.bytes -= request.bytes;
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use garenne_common::config::Size;
    use garenne_protocol::task::{ContentType, Kind};

    use super::*;

    /// A request of one task, whose caller has gone.
    fn request(body: usize) -> CommitRequest {
        let kind = Kind::parse("reading.process").unwrap();
        let tasks = vec![NewTask::new(kind, ContentType::Json, vec![b'1'; body])];
        CommitRequest { tasks, bytes: body as u64, outcome: oneshot::channel().0, created_at: Instant::now() }
    }

    fn waiting() -> WaitingRequests {
        let wait = Duration::from_millis(5);
        let bounds =
            GroupCommitConfig { records: 4, bytes: Size::kib(1), wait, messages: 2, ..Default::default() };
        WaitingRequests::new(bounds)
    }

    fn is_woken(waiting: &WaitingRequests) -> bool {
        waiting.reached().now_or_never().is_some()
    }

    #[test]
    fn the_loop_is_woken_for_the_first_request_and_for_a_full_group() {
        let waiting = waiting();
        assert!(waiting.wake_at(Awaited::FullGroup).is_none());
        waiting.add(request(1)).unwrap();
        assert!(is_woken(&waiting), "the first request starts the wait");
        waiting.add(request(1)).unwrap();
        assert!(waiting.wake_at(Awaited::FullGroup).is_some());
        waiting.add(request(1)).unwrap();
        assert!(!is_woken(&waiting));
        waiting.add(request(1)).unwrap();
        assert!(is_woken(&waiting), "four records");
        waiting.add(request(1)).unwrap();
        assert!(!is_woken(&waiting), "woken once");
    }

    #[test]
    fn bytes_make_a_group_full_and_a_condition_that_is_reached_before_the_wait_wakes_at_once() {
        let waiting = waiting();
        waiting.add(request(1)).unwrap();
        waiting.add(request(767)).unwrap();
        assert!(is_woken(&waiting) && waiting.has_full_group());
        waiting.wake_at(Awaited::Nothing);
        assert!(!is_woken(&waiting));
        for awaited in [Awaited::Request, Awaited::FullGroup] {
            waiting.wake_at(awaited);
            assert!(is_woken(&waiting));
        }
    }

    #[test]
    fn abandoned_requests_are_dropped_and_no_more_are_added() {
        let waiting = waiting();
        let (outcome, received) = oneshot::channel();
        waiting.add(CommitRequest { outcome, ..request(1) }).unwrap();
        waiting.abandon();
        assert!(received.now_or_never().unwrap().is_err());
        assert!(waiting.add(request(1)).unwrap_err().in_doubt());
        assert!(waiting.are_ended());
    }
}
