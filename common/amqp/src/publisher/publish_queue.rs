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
use futures_util::FutureExt;
use garenne_common::supervise;

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
            drop(state);
            let writer = Writer { queue: Arc::clone(self), counted: true };
            let writing = supervise::restarting("publish queue", writer, |writer| writer.run().boxed());
            writing.spawn().detach();
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
struct Writer {
    queue: Arc<PublishQueue>,
    /// Whether it is one of the queue's running writers.
    counted: bool,
}

impl Writer {
    async fn run(&mut self) {
        let mut round = Vec::new();
        while self.counted {
            let pool = &self.queue.pool;
            // Gets the connection before the messages: while they are in the queue, their senders can give up.
            let member = match pool.get().await {
                Ok(member) => Ok(member),
                Err(error) => Err(PublishError::of_pool(error, pool.timeouts().wait)),
            };
            self.queue.next(&mut round, &mut self.counted);
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
impl Drop for Writer {
    fn drop(&mut self) {
        if self.counted {
            self.queue.state().writers -= 1;
        }
    }
}
