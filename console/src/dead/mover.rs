//! Replays or drops dead letters and unroutable messages.
//!
//! A dead letter is removed after the broker has confirmed its copy. Several can be equal in every property:
//! messages without an id that the broker dead-letters within one second. Therefore each is moved by its delivery
//! tag, and between walks they are kept as a multiset.
//!
//! A run moves what is in the queue at its start. It ignores later arrivals, so that it ends.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    mem,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use garenne_amqp::{PublishError, Publisher, PublisherConfig};
use garenne_common::exit::Failure;
use garenne_operator::{
    dead::{DeadLetter, HeldQueue},
    operator::Operator,
    queues::{QueueInspector, QueueWalk},
    ticks::ticks,
    waits,
};
use indicatif::ProgressBar;
use lapin::{Connection, message::Delivery};
use serde::Serialize;
use tokio::time::{Instant, Interval, sleep};
use tokio_util::sync::CancellationToken;

use super::{
    copy::{UnboundLanes, copy, is_for_lane, stable},
    filter::Filter,
    move_progress::MoveProgress,
    report::{MoveReport, Multiset, name},
};
use crate::progress;

/// Unconfirmed copies at once. This many tasks at most exist twice after the console was killed.
const MAX_IN_FLIGHT: usize = 500;
/// Limit on their payloads in bytes. A larger one goes alone.
const MAX_IN_FLIGHT_BYTES: usize = 32 << 20;
/// Time limit of a confirm. It is long, because after a timeout the copy may exist while the dead letter remains.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait for other consumers of the queue, because this one does not receive what they hold.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(5);
/// Poll interval while waiting for them.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The action on the dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MoveAction {
    /// Publish a copy as a task, then remove the dead letter.
    Replay,
    /// Remove the dead letter.
    Drop,
}

impl MoveAction {
    /// The past participle for messages.
    pub fn done(self) -> &'static str {
        match self {
            Self::Replay => "replayed",
            Self::Drop => "dropped",
        }
    }
}

/// Moves the messages of a queue that match a filter.
pub struct Mover<'o> {
    /// The fleet.
    pub operator: &'o Operator,
    /// The queue.
    pub queue: HeldQueue,
    /// Selects the messages.
    pub filter: Filter,
    /// The action on them.
    pub action: MoveAction,
    /// Maximum number.
    pub limit: Option<u64>,
    /// Maximum per second.
    pub rate: Option<u32>,
    /// How long one walk holds messages. It requeues them before the broker's consumer timeout (30 minutes by
    /// default), and another walk continues.
    pub hold: Duration,
    /// When cancelled, the run starts nothing more and completes what is in flight.
    pub stop: CancellationToken,
    /// How far the run is.
    pub progress: Arc<MoveProgress>,
}

/// State of a run over all of its walks.
struct Run<'m> {
    mover: &'m Mover<'m>,
    /// For the copies of a replay.
    publisher: Option<Publisher>,
    unbound: UnboundLanes,
    started: SystemTime,
    moved: MoveReport,
    /// Dead letters that the run began to move.
    begun: u64,
    /// Messages in the queue at the start.
    present: u64,
    /// Messages that a walk left for the next one; `None` during the first walk.
    todo: Option<Multiset>,
    /// Messages that the current walk leaves for the next one.
    later: Multiset,
    /// Unconfirmed copies of the current walk.
    copies: FuturesUnordered<BoxFuture<'static, SentCopy>>,
    /// Their ids. Two copies with one id are never in flight at once, because a returned message is matched by its
    /// id.
    in_flight: HashSet<String>,
    /// The sum of their payloads.
    in_flight_bytes: usize,
    /// Ticks at the rate limit, if there is one.
    pace: Option<Interval>,
    hasher: RandomState,
    bar: ProgressBar,
}

/// A published copy and its confirm.
struct SentCopy {
    tag: u64,
    id: String,
    name: String,
    bytes: usize,
    to_lane: bool,
    confirmed: Result<(), PublishError>,
}

/// Why a walk ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WalkEnd {
    /// Every message was read.
    Complete,
    /// The limit is reached.
    Limit,
    /// The messages have been held for too long and are requeued.
    HoldExpired,
    /// The run was cancelled.
    Stopped,
}

impl<'o> Mover<'o> {
    /// A mover without limits.
    pub fn new(operator: &'o Operator, queue: HeldQueue, filter: Filter, action: MoveAction) -> Self {
        let hold = Duration::from_secs(600);
        Self {
            operator,
            queue,
            filter,
            action,
            limit: None,
            rate: None,
            hold,
            stop: CancellationToken::new(),
            progress: Arc::default(),
        }
    }

    /// Moves the dead letters. Those without a confirmed copy remain in the queue.
    pub async fn run(&self) -> Result<MoveReport, Failure> {
        let connection = self.operator.connect().await?;
        let publisher = match self.action {
            MoveAction::Replay => {
                let config =
                    PublisherConfig { confirm_timeout: CONFIRM_TIMEOUT, ..PublisherConfig::default() };
                let publisher = Publisher::new(self.operator.broker.clone(), config);
                publisher.connect().await?;
                Some(publisher)
            }
            MoveAction::Drop => None,
        };
        let unbound = match self.action {
            MoveAction::Replay => UnboundLanes::find(self.operator, self.queue).await?,
            MoveAction::Drop => UnboundLanes::default(),
        };
        self.wait_for_others(&connection).await?;
        let mut run = Run::new(self, publisher, unbound);
        while !run.pass(&connection).await.map_err(|failure| run.failure(&failure))? {}
        run.bar.finish_and_clear();
        Operator::leave(connection).await;
        if let Some(publisher) = run.publisher {
            publisher.close().await;
        }
        Ok(run.moved)
    }

    /// Waits until the queue has no other consumer, or the timeout.
    async fn wait_for_others(&self, connection: &Connection) -> Result<(), Failure> {
        let (mut inspector, deadline) = (QueueInspector::new(connection), Instant::now() + OTHERS_TIMEOUT);
        let queue = self.queue.name(&self.operator.names);
        while inspector.depth(&queue).await?.consumers > 0 && Instant::now() < deadline {
            waits::progress();
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}

impl<'m> Run<'m> {
    fn new(mover: &'m Mover<'m>, publisher: Option<Publisher>, unbound: UnboundLanes) -> Self {
        Self {
            mover,
            publisher,
            unbound,
            started: SystemTime::now(),
            moved: MoveReport::default(),
            begun: 0,
            present: 0,
            todo: None,
            later: Multiset::default(),
            copies: FuturesUnordered::new(),
            in_flight: HashSet::new(),
            in_flight_bytes: 0,
            pace: mover.rate.map(|rate| ticks(Duration::from_secs(1) / rate)),
            hasher: RandomState::new(),
            bar: progress::bar(mover.action.done()),
        }
    }

    /// One walk over the queue. Returns whether it was the last one.
    async fn pass(&mut self, connection: &Connection) -> Result<bool, Failure> {
        let queue = self.mover.queue.name(&self.mover.operator.names);
        let mut walk = QueueWalk::start(connection, &queue, u64::MAX).await?;
        if self.todo.is_none() {
            self.present = walk.total();
            self.bar.set_length(walk.total());
            self.mover.progress.total.store(walk.total(), Relaxed);
        }
        let end = self.take(&mut walk).await?;
        while let Some(sent) = self.copies.next().await {
            self.settle(&mut walk, sent).await?;
        }
        match end {
            WalkEnd::Complete | WalkEnd::HoldExpired => {
                let unread = walk.total() - walk.read();
                self.moved.missed += self.todo.as_ref().map_or(unread, Multiset::len);
            }
            WalkEnd::Stopped => self.moved.interrupted = true,
            WalkEnd::Limit => {}
        }
        let ready = walk.finish().await?;
        let expected = self.present.saturating_sub(self.moved.moved + self.moved.missed);
        self.moved.arrived = ready.saturating_sub(expected);
        Ok(self.todo.insert(mem::take(&mut self.later)).is_empty())
    }

    /// Reads messages until the walk ends. After the first walk, only what an earlier one left is moved.
    async fn take(&mut self, walk: &mut QueueWalk<'_>) -> Result<WalkEnd, Failure> {
        let mover = self.mover;
        let hold_until = Instant::now() + mover.hold;
        let (mut end, begun_before) = (WalkEnd::Complete, self.begun);
        loop {
            if self.todo.as_ref().is_some_and(Multiset::is_empty) {
                return Ok(end);
            }
            let next = tokio::select! {
                biased;
                () = mover.stop.cancelled() => return Ok(WalkEnd::Stopped),
                next = walk.next() => next?,
            };
            let Some(delivery) = next else { return Ok(end) };
            self.moved.read = self.moved.read.max(walk.read().min(self.present));
            self.bar.set_position(walk.read());
            mover.progress.read.store(self.moved.read, Relaxed);
            let letter = mover.queue.read(&delivery);
            if !mover.filter.matches(&letter, self.started) {
                continue;
            }
            let identity = self.identity(&delivery);
            if self.todo.as_mut().is_some_and(|todo| !todo.take(identity)) {
                continue;
            }
            if end == WalkEnd::HoldExpired || (Instant::now() > hold_until && self.begun > begun_before) {
                end = WalkEnd::HoldExpired;
                self.later.add(identity);
                continue;
            }
            if mover.limit.is_some_and(|limit| self.begun >= limit) {
                return Ok(WalkEnd::Limit);
            }
            if !self.pace().await {
                return Ok(WalkEnd::Stopped);
            }
            self.begun += 1;
            match self.publisher.clone() {
                Some(publisher) => self.send(walk, &publisher, &letter, delivery).await?,
                None => {
                    walk.remove(delivery.delivery_tag).await?;
                    self.moved.moved += 1;
                    mover.progress.moved(delivery.data.len() as u64);
                }
            }
        }
    }

    /// Waits for the rate limit. Returns false if the run was cancelled.
    async fn pace(&mut self) -> bool {
        let Some(pace) = &mut self.pace else { return true };
        self.mover.stop.run_until_cancelled(pace.tick()).await.is_some()
    }

    /// Publishes a copy and settles copies that were confirmed in the meantime.
    async fn send(
        &mut self,
        walk: &mut QueueWalk<'_>,
        publisher: &Publisher,
        letter: &DeadLetter,
        delivery: Delivery,
    ) -> Result<(), Failure> {
        let (tag, name, bytes) = (delivery.delivery_tag, name(letter), delivery.data.len());
        let Mover { operator, queue, .. } = self.mover;
        let made = copy(operator, *queue, &self.unbound, letter, &delivery.properties, delivery.data);
        let message = match made {
            Ok(made) => made,
            Err(why) => {
                self.failed(why, name);
                return Ok(());
            }
        };
        let to_lane = is_for_lane(operator, *queue, &message);
        let id = message.properties.message_id().as_ref().map_or_else(String::new, ToString::to_string);
        while self.copies.len() >= MAX_IN_FLIGHT
            || self.in_flight_bytes + bytes > MAX_IN_FLIGHT_BYTES
            || self.in_flight.contains(&id)
        {
            let Some(sent) = self.copies.next().await else { break };
            self.settle(walk, sent).await?;
        }
        match publisher.send(message).await {
            Ok(pending) => {
                self.in_flight.insert(id.clone());
                self.in_flight_bytes += bytes;
                let confirmed = pending.confirmed();
                let sent =
                    async move { SentCopy { tag, id, name, bytes, to_lane, confirmed: confirmed.await } };
                self.copies.push(sent.boxed());
            }
            Err(error) => self.failed(error.to_string(), name),
        }
        while let Some(Some(sent)) = self.copies.next().now_or_never() {
            self.settle(walk, sent).await?;
        }
        Ok(())
    }

    /// Removes a dead letter whose copy is confirmed.
    async fn settle(&mut self, walk: &mut QueueWalk<'_>, sent: SentCopy) -> Result<(), Failure> {
        match sent.confirmed {
            Ok(()) => {
                waits::progress();
                walk.remove(sent.tag).await?;
                self.moved.moved(sent.to_lane);
                self.mover.progress.moved(sent.bytes as u64);
            }
            Err(error) => self.failed(error.to_string(), sent.name),
        }
        self.in_flight.remove(&sent.id);
        self.in_flight_bytes -= sent.bytes;
        Ok(())
    }

    /// Records a dead letter that remains.
    fn failed(&mut self, why: String, name: String) {
        self.moved.failed(why, name);
        self.mover.progress.failed.fetch_add(1, Relaxed);
    }

    /// A hash of all properties. Delivery tags are valid for one walk only.
    fn identity(&self, delivery: &Delivery) -> u64 {
        let Delivery { routing_key, properties, data, .. } = delivery;
        self.hasher.hash_one((routing_key.as_str(), stable(properties), data))
    }

    /// The failure with the progress of the run.
    fn failure(&self, failure: &Failure) -> Failure {
        let done = self.mover.action.done();
        let doubt = match self.in_flight.len() {
            0 => String::new(),
            n => format!(
                "; up to {n} more may be {done} although they remain among the {}, under the same ids",
                self.mover.queue.noun()
            ),
        };
        Failure::new(failure.exit, format_args!("{failure}; {} {done} before{doubt}", self.moved.moved))
    }
}
