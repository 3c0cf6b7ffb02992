//! Forms groups of tasks and sends them.

use std::sync::Arc;

use futures_util::{
    StreamExt,
    future::{BoxFuture, OptionFuture},
    stream::FuturesUnordered,
};
use tokio::{sync::oneshot, time::sleep_until};

use crate::messages::GroupSender;

use super::{
    GroupCommitConfig, SLOT_TIMEOUT, no_room,
    waiting::{Awaited, Group, Outcome, WaitingRequests},
};

/// A published message that is not confirmed yet. It resolves to its outcome and the requests that wait for it.
type InFlightGroup = BoxFuture<'static, (Outcome, Vec<oneshot::Sender<Outcome>>)>;

/// The background task of one size class.
pub(super) struct GroupCommitLoop {
    sender: Arc<dyn GroupSender>,
    config: GroupCommitConfig,
    waiting: Arc<WaitingRequests>,
    in_flight: FuturesUnordered<InFlightGroup>,
}

impl GroupCommitLoop {
    pub(super) fn new(
        sender: Arc<dyn GroupSender>,
        config: GroupCommitConfig,
        waiting: Arc<WaitingRequests>,
    ) -> Self {
        Self { sender, config, waiting, in_flight: FuturesUnordered::new() }
    }

    /// Runs until the waiting requests are closed and all outcomes are sent. May be called again after a panic;
    /// senders whose group was lost with it are told that nothing was confirmed.
    pub(super) async fn run(&mut self) {
        let GroupCommitConfig { wait, messages, linger, .. } = self.config;
        loop {
            self.send_ready();
            if self.in_flight.is_empty() && self.waiting.are_ended() {
                return;
            }
            let full = self.in_flight.len() >= messages;
            // If no message may be published, the oldest request waits for a confirm, but not forever.
            let (wait, awaited) = match full {
                true => (SLOT_TIMEOUT, Awaited::Nothing),
                false if self.in_flight.is_empty() => (linger, Awaited::EndOfLinger),
                false => (wait, Awaited::FullGroup),
            };
            let oldest = self.waiting.wake_at(awaited);
            let waited = OptionFuture::from(oldest.map(|created_at| sleep_until(created_at + wait)));
            tokio::select! {
                biased;
                Some((outcome, outcomes)) = self.in_flight.next(), if !self.in_flight.is_empty() => {
                    for sender in outcomes {
                        // The receiver is dropped if the request was cancelled.
                        let _ = sender.send(outcome.clone());
                    }
                }
                () = self.waiting.reached() => {}
                Some(()) = waited => {
                    if full {
                        self.refuse_oldest();
                    } else {
                        self.send_group();
                    }
                }
            }
        }
    }

    /// Sends full groups, and without a message in flight also requests that do not linger.
    fn send_ready(&mut self) {
        while self.in_flight.is_empty() && self.waiting.linger_is_over()
            || self.in_flight.len() < self.config.messages && self.waiting.has_full_group()
        {
            if !self.send_group() {
                return;
            }
        }
    }

    fn refuse_oldest(&self) {
        if let Some(oldest) = self.waiting.take_oldest() {
            // The receiver is dropped if the request was cancelled.
            let _ = oldest.outcome.send(Err(no_room()));
        }
    }

    /// Sends the oldest requests in one message; false if nothing waits.
    fn send_group(&mut self) -> bool {
        let Some(Group { tasks, outcomes }) = self.waiting.take_group() else { return false };
        let sending = Arc::clone(&self.sender).send_group(tasks);
        self.in_flight.push(Box::pin(async move { (sending.await, outcomes) }));
        true
    }
}

/// Tells callers, also later ones, that nothing publishes their tasks.
impl Drop for GroupCommitLoop {
    fn drop(&mut self) {
        self.waiting.abandon();
    }
}
