//! Forms groups of tasks and publishes them.

use std::{collections::VecDeque, sync::Arc};

use futures_util::{
    StreamExt,
    future::{BoxFuture, OptionFuture},
    stream::FuturesUnordered,
};
use garenne_amqp::PublishError;
use garenne_protocol::task::NewTask;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until},
};

use super::{super::PUBLISH_SLOT_TIMEOUT, CommitRequest, GroupCommitConfig, GroupPublisher, no_place};

type Outcome = Result<(), PublishError>;

/// A published message that is not confirmed yet. It resolves to its outcome and the requests that wait for it.
type InFlightGroup = BoxFuture<'static, (Outcome, Vec<oneshot::Sender<Outcome>>)>;

/// Tasks that will be published in one message.
struct CommitGroup {
    tasks: Vec<NewTask>,
    outcomes: Vec<oneshot::Sender<Outcome>>,
    bytes: u64,
    /// When its oldest request was made.
    created_at: Instant,
}

/// The background task of one size class.
pub(super) struct GroupCommitLoop {
    publisher: Arc<dyn GroupPublisher>,
    config: GroupCommitConfig,
    requests: mpsc::UnboundedReceiver<CommitRequest>,
    /// False once all senders of requests are dropped.
    open: bool,
    /// Groups that are not published yet, oldest first.
    groups: VecDeque<CommitGroup>,
    in_flight: FuturesUnordered<InFlightGroup>,
}

impl GroupCommitLoop {
    pub(super) fn new(
        publisher: Arc<dyn GroupPublisher>,
        config: GroupCommitConfig,
        requests: mpsc::UnboundedReceiver<CommitRequest>,
    ) -> Self {
        let (groups, in_flight) = (VecDeque::new(), FuturesUnordered::new());
        Self { publisher, config, requests, open: true, groups, in_flight }
    }

    /// Runs until all senders of requests are dropped and all outcomes are sent. May be called again after a panic;
    /// senders whose group was lost with it are told that nothing was confirmed.
    pub(super) async fn run(&mut self) {
        while self.open || !self.in_flight.is_empty() || !self.groups.is_empty() {
            let full = self.in_flight.len() >= self.config.messages;
            // If no message may be published, the oldest group waits for a confirm, but not forever.
            let wait = if full { PUBLISH_SLOT_TIMEOUT } else { self.config.wait };
            let deadline = self.groups.front().map(|group| group.created_at + wait);
            let waited = OptionFuture::from(deadline.map(sleep_until));
            tokio::select! {
                biased;
                Some((outcome, outcomes)) = self.in_flight.next(), if !self.in_flight.is_empty() => {
                    for sender in outcomes {
                        // The receiver is dropped if the request was cancelled.
                        let _ = sender.send(outcome.clone());
                    }
                }
                request = self.requests.recv(), if self.open && !(full && self.waiting() >= self.config.records) => {
                    match request {
                        Some(request) => self.add(request),
                        None => self.open = false,
                    }
                    // Requests that are already queued join the same group.
                    while self.waiting() < self.config.records {
                        let Ok(request) = self.requests.try_recv() else { break };
                        self.add(request);
                    }
                }
                Some(()) = waited => if full { self.refuse_oldest() } else { self.publish_oldest() },
            }
            self.publish_ready();
        }
    }

    /// Records that are not published yet.
    fn waiting(&self) -> usize {
        self.groups.iter().map(|group| group.tasks.len()).sum()
    }

    fn add(&mut self, CommitRequest { tasks, outcome, created_at }: CommitRequest) {
        let refused = if created_at.elapsed() > PUBLISH_SLOT_TIMEOUT { Some(Err(no_place())) } else { None };
        if let Some(result) = refused.or_else(|| tasks.is_empty().then_some(Ok(()))) {
            // The receiver is dropped if the request was cancelled.
            let _ = outcome.send(result);
            return;
        }
        let bytes = tasks.iter().map(|task| task.body.len() as u64).sum::<u64>();
        let GroupCommitConfig { records, bytes: max_bytes, .. } = self.config;
        let fits = |group: &&mut CommitGroup| {
            group.tasks.len() + tasks.len() <= records && group.bytes + bytes <= max_bytes.0
        };
        match self.groups.back_mut().filter(fits) {
            Some(group) => {
                group.tasks.extend(tasks);
                group.outcomes.push(outcome);
                group.bytes += bytes;
            }
            None => {
                self.groups.push_back(CommitGroup { tasks, outcomes: vec![outcome], bytes, created_at });
            }
        }
    }

    /// Publishes every group that need not wait: one group if nothing is in flight, and all full groups.
    fn publish_ready(&mut self) {
        while self.in_flight.is_empty() && !self.groups.is_empty() {
            self.publish_oldest();
        }
        let GroupCommitConfig { records, bytes, .. } = self.config;
        let full = |group: &CommitGroup| group.tasks.len() >= records || group.bytes >= bytes.0 / 4 * 3;
        // A group with another one behind it gets no more tasks.
        while self.in_flight.len() < self.config.messages
            && self.groups.front().is_some_and(|first| self.groups.len() > 1 || full(first))
        {
            self.publish_oldest();
        }
    }

    fn refuse_oldest(&mut self) {
        for sender in self.groups.pop_front().into_iter().flat_map(|group| group.outcomes) {
            let _ = sender.send(Err(no_place()));
        }
    }

    fn publish_oldest(&mut self) {
        let Some(CommitGroup { tasks, outcomes, .. }) = self.groups.pop_front() else { return };
        let publishing = self.publisher.publish_group(tasks);
        self.in_flight.push(Box::pin(async move { (publishing.await, outcomes) }));
    }
}
