//! One task per channel, which writes publishes and tracks their confirms.
//!
//! lapin attaches a returned message (`basic.return`) to the confirm that it completes next. With many messages in
//! flight that may be another message's. So the task collects all confirms that are ready before it answers any of
//! them, and matches returns by exchange, routing key and `message_id` (or `correlation_id`).

use std::{collections::HashMap, future::poll_fn, mem, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use garenne_common::supervise;
use lapin::{Channel, Confirmation, message::BasicReturnMessage};
use tokio::{
    sync::{mpsc, oneshot},
    task::AbortHandle,
    time::{MissedTickBehavior, interval},
};

use super::{
    address::{Address, Identity},
    error::PublishError,
    pending_publish::{Answer, PendingPublish},
    writing::{Round, Sent, Writing, Written},
};

/// How often the task checks, while messages are unconfirmed, that the channel is open. lapin fails their confirms
/// when the channel closes; this check ends the wait for a confirm that lapin has lost.
const CHANNEL_CHECK: Duration = Duration::from_secs(2);

/// Handle of a channel's task. The task ends when the handle is dropped and no message is in flight.
pub(super) struct ConfirmTracker {
    rounds: mpsc::UnboundedSender<Round>,
    pub(super) task: AbortHandle,
}

impl ConfirmTracker {
    pub(super) fn start(channel: Arc<Channel>, header_limit: usize) -> Self {
        let (rounds, receiver) = mpsc::unbounded_channel();
        // Not restarted: the confirms of its messages are lost. The pool replaces the connection instead.
        let task = supervise::isolated("confirm tracker", run(channel, header_limit, receiver));
        let task = task.spawn().detach();
        Self { rounds, task }
    }

    /// Whether the task runs. After its end, publishes that are handed over are not sent.
    pub(super) fn is_running(&self) -> bool {
        !self.task.is_finished() && !self.rounds.is_closed()
    }

    /// Hands over publishes and waits until all of them are on the socket. The in-flight permits bound their
    /// number. Returns the emptied list for reuse.
    pub(super) async fn write(&self, publishes: Vec<PendingPublish>) -> Vec<PendingPublish> {
        let (written, all) = oneshot::channel();
        // If the task has ended, each publish's `answer` is dropped, which its sender reads as in doubt.
        let _ = self.rounds.send(Round { publishes, written });
        all.await.unwrap_or_default()
    }
}

/// A confirm that arrived, before returns are matched.
struct Settled {
    /// True for an ack, false for a nack.
    stored: Result<bool, PublishError>,
    /// The returned message that lapin attached to this confirm; it may be another message.
    returned: Option<Identity>,
    identity: Identity,
    answer: oneshot::Sender<Answer>,
}

async fn settle(Written { confirm, sent }: Written) -> Settled {
    let Sent { identity, bytes, permit, answer } = sent;
    let confirmation = match confirm {
        Ok(confirm) => confirm.await,
        Err(error) => Err(error),
    };
    drop(permit);
    // Keeps only the identity: lapin's value holds the whole returned message.
    let (stored, returned) = match confirmation {
        Ok(Confirmation::Ack(returned)) => (Ok(true), returned),
        Ok(Confirmation::Nack(returned)) => (Ok(false), returned),
        Ok(Confirmation::NotRequested) => {
            (Err(PublishError::InDoubt("the channel does not confirm".into())), None)
        }
        Err(error) => (Err(PublishError::lost_with(&error, bytes)), None),
    };
    let returned = returned.map(|BasicReturnMessage { delivery, .. }| {
        let address = Address { exchange: delivery.exchange, routing_key: delivery.routing_key };
        Identity::of(address, &delivery.properties)
    });
    Settled { stored, returned, identity, answer }
}

async fn run(channel: Arc<Channel>, header_limit: usize, mut rounds: mpsc::UnboundedReceiver<Round>) {
    let mut writing = Writing::new(Arc::clone(&channel), header_limit);
    let mut unconfirmed = FuturesUnordered::new();
    let mut returned = Returned::default();
    let mut ready = Vec::new();
    let mut open = true;
    let mut check = interval(CHANNEL_CHECK);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen_closed = false;
    while open || !writing.is_done() || !unconfirmed.is_empty() {
        let first = tokio::select! {
            round = rounds.recv(), if open && writing.is_done() => {
                match round {
                    Some(round) => writing.begin(round),
                    None => open = false,
                }
                continue;
            }
            written = poll_fn(|cx| writing.poll_next(cx)), if !writing.is_done() => {
                unconfirmed.extend(written.map(settle));
                collect_written(&mut writing, &unconfirmed, settle);
                continue;
            }
            Some(settled) = unconfirmed.next() => settled,
            _ = check.tick(), if !writing.is_done() || !unconfirmed.is_empty() => {
                if !channel.status().connected() && mem::replace(&mut seen_closed, true) {
                    // Dropping the unanswered publishes reports them as in doubt.
                    return;
                }
                continue;
            }
        };
        // lapin completes a block of confirms under a lock of the channel. Polling `wait_for_confirms` takes the
        // same lock: after it the whole block is visible, returns included. Confirmed messages were written
        // before, so `collect_written` makes all of them part of `unconfirmed`.
        let _ = channel.wait_for_confirms().now_or_never();
        collect_written(&mut writing, &unconfirmed, settle);
        ready.push(first);
        while let Some(Some(settled)) = unconfirmed.next().now_or_never() {
            ready.push(settled);
        }
        answer(&mut ready, &mut returned);
    }
}

/// Moves the messages that are on the socket by now to `unconfirmed`. The waker is registered by the next poll.
fn collect_written<F: Future>(
    writing: &mut Writing,
    unconfirmed: &FuturesUnordered<F>,
    settle: impl Fn(Written) -> F,
) {
    while let Some(Some(written)) = poll_fn(|cx| writing.poll_next(cx)).now_or_never() {
        unconfirmed.push(settle(written));
    }
}

fn answer(ready: &mut Vec<Settled>, returned: &mut Returned) {
    for settled in &mut *ready {
        if let Some(message) = settled.returned.take() {
            returned.note(message);
        }
    }
    for Settled { stored, identity, answer, .. } in ready.drain(..) {
        let is_returned = stored.is_ok() && returned.take(&identity);
        let Address { exchange, routing_key } = identity.address;
        let (exchange, routing_key) = (exchange.into(), routing_key.into());
        let outcome = match stored {
            Ok(_) if is_returned => Err(PublishError::Unroutable { exchange, routing_key }),
            Ok(true) => Ok(()),
            Ok(false) => Err(PublishError::Refused { exchange, routing_key }),
            Err(error) => Err(error),
        };
        // Fails if the sender has stopped waiting.
        let _ = answer.send(outcome);
    }
}

/// Number of returned messages, by identity, whose own confirm was not answered yet.
#[derive(Default)]
struct Returned(HashMap<Identity, usize>);

impl Returned {
    fn note(&mut self, message: Identity) {
        *self.0.entry(message).or_default() += 1;
    }

    fn take(&mut self, message: &Identity) -> bool {
        let Some(count) = self.0.get_mut(message) else { return false };
        *count -= 1;
        if *count == 0 {
            self.0.remove(message);
        }
        true
    }
}
