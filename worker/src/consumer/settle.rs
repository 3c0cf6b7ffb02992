//! Tells the broker, in as few frames as the ledger finds.

use std::sync::Arc;

use futures_util::future::join_all;
use garenne_common::shutdown::Fate;
use lapin::{
    Channel,
    options::{BasicAckOptions, BasicGetOptions, BasicNackOptions},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{
    company::Clock,
    epoch::{Epoch, Order},
    ledger::{Frame, Ledger, Verdict},
    meter::Meter,
    subscribe::Subscription,
};

/// The broker's channel stashes settlements beyond 32 that its queue has not applied yet, and forgets
/// the stash when it is closed. A channel that sent no more than this has no stash.
const WITHOUT_STASH: u64 = 16;

/// Settles one channel's deliveries.
pub(super) struct Settler {
    channel: Channel,
    queue: String,
    epoch: Arc<Epoch>,
    meter: Meter,
    ledger: Ledger,
    taken: Vec<Order>,
    /// A decided settlement may wait for company until its next tick.
    clock: Clock,
    /// When to look for orders, where any are known of or may come untold.
    due: Option<Instant>,
    received: u64,
    /// Frames sent.
    sent: u64,
    /// Set once the intake is closed: the end comes when all is settled.
    draining: watch::Receiver<bool>,
}

/// Decisions that make a flush due at once: a quarter of the prefetch.
pub(super) fn batch(subscription: &Subscription) -> usize {
    usize::from(subscription.prefetch / 4).max(1)
}

impl Settler {
    pub(super) fn new(
        channel: Channel,
        epoch: Arc<Epoch>,
        meter: Meter,
        subscription: &Subscription,
        draining: watch::Receiver<bool>,
    ) -> Self {
        let queue = subscription.queue.clone();
        Self {
            channel,
            queue,
            epoch,
            meter,
            ledger: Ledger::new(),
            taken: Vec::new(),
            clock: subscription.clock,
            due: None,
            received: 0,
            sent: 0,
            draining,
        }
    }

    /// Runs until everything delivered is settled after the intake closed, or the channel ends. `batch` is
    /// what the epoch was made with.
    pub(super) async fn run(mut self, batch: usize) {
        loop {
            let draining = *self.draining.borrow();
            if draining {
                self.take();
                if self.received == self.epoch.deliveries() || !self.epoch.alive() {
                    break;
                }
            }
            let due = self.due;
            tokio::select! {
                biased;
                () = self.epoch.news() => {}
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
                _ = self.draining.changed() => continue,
            }
            let decided = self.ledger.decided() + self.epoch.waiting();
            let now = Instant::now();
            if decided >= batch || due.is_some_and(|due| due <= now) {
                self.due = None;
                self.take();
                if self.flush().await.is_err() {
                    break;
                }
            } else if decided > 0 {
                self.due = due.or(Some(self.clock.next(now)));
            }
        }
        self.finish().await;
    }

    /// Enters into the ledger what was decided. Where that was anything, more is looked for at the next tick:
    /// the epoch counts on it.
    fn take(&mut self) {
        self.epoch.take(&mut self.taken);
        if !self.taken.is_empty() {
            self.due = Some(self.clock.next(Instant::now()));
        }
        self.received += self.taken.len() as u64;
        for Order { tag, fate } in self.taken.drain(..) {
            self.ledger.decide(tag, fate);
            if fate == Fate::Abandoned {
                self.meter.settled(fate, 1);
            }
        }
    }

    async fn flush(&mut self) -> Result<(), lapin::Error> {
        let frames = self.ledger.frames();
        self.send(frames).await
    }

    /// Settles what is decided and has the broker apply it, then counts what can no longer be settled.
    async fn finish(mut self) {
        if self.epoch.alive() && self.flush().await.is_ok() && self.sent > WITHOUT_STASH {
            self.unstash().await;
        }
        self.epoch.end();
        let lost = self.ledger.decided() + self.epoch.close().len();
        self.meter.settled(Fate::LostSettlement, lost as u64);
    }

    /// Makes the broker's channel pass its stash on to the queue. The only requests that wait until the queue
    /// has applied everything before them are a consume, a cancel and a get: a get is asked, and what it may
    /// bring goes back.
    async fn unstash(&self) {
        let got = self.channel.basic_get(self.queue.as_str().into(), BasicGetOptions::default()).await;
        if let Ok(Some(message)) = got {
            let back = BasicNackOptions { multiple: false, requeue: true };
            // Otherwise the channel is gone, which gives it back, too.
            let _ = self.channel.basic_nack(message.delivery.delivery_tag, back).await;
        }
    }

    /// All frames are handed to the client before the first is awaited: it queues them in order.
    async fn send(&mut self, frames: Vec<Frame>) -> Result<(), lapin::Error> {
        self.sent += frames.len() as u64;
        let channel = &self.channel;
        let sent = join_all(frames.iter().map(async |frame| match frame.verdict {
            Verdict::Ack => channel.basic_ack(frame.tag, BasicAckOptions { multiple: frame.multiple }).await,
            Verdict::Requeue => {
                let options = BasicNackOptions { multiple: frame.multiple, requeue: true };
                channel.basic_nack(frame.tag, options).await
            }
        }))
        .await;
        let mut outcome = Ok(());
        for (frame, sent) in frames.into_iter().zip(sent) {
            for (fate, count) in Fate::ALL.into_iter().zip(frame.fates) {
                let fate = if sent.is_ok() { fate } else { Fate::LostSettlement };
                self.meter.settled(fate, count.into());
            }
            outcome = outcome.and(sent);
        }
        if outcome.is_err() {
            self.epoch.end();
        }
        outcome
    }
}
