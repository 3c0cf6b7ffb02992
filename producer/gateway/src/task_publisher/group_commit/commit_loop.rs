//! Forms groups of tasks and publishes them.

use std::{collections::VecDeque, sync::Arc};

use futures_util::{
    StreamExt,
    future::{BoxFuture, OptionFuture},
    stream::FuturesUnordered,
};
use garenne_amqp::PublishError;
use tokio::{
    sync::{mpsc, oneshot},
    time::sleep_until,
};

use super::{super::PUBLISH_SLOT_TIMEOUT, CommitRequest, GroupCommitConfig, GroupPublisher, no_room};

type Outcome = Result<(), PublishError>;

/// A published message that is not confirmed yet. It resolves to its outcome and the requests that wait for it.
type InFlightGroup = BoxFuture<'static, (Outcome, Vec<oneshot::Sender<Outcome>>)>;

/// The background task of one size class.
pub(super) struct GroupCommitLoop {
    publisher: Arc<dyn GroupPublisher>,
    config: GroupCommitConfig,
    requests: mpsc::UnboundedReceiver<CommitRequest>,
    /// False once all senders of requests are dropped.
    open: bool,
    /// Requests that are not published yet, oldest first.
    waiting: VecDeque<CommitRequest>,
    waiting_records: usize,
    waiting_bytes: u64,
    in_flight: FuturesUnordered<InFlightGroup>,
}

impl GroupCommitLoop {
    pub(super) fn new(
        publisher: Arc<dyn GroupPublisher>,
        config: GroupCommitConfig,
        requests: mpsc::UnboundedReceiver<CommitRequest>,
    ) -> Self {
        Self {
            publisher,
            config,
            requests,
            open: true,
            waiting: VecDeque::new(),
            waiting_records: 0,
            waiting_bytes: 0,
            in_flight: FuturesUnordered::new(),
        }
    }

    /// Runs until all senders of requests are dropped and all outcomes are sent. May be called again after a panic;
    /// senders whose group was lost with it are told that nothing was confirmed.
    pub(super) async fn run(&mut self) {
        let GroupCommitConfig { records, bytes, wait, messages } = self.config;
        while self.open || !self.in_flight.is_empty() || !self.waiting.is_empty() {
            let full = self.in_flight.len() >= messages;
            // If no message may be published, the oldest request waits for a confirm, but not forever.
            let wait = if full { PUBLISH_SLOT_TIMEOUT } else { wait };
            let oldest = self.waiting.front();
            let waited = OptionFuture::from(oldest.map(|oldest| sleep_until(oldest.created_at + wait)));
            tokio::select! {
                biased;
                Some((outcome, outcomes)) = self.in_flight.next(), if !self.in_flight.is_empty() => {
                    for sender in outcomes {
                        // The receiver is dropped if the request was cancelled.
                        let _ = sender.send(outcome.clone());
                    }
                }
                request = self.requests.recv(), if self.open && !(full && self.waiting_records >= records) => {
                    match request {
                        Some(request) => self.add(request),
                        None => self.open = false,
                    }
                    // Requests that are already queued join the same group.
                    while self.waiting_records < records && let Ok(request) = self.requests.try_recv() {
                        self.add(request);
                    }
                }
                Some(()) = waited => if full { self.refuse_oldest() } else { self.publish_group() },
            }
            // Without a message in flight nothing waits. Otherwise only full groups are published.
            while !self.waiting.is_empty()
                && (self.in_flight.is_empty()
                    || self.in_flight.len() < messages
                        && (self.waiting_records >= records || self.waiting_bytes >= bytes.0 / 4 * 3))
            {
                self.publish_group();
            }
        }
    }

    fn add(&mut self, request: CommitRequest) {
        self.waiting_records += request.tasks.len();
        self.waiting_bytes += request.bytes;
        self.waiting.push_back(request);
    }

    /// Drops the oldest requests up to the first one whose caller still waits.
    fn drop_cancelled(&mut self) {
        while let Some(cancelled) = self.waiting.pop_front_if(|request| request.outcome.is_closed()) {
            self.waiting_records -= cancelled.tasks.len();
            self.waiting_bytes -= cancelled.bytes;
        }
    }

    fn refuse_oldest(&mut self) {
        let Some(oldest) = self.waiting.pop_front() else { return };
        self.waiting_records -= oldest.tasks.len();
        self.waiting_bytes -= oldest.bytes;
        // The receiver is dropped if the request was cancelled.
        let _ = oldest.outcome.send(Err(no_room()));
    }

    /// Publishes the oldest requests, as many as fit into one message. A request whose caller has gone is dropped: the
    /// caller may have stored its tasks elsewhere.
    fn publish_group(&mut self) {
        self.drop_cancelled();
        let Some(oldest) = self.waiting.pop_front() else { return };
        let GroupCommitConfig { records, bytes: max_bytes, .. } = self.config;
        let CommitRequest { mut tasks, mut bytes, outcome, .. } = oldest;
        let mut outcomes = vec![outcome];
        while let Some(next) = self.waiting.pop_front_if(|next| {
            tasks.len() + next.tasks.len() <= records && bytes + next.bytes <= max_bytes.0
        }) {
            tasks.extend(next.tasks);
            bytes += next.bytes;
            outcomes.push(next.outcome);
            self.drop_cancelled();
        }
        self.waiting_records -= tasks.len();
        self.waiting_bytes -= bytes;
        let publishing = Arc::clone(&self.publisher).publish_group(tasks);
        self.in_flight.push(Box::pin(async move { (publishing.await, outcomes) }));
    }
}
