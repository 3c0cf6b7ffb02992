//! Tells the broker, in as few frames as the ledger finds.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use garenne_common::shutdown::Fate;
use lapin::{
    Channel,
    options::{BasicAckOptions, BasicNackOptions},
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use super::{
    epoch::{Epoch, Order},
    ledger::{Frame, Ledger, Verdict},
    meter::Meter,
};

/// How long a decided settlement may wait for company.
const FLUSH_AFTER: Duration = Duration::from_millis(1);
/// The broker's channel stashes settlements beyond 32 that its queue has not applied yet, and forgets
/// the stash when it is closed. While draining, at most this many are sent before a pause.
const DRAIN_FRAMES: usize = 16;
/// The pause, in which a queue applies what it was sent.
const DRAIN_PAUSE: Duration = Duration::from_millis(20);

/// Settles one channel's deliveries.
pub(super) struct Settler {
    channel: Channel,
    epoch: Arc<Epoch>,
    meter: Meter,
    orders: mpsc::UnboundedReceiver<Order>,
    ledger: Ledger,
    /// Decisions that make a flush due at once: a quarter of the prefetch.
    batch: usize,
    received: u64,
    /// Set once the intake is closed: few frames now, and an end when all is settled.
    draining: watch::Receiver<bool>,
}

impl Settler {
    pub(super) fn new(
        channel: Channel,
        epoch: Arc<Epoch>,
        meter: Meter,
        orders: mpsc::UnboundedReceiver<Order>,
        prefetch: u16,
        draining: watch::Receiver<bool>,
    ) -> Self {
        let batch = usize::from(prefetch / 4).max(1);
        Self { channel, epoch, meter, orders, ledger: Ledger::new(), batch, received: 0, draining }
    }

    /// Runs until everything delivered is settled after the intake closed, or the channel ends.
    pub(super) async fn run(mut self) {
        let mut buffer = Vec::new();
        let mut due: Option<Instant> = None;
        loop {
            let draining = *self.draining.borrow();
            if draining && (self.received == self.epoch.deliveries() || !self.epoch.alive()) {
                break;
            }
            tokio::select! {
                biased;
                _ = self.orders.recv_many(&mut buffer, 256) => {
                    self.received += buffer.len() as u64;
                    for Order { tag, fate } in buffer.drain(..) {
                        self.ledger.decide(tag, fate);
                        if fate == Fate::Abandoned {
                            self.meter.settled(fate, 1);
                        }
                    }
                    due = due.or_else(|| (self.ledger.decided() > 0).then(|| Instant::now() + FLUSH_AFTER));
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
                _ = self.draining.changed() => continue,
            }
            let full = self.ledger.decided() >= self.batch;
            if full || due.is_some_and(|due| due <= Instant::now()) {
                due = None;
                if self.flush(draining).await.is_err() {
                    break;
                }
            }
        }
        self.finish().await;
    }

    async fn flush(&mut self, draining: bool) -> Result<(), lapin::Error> {
        if draining {
            let frames = self.ledger.head_frames(DRAIN_FRAMES);
            self.send(frames).await
        } else {
            let frames = self.ledger.frames(usize::MAX);
            self.send(frames).await
        }
    }

    /// Settles what is decided, then counts what can no longer be settled.
    async fn finish(mut self) {
        while self.epoch.alive() && self.ledger.decided() > 0 {
            let frames = self.ledger.frames(DRAIN_FRAMES);
            if self.send(frames).await.is_err() {
                break;
            }
            tokio::time::sleep(DRAIN_PAUSE).await;
        }
        self.epoch.end();
        self.orders.close();
        let mut lost = self.ledger.decided() as u64;
        while self.orders.recv().await.is_some() {
            lost += 1;
        }
        self.meter.settled(Fate::LostSettlement, lost);
    }

    /// All frames are handed to the client before the first is awaited: it queues them in order.
    async fn send(&mut self, frames: Vec<Frame>) -> Result<(), lapin::Error> {
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
