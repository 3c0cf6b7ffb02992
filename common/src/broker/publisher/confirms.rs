//! Which confirm belongs to which message, when some come back.
//!
//! The client library hands a returned message to whichever confirm it completes next, which with
//! many in flight may be another message's. So one task per channel gathers every confirm that is
//! ready before it speaks for any of them, and matches returns by `message_id`.

use std::collections::HashMap;

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use lapin::{Channel, Confirmation, PublisherConfirm};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::error::PublishError;
use crate::broker::Target;

/// What the broker said of a message: that a queue has it, or why none is known to.
pub(super) type Verdict = Result<(), PublishError>;

/// A message that was written.
pub(super) struct Watched {
    pub(super) confirm: PublisherConfirm,
    pub(super) id: Option<String>,
    pub(super) target: Target,
    pub(super) place: OwnedSemaphorePermit,
    pub(super) answer: oneshot::Sender<Verdict>,
}

/// The channel's confirm task, seen from outside. It ends when this is dropped and nothing is in
/// flight.
pub(super) struct Confirms(mpsc::UnboundedSender<Watched>);

impl Confirms {
    pub(super) fn start(channel: Channel) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(run(channel, receiver));
        Self(sender)
    }

    /// Hands over a confirm; the number of them is bounded by the places in flight.
    pub(super) fn watch(&self, watched: Watched) {
        // A task that is gone drops `answer`, which the waiting side reads as in doubt.
        let _ = self.0.send(watched);
    }
}

type Settled = (lapin::Result<Confirmation>, Option<String>, Target, oneshot::Sender<Verdict>);

async fn settle(watched: Watched) -> Settled {
    let Watched { confirm, id, target, place, answer } = watched;
    let confirmation = confirm.await;
    drop(place);
    (confirmation, id, target, answer)
}

async fn run(channel: Channel, mut arrivals: mpsc::UnboundedReceiver<Watched>) {
    let mut flying = FuturesUnordered::new();
    let mut returned = Returned::default();
    let mut open = true;
    while open || !flying.is_empty() {
        let first = tokio::select! {
            arrival = arrivals.recv(), if open => {
                match arrival {
                    Some(watched) => flying.push(settle(watched)),
                    None => open = false,
                }
                continue;
            }
            Some(settled) = flying.next() => settled,
        };
        // A block of confirms is completed under a lock of the channel. Polling this once takes the
        // same lock, so that after it the whole block is visible, returns included.
        let _ = channel.wait_for_confirms().now_or_never();
        while let Ok(watched) = arrivals.try_recv() {
            flying.push(settle(watched));
        }
        let mut ready = vec![first];
        while let Some(Some(settled)) = flying.next().now_or_never() {
            ready.push(settled);
        }
        answer(ready, &mut returned);
    }
}

fn answer(ready: Vec<Settled>, returned: &mut Returned) {
    for (confirmation, _, _, _) in &ready {
        if let Ok(Confirmation::Ack(Some(message)) | Confirmation::Nack(Some(message))) = confirmation {
            let id = message.delivery.properties.message_id().as_ref().map(|id| id.as_str().to_owned());
            returned.note(id);
        }
    }
    for (confirmation, id, target, answer) in ready {
        let Target { exchange, routing_key, .. } = target;
        let verdict = match confirmation {
            Err(error) => Err(PublishError::lost(&error)),
            Ok(_) if returned.take(&id) => Err(PublishError::Unroutable { exchange, routing_key }),
            Ok(Confirmation::Ack(_)) => Ok(()),
            Ok(Confirmation::Nack(_)) => Err(PublishError::Refused { routing_key }),
            Ok(Confirmation::NotRequested) => {
                Err(PublishError::InDoubt("the channel does not confirm".into()))
            }
        };
        let _ = answer.send(verdict);
    }
}

/// Returned messages whose own confirm has not been answered yet, by id.
#[derive(Default)]
struct Returned(HashMap<Option<String>, usize>);

impl Returned {
    fn note(&mut self, id: Option<String>) {
        *self.0.entry(id).or_default() += 1;
    }

    fn take(&mut self, id: &Option<String>) -> bool {
        let Some(count) = self.0.get_mut(id) else { return false };
        *count -= 1;
        if *count == 0 {
            self.0.remove(id);
        }
        true
    }
}
