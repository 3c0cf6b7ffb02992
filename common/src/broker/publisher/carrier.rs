//! A channel's task: it writes letters and hears what the broker says of each.
//!
//! The client library hands a returned message to whichever confirm it completes next, which with
//! many in flight may be another message's. So one task per channel gathers every confirm that is
//! ready before it speaks for any of them, and matches returns by `message_id`. The same task writes.

use std::{collections::HashMap, future::poll_fn, sync::Arc};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use lapin::{Channel, Confirmation, types::ShortString};
use tokio::sync::{mpsc, oneshot};

use super::{
    error::PublishError,
    writers::Letter,
    writing::{Round, Sent, Writing, Written},
};
use crate::broker::Target;

/// What the broker said of a message: that a queue has it, or why none is known to.
pub(super) type Verdict = Result<(), PublishError>;

/// The channel's task, seen from outside. It ends when this is dropped and nothing is in flight.
pub(super) struct Carrier(mpsc::UnboundedSender<Round>);

impl Carrier {
    pub(super) fn start(channel: Arc<Channel>) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(run(channel, receiver));
        Self(sender)
    }

    /// Hands over letters and waits until all of them are on the socket; their number is bounded by the
    /// places in flight. The list comes back empty, for the next ones.
    pub(super) async fn carry(&self, letters: Vec<Letter>) -> Vec<Letter> {
        let (written, all) = oneshot::channel();
        // A task that is gone drops each letter's answer, which the waiting side reads as in doubt.
        let _ = self.0.send(Round { letters, written });
        all.await.unwrap_or_default()
    }
}

/// What became of a letter.
struct Settled {
    /// Whether the broker says that it has it.
    stored: Result<bool, PublishError>,
    /// The id of the message that came back with the confirm, which may be another one.
    came_back: Option<Option<ShortString>>,
    id: Option<ShortString>,
    target: Target,
    answer: oneshot::Sender<Verdict>,
}

async fn settle(Written { confirm, sent }: Written) -> Settled {
    let Sent { id, target, place, answer } = sent;
    let confirmation = match confirm {
        Ok(confirm) => confirm.await,
        Err(error) => Err(error),
    };
    drop(place);
    // What the library tells is large; what is kept of it is not.
    let (stored, returned) = match confirmation {
        Ok(Confirmation::Ack(returned)) => (Ok(true), returned),
        Ok(Confirmation::Nack(returned)) => (Ok(false), returned),
        Ok(Confirmation::NotRequested) => {
            (Err(PublishError::InDoubt("the channel does not confirm".into())), None)
        }
        Err(error) => (Err(PublishError::lost(&error)), None),
    };
    let came_back = returned.map(|message| message.delivery.properties.message_id().clone());
    Settled { stored, came_back, id, target, answer }
}

async fn run(channel: Arc<Channel>, mut rounds: mpsc::UnboundedReceiver<Round>) {
    let mut writing = Writing::new(Arc::clone(&channel));
    let mut flying = FuturesUnordered::new();
    let mut returned = Returned::default();
    let mut ready = Vec::new();
    let mut open = true;
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
        if let Some(id) = settled.came_back.take() {
            returned.note(id);
        }
    }
    for Settled { stored, id, target, answer, .. } in ready.drain(..) {
        let Target { exchange, routing_key, .. } = target;
        let verdict = match stored {
            Ok(_) if returned.take(&id) => Err(PublishError::Unroutable { exchange, routing_key }),
            Ok(true) => Ok(()),
            Ok(false) => Err(PublishError::Refused { routing_key }),
            Err(error) => Err(error),
        };
        // A sender that is gone wants no word.
        let _ = answer.send(verdict);
    }
}

/// Returned messages whose own confirm has not been answered yet, by id.
#[derive(Default)]
struct Returned(HashMap<Option<ShortString>, usize>);

impl Returned {
    fn note(&mut self, id: Option<ShortString>) {
        *self.0.entry(id).or_default() += 1;
    }

    fn take(&mut self, id: &Option<ShortString>) -> bool {
        let Some(count) = self.0.get_mut(id) else { return false };
        *count -= 1;
        if *count == 0 {
            self.0.remove(id);
        }
        true
    }
}
