//! Who writes: messages that wait for the same connection are written together.
//!
//! A writer holds a connection while frames of its round are written; what arrives meanwhile is the next
//! round. So at low load a message goes out at once, at high load many share one write, and behind a socket
//! that takes nothing more messages wait where they can still be taken back.

use std::{
    collections::VecDeque,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use deadpool::managed::Pool;
use lapin::BasicProperties;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{PublishError, address::Address, carrier::Verdict, member::Members};
use crate::Message;

/// Most messages of a round, and most bytes of their bodies but for the first: a large one goes alone, so
/// that nobody is stuck beside it.
const ROUND: usize = 256;
const ROUND_BYTES: usize = 256 * 1024;

/// A message that waits to be written.
pub(super) struct Letter {
    pub(super) address: Address,
    pub(super) mandatory: bool,
    pub(super) properties: BasicProperties,
    pub(super) body: Bytes,
    pub(super) place: OwnedSemaphorePermit,
    claim: Claim,
    pub(super) answer: oneshot::Sender<Verdict>,
}

/// Whoever takes it first decides: a writer to write the letter, its sender not to wait any longer.
#[derive(Clone, Default)]
pub(super) struct Claim(Arc<AtomicBool>);

impl Claim {
    pub(super) fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    pub(super) fn is_taken(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Letter {
    /// # Errors
    /// [`PublishError::TooLarge`] where a name of the target does not fit.
    pub(super) fn new(
        message: Message,
        place: OwnedSemaphorePermit,
    ) -> Result<(Self, Claim, oneshot::Receiver<Verdict>), PublishError> {
        let Message { target, properties, body } = message;
        let mandatory = target.mandatory;
        let address = Address::of(target)?;
        let (answer, verdict) = oneshot::channel();
        let claim = Claim::default();
        let letter = Self { address, mandatory, properties, body, place, claim: claim.clone(), answer };
        Ok((letter, claim, verdict))
    }

    /// Whether somebody still waits for it; from then on it is the writer's.
    fn wanted(&self) -> bool {
        !self.answer.is_closed() && self.claim.take()
    }
}

/// The letters that wait, and how many writers there are.
pub(super) struct Writers {
    pool: Pool<Members>,
    most: usize,
    desk: Mutex<Desk>,
}

#[derive(Default)]
struct Desk {
    letters: VecDeque<Letter>,
    /// An empty list of a writer that is gone. Large pieces of memory, asked for time and again, are what
    /// an allocator is slowest at.
    spare: Vec<Letter>,
    writers: usize,
}

impl Writers {
    /// Writers for the connections of a pool.
    pub(super) fn new(pool: Pool<Members>, connections: usize) -> Arc<Self> {
        Arc::new(Self { pool, most: connections, desk: Mutex::default() })
    }

    /// Takes a letter; a writer is called where there could be one more.
    pub(super) fn post(self: &Arc<Self>, letter: Letter) {
        let mut desk = self.desk();
        desk.letters.push_back(letter);
        if desk.writers < self.most {
            desk.writers += 1;
            let writer = Writer(Arc::clone(self));
            drop(desk);
            tokio::spawn(async move { writer.run().await });
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next round; nothing when no letter waits, and then the writer counts no more.
    fn next(&self, round: &mut Vec<Letter>, writer: &mut bool) {
        let mut desk = self.desk();
        if round.capacity() == 0 {
            *round = mem::take(&mut desk.spare);
        }
        let mut bytes = 0;
        while let Some(letter) = desk.letters.front() {
            bytes += letter.body.len();
            if round.len() == ROUND || (bytes > ROUND_BYTES && !round.is_empty()) {
                break;
            }
            round.extend(desk.letters.pop_front());
        }
        if round.is_empty() && mem::take(writer) {
            desk.writers -= 1;
            desk.spare = mem::take(round);
        }
    }
}

/// Writes until nothing waits.
struct Writer(Arc<Writers>);

impl Writer {
    async fn run(self) {
        let mut present = Present { writers: &self.0, counted: true };
        let mut round = Vec::new();
        while present.counted {
            // The connection first: whoever waits for one can go without as long as the letter lies here.
            let member = match self.0.pool.get().await {
                Ok(member) => Ok(member),
                Err(error) => Err(PublishError::of_pool(error, self.0.pool.timeouts().wait)),
            };
            self.0.next(&mut round, &mut present.counted);
            round.retain(Letter::wanted);
            match member {
                _ if round.is_empty() => {}
                Ok(member) => round = member.carrier.carry(round).await,
                Err(error) => {
                    round.drain(..).for_each(|letter| drop(letter.answer.send(Err(error.clone()))));
                }
            }
        }
    }
}

/// A writer that ends in the middle, as its runtime does, makes room for another.
struct Present<'a> {
    writers: &'a Writers,
    counted: bool,
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.writers.desk().writers -= 1;
        }
    }
}
