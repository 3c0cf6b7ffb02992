//! Publishing dead letters, also while their queue takes none.
//!
//! A queue of dead letters that is full, or that its user may not write to, would hold every bad message where it is:
//! unsettled in a worker, unacknowledged in a bridge. They would fill the prefetch, and good messages would wait behind
//! them. So what the queue refuses goes to `garenne.dead.waiting`, from which the broker moves it again and again.

use std::{sync::Mutex, time::Duration};

use garenne_common::lock::lock;
use garenne_protocol::topology::Names;
use tokio::{
    sync::Mutex as AsyncMutex,
    time::{Instant, sleep},
};

use crate::{
    publisher::{PublishError, Publisher},
    wire::{Message, Target},
};

/// How often a queue is tried while it takes no dead letters.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// How long a letter is only tried again if the queue is missing. A worker may declare it again.
const MISSING_FOR: Duration = Duration::from_secs(10);
/// Pause between two attempts while neither queue takes letters. A missing permission closes the channel that all
/// messages share.
const CLOSED_PAUSE: Duration = Duration::from_secs(1);
/// How long a refusal counts as a problem after the last one.
const PROBLEM_FOR: Duration = Duration::from_secs(60);

/// Publishes dead letters.
pub struct DeadLetters {
    publisher: Publisher,
    names: Names,
    state: Mutex<Option<Refusing>>,
    /// Held by the one letter that is tried while neither queue takes any.
    turn: AsyncMutex<()>,
}

/// The queue of dead letters takes none.
struct Refusing {
    since: Instant,
    /// When it was tried last.
    tried: Instant,
    error: PublishError,
    /// Why the other queue takes none either.
    waiting: Option<PublishError>,
}

impl DeadLetters {
    /// Publishes with `publisher`.
    pub fn new(publisher: Publisher, names: Names) -> Self {
        Self { publisher, names, state: Mutex::default(), turn: AsyncMutex::default() }
    }

    /// The publisher that it publishes with.
    pub fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    /// Whether this is the queue or the exchange of dead letters.
    pub fn takes(&self, target: &Target) -> bool {
        let name = if target.exchange.is_empty() { &target.routing_key } else { &target.exchange };
        *name == self.names.dead()
    }

    /// Publishes a letter to its target, the queue or the exchange of dead letters, and if that takes none to the one
    /// where letters wait.
    ///
    /// # Errors
    /// As [`Publisher::publish`]; of the queue of dead letters, if neither takes it.
    pub async fn publish(&self, letter: Message) -> Result<(), PublishError> {
        let _turn = if self.is_closed() { Some(self.turn.lock().await) } else { None };
        if self.is_closed() {
            sleep(CLOSED_PAUSE).await;
        }
        self.try_both(letter).await
    }

    /// As [`Self::publish`], without waiting, for a caller that can put the letter elsewhere. While neither queue takes
    /// letters, one letter is tried at an interval, and the others are refused at once.
    ///
    /// # Errors
    /// As [`Self::publish`].
    pub async fn publish_at_once(&self, letter: Message) -> Result<(), PublishError> {
        match self.error_while_closed() {
            Some(error) => Err(error),
            None => self.try_both(letter).await,
        }
    }

    async fn try_both(&self, letter: Message) -> Result<(), PublishError> {
        let error = match self.known_error() {
            Some(error) => error,
            None => match self.publisher.publish(letter.clone()).await {
                Ok(()) => {
                    self.recovered();
                    return Ok(());
                }
                Err(error) if self.is_refusal(&error) => error,
                Err(error) => return Err(error),
            },
        };
        let name = self.names.dead_waiting();
        let target = match letter.target.exchange.is_empty() {
            true => Target::queue(name),
            false => Target::exchange(name, letter.target.routing_key.clone()),
        };
        let waits = self.publisher.publish(Message { target, ..letter }).await;
        if let Some(refusing) = &mut *lock(&self.state) {
            refusing.waiting = waits.as_ref().err().cloned();
        }
        waits.map_err(|_| error)
    }

    /// Whether neither queue takes letters. The next letter that is published finds out whether that has changed.
    pub fn is_closed(&self) -> bool {
        lock(&self.state).as_ref().is_some_and(|it| it.waiting.is_some())
    }

    /// Why letters do not reach their queue, for the readiness check.
    pub fn problem(&self) -> Option<String> {
        let state = lock(&self.state);
        let Refusing { tried, error, waiting, .. } = state.as_ref()?;
        if tried.elapsed() > PROBLEM_FOR {
            return None;
        }
        let (dead, other) = (self.names.dead(), self.names.dead_waiting());
        let where_they_are = match waiting {
            None => format!("they wait in {other:?}"),
            Some(error) => format!("{other:?} takes none either: {error}"),
        };
        Some(format!("queue {dead:?} takes no dead letters: {error}; {where_they_are}"))
    }

    /// The last refusal, unless the queue is to be tried again.
    fn known_error(&self) -> Option<PublishError> {
        let mut state = lock(&self.state);
        let refusing =
            state.as_mut().filter(|it| it.waiting.is_none() && it.tried.elapsed() < PROBE_INTERVAL)?;
        let is_diverted = !matches!(refusing.error, PublishError::Unroutable { .. });
        is_diverted.then(|| refusing.error.clone())
    }

    /// The last refusal, if neither queue takes letters and they are not to be tried again. The caller that gets none
    /// tries them.
    fn error_while_closed(&self) -> Option<PublishError> {
        let mut state = lock(&self.state);
        let refusing = state.as_mut().filter(|it| it.waiting.is_some())?;
        if refusing.tried.elapsed() < PROBE_INTERVAL {
            return Some(refusing.error.clone());
        }
        refusing.tried = Instant::now();
        None
    }

    /// Records an error of the queue of dead letters. Whether the letter should go to the other one.
    fn is_refusal(&self, error: &PublishError) -> bool {
        use PublishError::{Denied, Refused, Unroutable};
        if !matches!(error, Refused { .. } | Denied(_) | Unroutable { .. }) {
            return false;
        }
        let (now, mut state) = (Instant::now(), lock(&self.state));
        if state.is_none() {
            let (queue, waiting) = (self.names.dead(), self.names.dead_waiting());
            tracing::error!(queue, %error, "the queue takes no dead letters; they wait in {waiting:?}");
        }
        let refusing = state.get_or_insert_with(|| Refusing {
            since: now,
            tried: now,
            error: error.clone(),
            waiting: None,
        });
        refusing.tried = now;
        refusing.error = error.clone();
        !matches!(error, Unroutable { .. }) || refusing.since.elapsed() >= MISSING_FOR
    }

    fn recovered(&self) {
        // Taken in a statement of its own, so that the lock is free when the line is written.
        let refusing = lock(&self.state).take();
        if refusing.is_some() {
            tracing::info!(queue = self.names.dead(), "the queue takes dead letters again");
        }
    }
}
