//! The queue of messages to publish. Messages that wait for the same connection are written together.
//!
//! A writer holds a connection while the frames of its round are written. Messages that arrive meanwhile form the
//! next round. So a message is written at once at low load, many share one write at high load, and behind a full
//! socket messages wait in the queue, where their senders can still withdraw them.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use deadpool::managed::Pool;

use super::{error::PublishError, member::Members, pending_publish::PendingPublish};

/// Most messages in a round.
const MAX_ROUND: usize = 256;
/// Most body bytes in a round, except for its first message: a larger message has a round of its own, so that no
/// other message waits for it.
const MAX_ROUND_BYTES: usize = 256 * 1024;

/// The messages that wait for a connection, and the number of running writers.
pub(super) struct PublishQueue {
    pool: Pool<Members>,
    max_writers: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    publishes: VecDeque<PendingPublish>,
    /// The emptied list of a finished writer, reused by the next one: large allocations are slow.
    spare: Vec<PendingPublish>,
    writers: usize,
}

impl PublishQueue {
    /// A queue for the connections of a pool.
    pub(super) fn new(pool: Pool<Members>, connections: usize) -> Arc<Self> {
        Arc::new(Self { pool, max_writers: connections, state: Mutex::default() })
    }

    /// Adds a message. Starts another writer if fewer than `max_writers` run.
    pub(super) fn push(self: &Arc<Self>, publish: PendingPublish) {
        let mut state = self.state();
        state.publishes.push_back(publish);
        if state.writers < self.max_writers {
            state.writers += 1;
            let writer = Writer(Arc::clone(self));
            drop(state);
            tokio::spawn(async move { writer.run().await });
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills `round` with the next publishes. If none waits, `round` stays empty and the writer is no longer counted.
    fn next(&self, round: &mut Vec<PendingPublish>, counted: &mut bool) {
        let mut state = self.state();
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
        if round.is_empty() && mem::take(counted) {
            state.writers -= 1;
            state.spare = mem::take(round);
        }
    }
}

/// Writes rounds until the queue is empty.
struct Writer(Arc<PublishQueue>);

impl Writer {
    async fn run(self) {
        let mut count = WriterCount { queue: &self.0, counted: true };
        let mut round = Vec::new();
        while count.counted {
            // Gets the connection before the messages: while they are in the queue, their senders can give up.
            let member = match self.0.pool.get().await {
                Ok(member) => Ok(member),
                Err(error) => Err(PublishError::of_pool(error, self.0.pool.timeouts().wait)),
            };
            self.0.next(&mut round, &mut count.counted);
            round.retain(PendingPublish::claim);
            match member {
                _ if round.is_empty() => {}
                Ok(member) => round = member.confirm_tracker.write(round).await,
                Err(error) => {
                    round.drain(..).for_each(|publish| drop(publish.answer.send(Err(error.clone()))));
                }
            }
        }
    }
}

/// Uncounts a writer that is dropped while it runs, as at runtime shutdown, so that another one can start.
struct WriterCount<'a> {
    queue: &'a PublishQueue,
    counted: bool,
}

impl Drop for WriterCount<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.queue.state().writers -= 1;
        }
    }
}
