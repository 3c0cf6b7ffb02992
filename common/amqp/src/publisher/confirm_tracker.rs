//! A channel's task: it writes publishes and hears what the broker says of each.
//!
//! The client library hands a returned message to whichever confirm it completes next, which with
//! many in flight may be another message's. So one task per channel gathers every confirm that is
//! ready before it speaks for any of them, and matches returns by exchange, routing key and `message_id`
//! together. The same task writes.

use std::{collections::HashMap, future::poll_fn, mem, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use lapin::{Channel, Confirmation, message::BasicReturnMessage, types::ShortString};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};

use super::{
    address::Address,
    error::PublishError,
    pending_publish::{Answer, PendingPublish},
    writing::{Round, Sent, Writing, Written},
};

/// How often it is checked that the channel of unconfirmed messages lives. The client library ends their confirms
/// with the channel; one that it forgot would be waited for without end.
const CHANNEL_CHECK: Duration = Duration::from_secs(2);

/// The channel's task, seen from outside. It ends when this is dropped and nothing is in flight.
pub(super) struct ConfirmTracker {
    rounds: mpsc::UnboundedSender<Round>,
    pub(super) task: JoinHandle<()>,
}

impl ConfirmTracker {
    pub(super) fn start(channel: Arc<Channel>, header_limit: usize) -> Self {
        let (rounds, receiver) = mpsc::unbounded_channel();
        let task = tokio::spawn(run(channel, header_limit, receiver));
        Self { rounds, task }
    }

    /// Whether its task runs. Without it nothing that is handed over is sent.
    pub(super) fn is_running(&self) -> bool {
        !self.task.is_finished() && !self.rounds.is_closed()
    }

    /// Hands over publishes and waits until all of them are on the socket; their number is bounded by the
    /// places in flight. The list comes back empty, for the next ones.
    pub(super) async fn carry(&self, publishes: Vec<PendingPublish>) -> Vec<PendingPublish> {
        let (written, all) = oneshot::channel();
        // A task that is gone drops each publish's answer, which the waiting side reads as in doubt.
        let _ = self.rounds.send(Round { publishes, written });
        all.await.unwrap_or_default()
    }
}

/// What became of a publish.
struct Settled {
    /// Whether the broker says that it has it.
    stored: Result<bool, PublishError>,
    /// The message that came back with the confirm, which may be another one.
    came_back: Option<Identity>,
    identity: Identity,
    answer: oneshot::Sender<Answer>,
}

/// What a returned message is known by: where it was sent, and its id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Identity {
    address: Address,
    id: Option<ShortString>,
}

impl Identity {
    fn of_return(BasicReturnMessage { delivery, .. }: BasicReturnMessage) -> Self {
        let address = Address { exchange: delivery.exchange, routing_key: delivery.routing_key };
        Self { address, id: delivery.properties.message_id().clone() }
    }
}

async fn settle(Written { confirm, sent }: Written) -> Settled {
    let Sent { id, address, bytes, permit, answer } = sent;
    let confirmation = match confirm {
        Ok(confirm) => confirm.await,
        Err(error) => Err(error),
    };
    drop(permit);
    // What the library tells is large; what is kept of it is not.
    let (stored, returned) = match confirmation {
        Ok(Confirmation::Ack(returned)) => (Ok(true), returned),
        Ok(Confirmation::Nack(returned)) => (Ok(false), returned),
        Ok(Confirmation::NotRequested) => {
            (Err(PublishError::InDoubt("the channel does not confirm".into())), None)
        }
        Err(error) => (Err(PublishError::lost_with(&error, bytes)), None),
    };
    let came_back = returned.map(Identity::of_return);
    Settled { stored, came_back, identity: Identity { address, id }, answer }
}

async fn run(channel: Arc<Channel>, header_limit: usize, mut rounds: mpsc::UnboundedReceiver<Round>) {
    let mut writing = Writing::new(Arc::clone(&channel), header_limit);
    let mut flying = FuturesUnordered::new();
    let mut returned = Returned::default();
    let mut ready = Vec::new();
    let mut open = true;
    let mut check = interval(CHANNEL_CHECK);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen_dead = false;
    while open || !writing.is_done() || !flying.is_empty() {
        let first = tokio::select! {
            round = rounds.recv(), if open && writing.is_done() => {
                match round {
                    Some(round) => writing.begin(round),
                    None => open = false,
                }
                continue;
            }
            written = poll_fn(|cx| writing.poll_next(cx)), if !writing.is_done() => {
                flying.extend(written.map(settle));
                fly(&mut writing, &flying, settle);
                continue;
            }
            Some(settled) = flying.next() => settled,
            _ = check.tick(), if !writing.is_done() || !flying.is_empty() => {
                if !channel.status().connected() && mem::replace(&mut seen_dead, true) {
                    // What is still unanswered is in doubt.
                    return;
                }
                continue;
            }
        };
        // A block of confirms is completed under a lock of the channel. Polling this once takes the
        // same lock, so that after it the whole block is visible, returns included; what is confirmed
        // was written before.
        let _ = channel.wait_for_confirms().now_or_never();
        fly(&mut writing, &flying, settle);
        ready.push(first);
        while let Some(Some(settled)) = flying.next().now_or_never() {
            ready.push(settled);
        }
        answer(&mut ready, &mut returned);
    }
}

/// Has whatever is on the socket by now wait for its confirm. The next look at it wakes the task again.
fn fly<F: Future>(writing: &mut Writing, flying: &FuturesUnordered<F>, settle: impl Fn(Written) -> F) {
    while let Some(Some(written)) = poll_fn(|cx| writing.poll_next(cx)).now_or_never() {
        flying.push(settle(written));
    }
}

fn answer(ready: &mut Vec<Settled>, returned: &mut Returned) {
    for settled in &mut *ready {
        if let Some(message) = settled.came_back.take() {
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
            Ok(false) => Err(PublishError::Refused { routing_key }),
            Err(error) => Err(error),
        };
        // A sender that is gone wants no word.
        let _ = answer.send(outcome);
    }
}

/// How many returned messages have no answer to their own confirm yet.
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
