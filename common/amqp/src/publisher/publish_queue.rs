//! The queue of messages to publish. Messages that wait for the connection are written together.
//!
//! A writer holds the connection while the frames of its round are written. Messages that arrive meanwhile form the
//! next round. So a message is written at once at low load, many share one write at high load, and behind a full
//! socket messages wait in the queue, where their senders can still withdraw them.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex},
};

use deadpool::managed::{Object, Pool, PoolError};
use futures_util::FutureExt;
use garenne_common::{lock::lock, supervise};

use super::{error::PublishError, pending_publish::PendingPublish, pooled_connection::ConnectionOpener};

/// Most messages in a round.
const MAX_ROUND: usize = 256;
/// Most body bytes in a round, except for its first message: a larger message has a round of its own, so that no
/// other message waits for it.
const MAX_ROUND_BYTES: usize = 256 * 1024;

/// The messages that wait for the connection, and the pool that opens and checks it.
pub(super) struct PublishQueue {
    pub(super) pool: Pool<ConnectionOpener>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    publishes: VecDeque<PendingPublish>,
    /// The emptied list of a finished writer, reused by the next one: large allocations are slow.
    spare: Vec<PendingPublish>,
    /// Whether a writer runs.
    writing: bool,
}

impl PublishQueue {
    pub(super) fn new(pool: Pool<ConnectionOpener>) -> Arc<Self> {
        Arc::new(Self { pool, state: Mutex::default() })
    }

    /// Adds a message. Starts a writer if none runs.
    pub(super) fn push(self: &Arc<Self>, publish: PendingPublish) {
        let mut state = lock(&self.state);
        state.publishes.push_back(publish);
        if !mem::replace(&mut state.writing, true) {
            drop(state);
            let writer = Writer { queue: Arc::clone(self), active: true };
            let writing = supervise::restarting("publish queue", writer, |writer| writer.run().boxed());
            writing.spawn().detach();
        }
    }

    /// Waits for the connection, which is opened if there is none.
    pub(super) async fn connection(&self) -> Result<Object<ConnectionOpener>, PublishError> {
        self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => PublishError::Connect(error),
            _ => PublishError::Busy {
                what: "connection",
                waited: self.pool.timeouts().wait.unwrap_or_default(),
            },
        })
    }

    /// Fills `round` with the next publishes. If none waits, `round` stays empty and the writer is no longer active.
    fn next(&self, round: &mut Vec<PendingPublish>, active: &mut bool) {
        let mut state = lock(&self.state);
        if round.capacity() == 0 {
            *round = mem::take(&mut state.spare);
        }
        let mut bytes = 0;
        while let Some(publish) = state.publishes.front() {
            bytes += publish.body.len();
            if round.len() == MAX_ROUND || (bytes > MAX_ROUND_BYTES && !round.is_empty()) {
                break;
            }
            round.extend(state.publishes.pop_front());
        }
        if round.is_empty() && mem::take(active) {
            state.writing = false;
            state.spare = mem::take(round);
        }
    }
}

/// Writes rounds until the queue is empty.
struct Writer {
    queue: Arc<PublishQueue>,
    /// Whether it is the queue's running writer.
    active: bool,
}

impl Writer {
    async fn run(&mut self) {
        let mut round = Vec::new();
        while self.active {
            // Gets the connection before the messages: while they are in the queue, their senders can give up.
            let connection = self.queue.connection().await;
            self.queue.next(&mut round, &mut self.active);
            round.retain(PendingPublish::claim);
            match connection {
                _ if round.is_empty() => {}
                Ok(pooled) => {
                    pooled.replies.iter().for_each(|replies| replies.note(&round));
                    round = pooled.confirm_tracker.write(round).await;
                }
                Err(error) => {
                    round.drain(..).for_each(|publish| drop(publish.answer.send(Err(error.clone()))));
                }
            }
        }
    }
}

/// Lets another writer start if this one is dropped while it runs, as at runtime shutdown.
impl Drop for Writer {
    fn drop(&mut self) {
        if self.active {
            lock(&self.queue.state).writing = false;
        }
    }
}
