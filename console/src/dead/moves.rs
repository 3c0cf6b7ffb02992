//! Moving dead letters: back to work, or away.
//!
//! A letter is removed only after the broker confirmed its copy. Letters can be equal in every property: the
//! broker dead-letters messages without an id within one second. So they are a multiset. Each letter is moved
//! by its own delivery tag, and across walks equal ones are counted, never compared to decide that one of them
//! is done.
//!
//! What is in the queue when a run starts is moved, and nothing that comes later: a run ends.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use garenne_amqp::{PublishError, Publisher, PublisherConfig};
use garenne_common::exit::{Exit, Failure};
use indicatif::ProgressBar;
use lapin::{Connection, message::Delivery};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    account::{Moved, Multiset, name},
    copy::{copy, stable},
    filter::Filter,
    letter::Letter,
    walk::Walk,
};
use crate::{operator::Operator, progress, queues::Looker};

/// Copies on their way at once. So many letters at most are there twice after the console was killed.
const IN_FLIGHT: usize = 500;
/// How long the broker may take to confirm a copy. A copy that is given up may be at work, and its letter is
/// still there, so patience is better than a second copy.
const CONFIRM: Duration = Duration::from_secs(60);
/// How long to wait for other programs that look at the queue: what they hold this one does not see.
const OTHERS: Duration = Duration::from_secs(5);
/// Between two looks while waiting for them.
const POLL: Duration = Duration::from_millis(50);

/// What to do with the letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Publish a fresh copy, then remove.
    Replay,
    /// Remove.
    Drop,
}

impl Order {
    /// The word for it when it is done.
    pub fn done(self) -> &'static str {
        match self {
            Self::Replay => "replayed",
            Self::Drop => "dropped",
        }
    }
}

/// Moves the letters that a filter takes.
pub struct Mover<'o> {
    /// The fleet.
    pub operator: &'o Operator,
    /// Which letters.
    pub filter: Filter,
    /// What to do with them.
    pub order: Order,
    /// At most this many.
    pub limit: Option<u64>,
    /// At most this many a second.
    pub rate: Option<u32>,
    /// Letters that are held count against the broker's consumer timeout (30 minutes by default): after this
    /// time a walk hands them back, and another one goes on.
    pub hold: Duration,
    /// Cancelled, nothing more is begun, and what is on its way is finished.
    pub stop: CancellationToken,
}

/// What lasts longer than one walk.
struct Run {
    started: SystemTime,
    moved: Moved,
    /// Letters taken on, moved or not.
    begun: u64,
    /// Letters in the queue at the start.
    present: u64,
    /// What is left to do after a walk that handed everything back; none before the first walk.
    todo: Option<Multiset>,
    /// A letter that was moved, and that the walk's end had to hand back.
    owed: Option<u64>,
    /// The last letter that the present walk removed.
    last_removed: Option<u64>,
    /// Ids of the copies on their way. Two with one id are not sent at once: the broker names what it returns
    /// by its id.
    in_flight: HashSet<String>,
    next_at: Instant,
    hasher: RandomState,
    bar: ProgressBar,
}

/// A copy that was sent.
struct Sent {
    tag: u64,
    identity: u64,
    id: String,
    name: String,
    to_lane: bool,
    confirmed: Result<(), PublishError>,
}

type Copies = FuturesUnordered<BoxFuture<'static, Sent>>;

/// Why a walk took nothing more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// All was looked at.
    Complete,
    /// The limit is reached.
    Limit,
    /// Everything is to be handed back for a while.
    HandBack,
    /// It was told to stop.
    Stopped,
}

impl Run {
    fn new(order: Order) -> Self {
        Self {
            started: SystemTime::now(),
            moved: Moved::default(),
            begun: 0,
            present: 0,
            todo: None,
            owed: None,
            last_removed: None,
            in_flight: HashSet::new(),
            next_at: Instant::now(),
            hasher: RandomState::new(),
            bar: progress::bar(0, order.done()),
        }
    }

    /// Equal for letters that are equal in everything; delivery tags do not outlast a walk.
    fn identity(&self, delivery: &Delivery) -> u64 {
        let Delivery { routing_key, properties, data, .. } = delivery;
        self.hasher.hash_one((routing_key.as_str(), stable(properties), data))
    }

    async fn remove(&mut self, walk: &mut Walk<'_>, tag: u64, identity: u64) -> Result<(), Failure> {
        walk.remove(tag).await?;
        self.last_removed = Some(identity);
        Ok(())
    }

    /// Removes a letter whose copy is confirmed.
    async fn settle(&mut self, walk: &mut Walk<'_>, sent: Sent) -> Result<(), Failure> {
        match sent.confirmed {
            Ok(()) => {
                self.remove(walk, sent.tag, sent.identity).await?;
                self.moved.moved += 1;
                self.moved.without_lane += u64::from(!sent.to_lane);
            }
            Err(error) => self.moved.failed(error.to_string(), sent.name),
        }
        self.in_flight.remove(&sent.id);
        Ok(())
    }

    /// The failure that ended the run, and how far it was.
    fn broken_off(&self, order: Order, failure: &Failure) -> Failure {
        let done = order.done();
        let doubt = match self.in_flight.len() {
            0 => String::new(),
            n => format!(
                "; up to {n} more may be {done} while their letters are still there, under the same ids"
            ),
        };
        Failure::new(failure.exit, format_args!("{failure}; {} {done} before{doubt}", self.moved.moved))
    }
}

impl Mover<'_> {
    /// How long letters are held.
    pub const HOLD: Duration = Duration::from_secs(600);

    /// Moves them.
    ///
    /// # Errors
    /// One line and an exit code; what was not confirmed is still in the queue.
    pub async fn run(&self) -> Result<Moved, Failure> {
        let connection = self.operator.connect().await?;
        let publisher = match self.order {
            Order::Replay => {
                let config = PublisherConfig { confirm_timeout: CONFIRM, ..PublisherConfig::default() };
                let publisher = Publisher::new(self.operator.broker.clone(), config);
                publisher.connect().await?;
                Some(publisher)
            }
            Order::Drop => None,
        };
        self.until_alone(&connection).await?;
        let mut run = Run::new(self.order);
        loop {
            match self.pass(&connection, publisher.as_ref(), &mut run).await {
                Ok(true) => break,
                Ok(false) => {}
                Err(failure) => return Err(run.broken_off(self.order, &failure)),
            }
        }
        run.bar.finish_and_clear();
        Operator::leave(connection).await;
        if let Some(publisher) = publisher {
            publisher.close().await;
        }
        Ok(run.moved)
    }

    /// Waits a while for others to hand back what they look at.
    async fn until_alone(&self, connection: &Connection) -> Result<(), Failure> {
        let (mut looker, give_up) = (Looker::new(connection), Instant::now() + OTHERS);
        while looker.depth(&self.operator.names.dead()).await?.consumers > 0 && Instant::now() < give_up {
            sleep(POLL).await;
        }
        Ok(())
    }

    /// One walk over the queue; whether it was the last.
    async fn pass(
        &self,
        connection: &Connection,
        publisher: Option<&Publisher>,
        run: &mut Run,
    ) -> Result<bool, Failure> {
        let mut walk = Walk::start(connection, &self.operator.names.dead()).await?;
        let mut todo = run.todo.take();
        if todo.is_none() {
            run.present = walk.total();
            run.bar.set_length(walk.total());
        }
        let mut copies = Copies::new();
        let mut later = Multiset::default();
        let end = self.take(&mut walk, publisher, run, &mut todo, &mut later, &mut copies).await?;
        while let Some(sent) = copies.next().await {
            run.settle(&mut walk, sent).await?;
        }
        match (end, &todo) {
            (End::Complete | End::HandBack, None) => run.moved.missed += walk.total() - walk.seen(),
            (End::Complete | End::HandBack, Some(todo)) => run.moved.missed += todo.len(),
            (End::Stopped, _) => run.moved.interrupted = true,
            (End::Limit, _) => {}
        }
        let finished = walk.finish().await?;
        run.owed = run.last_removed.take().filter(|_| finished.last_is_back);
        run.moved.arrived =
            finished.ready.saturating_sub(run.present.saturating_sub(run.moved.moved + run.moved.missed));
        run.todo = Some(later);
        Ok(run.owed.is_none() && run.todo.as_ref().is_none_or(Multiset::is_empty))
    }

    /// Takes letters until there is no reason to go on. `todo` limits them to what an earlier walk left,
    /// `later` gets what a later one has to do.
    async fn take(
        &self,
        walk: &mut Walk<'_>,
        publisher: Option<&Publisher>,
        run: &mut Run,
        todo: &mut Option<Multiset>,
        later: &mut Multiset,
        copies: &mut Copies,
    ) -> Result<End, Failure> {
        let hand_back_at = Instant::now() + self.hold;
        let (mut end, begun_before) = (End::Complete, run.begun);
        loop {
            let idle = todo.as_ref().is_some_and(Multiset::is_empty);
            if idle && run.owed.is_none() {
                return Ok(end);
            }
            let next = tokio::select! {
                biased;
                () = self.stop.cancelled(), if !idle => return Ok(End::Stopped),
                next = walk.next() => next?,
            };
            let Some(delivery) = next else { return Ok(end) };
            run.moved.looked = run.moved.looked.max(walk.seen().min(run.present));
            run.bar.set_position(walk.seen());
            let letter = Letter::read(&delivery);
            if !self.filter.takes(&letter, run.started) {
                continue;
            }
            let identity = run.identity(&delivery);
            if run.owed.take_if(|owed| *owed == identity).is_some() {
                run.remove(walk, delivery.delivery_tag, identity).await?;
                continue;
            }
            if todo.as_mut().is_some_and(|todo| !todo.take(identity)) {
                continue;
            }
            if end == End::HandBack || (Instant::now() > hand_back_at && run.begun > begun_before) {
                end = End::HandBack;
                later.add(identity);
                continue;
            }
            if self.limit.is_some_and(|limit| run.begun >= limit) {
                return Ok(End::Limit);
            }
            if !self.pace(&mut run.next_at).await {
                return Ok(End::Stopped);
            }
            run.begun += 1;
            match publisher {
                Some(publisher) => {
                    self.send(walk, publisher, run, copies, &letter, delivery, identity).await?;
                }
                None => {
                    run.remove(walk, delivery.delivery_tag, identity).await?;
                    run.moved.moved += 1;
                }
            }
        }
    }

    /// Waits until the next one may go; whether it may.
    async fn pace(&self, next_at: &mut Instant) -> bool {
        let Some(rate) = self.rate else { return true };
        tokio::select! {
            biased;
            () = self.stop.cancelled() => return false,
            () = sleep_until(*next_at) => {}
        }
        *next_at = (*next_at).max(Instant::now()) + Duration::from_secs(1) / rate;
        true
    }

    /// Sends a letter's copy, and settles what is confirmed meanwhile.
    #[expect(clippy::too_many_arguments, reason = "the state of one walk")]
    async fn send(
        &self,
        walk: &mut Walk<'_>,
        publisher: &Publisher,
        run: &mut Run,
        copies: &mut Copies,
        letter: &Letter,
        delivery: Delivery,
        identity: u64,
    ) -> Result<(), Failure> {
        let (tag, name) = (delivery.delivery_tag, name(letter));
        let made = copy(self.operator, letter, &delivery.properties, delivery.data);
        let (message, to_lane) = match made {
            Ok(made) => (made.message, made.to_lane),
            Err(why) => {
                run.moved.failed(why, name);
                return Ok(());
            }
        };
        let id = message.properties.message_id().as_ref().map_or_else(String::new, ToString::to_string);
        while copies.len() >= IN_FLIGHT || run.in_flight.contains(&id) {
            let Some(sent) = copies.next().await else { break };
            run.settle(walk, sent).await?;
        }
        match publisher.send(message).await {
            Ok(pending) => {
                run.in_flight.insert(id.clone());
                let confirmed = pending.confirmed();
                copies.push(
                    async move { Sent { tag, identity, id, name, to_lane, confirmed: confirmed.await } }
                        .boxed(),
                );
            }
            Err(error) => run.moved.failed(error.to_string(), name),
        }
        while let Some(Some(sent)) = copies.next().now_or_never() {
            run.settle(walk, sent).await?;
        }
        Ok(())
    }
}

/// Waits for two interruptions: the first lets a run finish what it began, the second ends it.
pub(super) async fn interrupted_twice(stop: CancellationToken) -> Failure {
    let mut interrupts = match crate::interrupt::interrupts() {
        Ok(interrupts) => interrupts,
        Err(failure) => return failure,
    };
    for _ in 0..2 {
        if interrupts.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
        stop.cancel();
    }
    Failure::new(
        Exit::Interrupted,
        "interrupted twice: letters whose copies were on their way are still there",
    )
}
