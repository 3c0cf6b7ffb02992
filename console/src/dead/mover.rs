//! Replays or drops dead letters.
//!
//! A dead letter is removed after the broker has confirmed its copy. Several can be equal in every property:
//! messages without an id that the broker dead-letters within one second. Therefore each is moved by its delivery
//! tag, and between walks they are kept as a multiset.
//!
//! A run moves what is in the queue at its start. It ignores later arrivals, so that it ends.

use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use garenne_amqp::{Publisher, PublisherConfig};
use garenne_common::exit::{Exit, Failure};
use lapin::{Connection, message::Delivery};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    action::MoveAction,
    copy::copy,
    dead_letter::DeadLetter,
    filter::Filter,
    move_run::{MoveRun, SentCopies, SentCopy, WalkEnd},
    queue_walk::QueueWalk,
    report::{MoveReport, Multiset, name},
};
use crate::{operator::Operator, queues::QueueInspector};

/// Unconfirmed copies at once. This many tasks at most exist twice after the console was killed.
const MAX_IN_FLIGHT: usize = 500;
/// Time limit of a confirm. It is long, because after a timeout the copy may exist while the dead letter remains.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait for other consumers of the queue, because this one does not receive what they hold.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(5);
/// Poll interval while waiting for them.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Moves the dead letters that match a filter.
pub struct Mover<'o> {
    /// The fleet.
    pub operator: &'o Operator,
    /// Selects the dead letters.
    pub filter: Filter,
    /// What to do with them.
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
}

impl Mover<'_> {
    /// Default of [`hold`](Self::hold).
    pub const HOLD: Duration = Duration::from_secs(600);

    /// Moves the dead letters.
    ///
    /// # Errors
    /// One line and an exit code. Dead letters without a confirmed copy remain in the queue.
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
        self.wait_for_others(&connection).await?;
        let mut run = MoveRun::new(self.action);
        loop {
            match self.pass(&connection, publisher.as_ref(), &mut run).await {
                Ok(true) => break,
                Ok(false) => {}
                Err(failure) => return Err(run.failure(self.action, &failure)),
            }
        }
        run.bar.finish_and_clear();
        Operator::leave(connection).await;
        if let Some(publisher) = publisher {
            publisher.close().await;
        }
        Ok(run.moved)
    }

    /// Waits until the queue has no other consumer, or the timeout.
    async fn wait_for_others(&self, connection: &Connection) -> Result<(), Failure> {
        let (mut inspector, deadline) = (QueueInspector::new(connection), Instant::now() + OTHERS_TIMEOUT);
        while inspector.depth(&self.operator.names.dead()).await?.consumers > 0 && Instant::now() < deadline {
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// One walk over the queue. Returns whether it was the last one.
    async fn pass(
        &self,
        connection: &Connection,
        publisher: Option<&Publisher>,
        run: &mut MoveRun,
    ) -> Result<bool, Failure> {
        let mut walk = QueueWalk::start(connection, &self.operator.names.dead()).await?;
        let mut todo = run.todo.take();
        if todo.is_none() {
            run.present = walk.total();
            run.bar.set_length(walk.total());
        }
        let mut copies = SentCopies::new();
        let mut later = Multiset::default();
        let end = self.take(&mut walk, publisher, run, &mut todo, &mut later, &mut copies).await?;
        while let Some(sent) = copies.next().await {
            run.settle(&mut walk, sent).await?;
        }
        match (end, &todo) {
            (WalkEnd::Complete | WalkEnd::HoldExpired, None) => {
                run.moved.missed += walk.total() - walk.read();
            }
            (WalkEnd::Complete | WalkEnd::HoldExpired, Some(todo)) => run.moved.missed += todo.len(),
            (WalkEnd::Stopped, _) => run.moved.interrupted = true,
            (WalkEnd::Limit, _) => {}
        }
        let finished = walk.finish().await?;
        run.owed = run.last_removed.take().filter(|_| finished.last_requeued);
        run.moved.arrived =
            finished.ready.saturating_sub(run.present.saturating_sub(run.moved.moved + run.moved.missed));
        run.todo = Some(later);
        Ok(run.owed.is_none() && run.todo.as_ref().is_none_or(Multiset::is_empty))
    }

    /// Reads messages until the walk ends. `todo` limits them to what an earlier walk left; what the next walk has to do
    /// is added to `later`.
    async fn take(
        &self,
        walk: &mut QueueWalk<'_>,
        publisher: Option<&Publisher>,
        run: &mut MoveRun,
        todo: &mut Option<Multiset>,
        later: &mut Multiset,
        copies: &mut SentCopies,
    ) -> Result<WalkEnd, Failure> {
        let hold_until = Instant::now() + self.hold;
        let (mut end, begun_before) = (WalkEnd::Complete, run.begun);
        loop {
            let idle = todo.as_ref().is_some_and(Multiset::is_empty);
            if idle && run.owed.is_none() {
                return Ok(end);
            }
            let next = tokio::select! {
                biased;
                () = self.stop.cancelled(), if !idle => return Ok(WalkEnd::Stopped),
                next = walk.next() => next?,
            };
            let Some(delivery) = next else { return Ok(end) };
            run.moved.read = run.moved.read.max(walk.read().min(run.present));
            run.bar.set_position(walk.read());
            let letter = DeadLetter::read(&delivery);
            if !self.filter.matches(&letter, run.started) {
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
            if end == WalkEnd::HoldExpired || (Instant::now() > hold_until && run.begun > begun_before) {
                end = WalkEnd::HoldExpired;
                later.add(identity);
                continue;
            }
            if self.limit.is_some_and(|limit| run.begun >= limit) {
                return Ok(WalkEnd::Limit);
            }
            if !self.pace(&mut run.next_at).await {
                return Ok(WalkEnd::Stopped);
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

    /// Waits for the rate limit. Returns false if the run was cancelled.
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

    /// Publishes a copy and settles copies that were confirmed in the meantime.
    #[expect(clippy::too_many_arguments, reason = "the state of one walk")]
    async fn send(
        &self,
        walk: &mut QueueWalk<'_>,
        publisher: &Publisher,
        run: &mut MoveRun,
        copies: &mut SentCopies,
        letter: &DeadLetter,
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
        while copies.len() >= MAX_IN_FLIGHT || run.in_flight.contains(&id) {
            let Some(sent) = copies.next().await else { break };
            run.settle(walk, sent).await?;
        }
        match publisher.send(message).await {
            Ok(pending) => {
                run.in_flight.insert(id.clone());
                let confirmed = pending.confirmed();
                copies.push(
                    async move { SentCopy { tag, identity, id, name, to_lane, confirmed: confirmed.await } }
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

/// Waits for two signals: the first one lets the run complete what is in flight, the second one ends it.
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
        "interrupted twice: dead letters with unconfirmed copies remain in the queue",
    )
}
