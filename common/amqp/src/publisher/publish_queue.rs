//! The queue of messages to publish. Messages that wait for the same connection are written together.
//!
//! A writer holds a connection while frames of its round are written; what arrives meanwhile is the next
//! round. So at low load a message goes out at once, at high load many share one write, and behind a socket
//! that takes nothing more messages wait where they can still be taken back.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use deadpool::managed::Pool;

use super::{error::PublishError, member::Members, pending_publish::PendingPublish};

/// Most messages of a round, and most bytes of their bodies but for the first: a large one goes alone, so
/// that no other message waits for it.
const ROUND: usize = 256;
const ROUND_BYTES: usize = 256 * 1024;

/// The messages that wait, and how many writers there are.
pub(super) struct PublishQueue {
    pool: Pool<Members>,
    most: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    publishes: VecDeque<PendingPublish>,
    /// An empty list of a writer that is gone. Large pieces of memory, asked for time and again, are what
    /// an allocator is slowest at.
    spare: Vec<PendingPublish>,
    writers: usize,
}

impl PublishQueue {
    /// A queue for the connections of a pool.
    pub(super) fn new(pool: Pool<Members>, connections: usize) -> Arc<Self> {
        Arc::new(Self { pool, most: connections, state: Mutex::default() })
    }

    /// Adds a message. Starts another writer where there could be one more.
    pub(super) fn push(self: &Arc<Self>, publish: PendingPublish) {
        let mut state = self.state();
        state.publishes.push_back(publish);
        if state.writers < self.most {
            state.writers += 1;
            let writer = Writer(Arc::clone(self));
            drop(state);
            tokio::spawn(async move { writer.run().await });
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next round; nothing when no publish waits, and then the writer counts no more.
    fn next(&self, round: &mut Vec<PendingPublish>, writer: &mut bool) {
        let mut state = self.state();
        if round.capacity() == 0 {
            *round = mem::take(&mut state.spare);
        }
        let mut bytes = 0;
        while let Some(publish) = state.publishes.front() {
            bytes += publish.body.len();
            if round.len() == ROUND || (bytes > ROUND_BYTES && !round.is_empty()) {
                break;
            }
            round.extend(state.publishes.pop_front());
        }
        if round.is_empty() && mem::take(writer) {
            state.writers -= 1;
            state.spare = mem::take(round);
        }
    }
}

/// Writes until nothing waits.
struct Writer(Arc<PublishQueue>);

impl Writer {
    async fn run(self) {
        let mut present = Present { queue: &self.0, counted: true };
        let mut round = Vec::new();
        while present.counted {
            // The connection first: whoever waits for one can go without as long as the publish lies here.
            let member = match self.0.pool.get().await {
                Ok(member) => Ok(member),
                Err(error) => Err(PublishError::of_pool(error, self.0.pool.timeouts().wait)),
            };
            self.0.next(&mut round, &mut present.counted);
            round.retain(PendingPublish::claim);
            match member {
                _ if round.is_empty() => {}
                Ok(member) => round = member.confirm_tracker.carry(round).await,
                Err(error) => {
                    round.drain(..).for_each(|publish| drop(publish.answer.send(Err(error.clone()))));
                }
            }
        }
    }
}

/// A writer that ends in the middle, as its runtime does, makes room for another.
struct Present<'a> {
    queue: &'a PublishQueue,
    counted: bool,
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.queue.state().writers -= 1;
        }
    }
}
