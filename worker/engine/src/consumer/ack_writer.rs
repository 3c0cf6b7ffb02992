//! Tells the broker, in as few frames as the ledger finds.

use std::{collections::VecDeque, future::Future, sync::Arc};

use futures_util::future::join_all;
use garenne_common::shutdown::Settlement;
use lapin::{
    Channel,
    options::{BasicAckOptions, BasicGetOptions, BasicNackOptions},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{
    channel_generation::{ChannelGeneration, SettleRequest},
    coalescer::TickClock,
    counters::SettlementCounters,
    ledger::{Disposition, Frame, Ledger},
    subscribe::Subscription,
};

#[cfg(test)]
mod tests;

/// The broker's channel stashes settlements beyond 32 that its queue has not applied yet, and forgets
/// the stash when it is closed. A channel that sent no more than this has no stash.
const WITHOUT_STASH: u64 = 16;

/// What a ack_writer needs of a channel.
pub(super) trait SettleChannel: Send + Sync + 'static {
    /// Queues a frame when it is first polled, and completes when the frame is on the socket.
    fn send(&self, frame: &Frame) -> impl Future<Output = Result<(), lapin::Error>> + Send;

    /// Makes the broker's channel pass its stash on to `queue`; completes when that has applied it.
    fn unstash(&self, queue: &str) -> impl Future<Output = Result<(), lapin::Error>> + Send;
}

impl SettleChannel for Channel {
    async fn send(&self, frame: &Frame) -> Result<(), lapin::Error> {
        match frame.verdict {
            Disposition::Ack => self.basic_ack(frame.tag, BasicAckOptions { multiple: frame.multiple }).await,
            Disposition::Requeue => {
                let options = BasicNackOptions { multiple: frame.multiple, requeue: true };
                self.basic_nack(frame.tag, options).await
            }
        }
    }

    /// The only requests that wait until the queue has applied everything before them are a consume, a cancel
    /// and a get: a get is asked, and what it may bring goes back.
    async fn unstash(&self, queue: &str) -> Result<(), lapin::Error> {
        if let Some(message) = self.basic_get(queue.into(), BasicGetOptions::default()).await? {
            let back = BasicNackOptions { multiple: false, requeue: true };
            self.basic_nack(message.delivery.delivery_tag, back).await?;
        }
        Ok(())
    }
}

/// Settles one channel's deliveries. However it ends, also by an abort or a panic, everything delivered on the
/// channel is counted once.
pub(super) struct AckWriter<C> {
    channel: C,
    queue: String,
    books: ChannelLedger,
    taken: Vec<SettleRequest>,
    /// A decided settlement may wait for company until its next tick.
    clock: TickClock,
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

impl<C: SettleChannel> AckWriter<C> {
    pub(super) fn new(
        channel: C,
        generation: Arc<ChannelGeneration>,
        counters: SettlementCounters,
        subscription: &Subscription,
        draining: watch::Receiver<bool>,
    ) -> Self {
        let unheard =
            UnconfirmedAcks { counters: counters.clone(), frames: VecDeque::new(), settled: 0, before: 0 };
        Self {
            channel,
            queue: subscription.queue.clone(),
            books: ChannelLedger { generation, counters, ledger: Ledger::new(), unheard: Some(unheard) },
            taken: Vec::new(),
            clock: subscription.clock,
            due: None,
            received: 0,
            sent: 0,
            draining,
        }
    }

    /// Runs until everything delivered is settled after the intake closed, or the channel or its consumer ends.
    /// `batch` is what the generation was made with. The answer is for whoever closes the channel.
    pub(super) async fn run(mut self, batch: usize) -> UnconfirmedAcks {
        loop {
            let draining = *self.draining.borrow();
            if draining {
                self.take();
                if self.received == self.books.generation.deliveries() || !self.books.generation.alive() {
                    break;
                }
            }
            let due = self.due;
            tokio::select! {
                biased;
                () = self.books.generation.news() => {}
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
                changed = self.draining.changed() => match changed {
                    Ok(()) => continue,
                    // The consumer is gone without a word: aborted, or it panicked. Nobody closes the channel
                    // in order, so nothing that is sent now is known to arrive.
                    Err(_) => {
                        self.books.generation.end();
                        break;
                    }
                },
            }
            let decided = self.books.ledger.decided() + self.books.generation.waiting();
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
        self.finish().await
    }

    /// Enters into the ledger what was decided. Where that was anything, more is looked for at the next tick:
    /// the generation counts on it.
    fn take(&mut self) {
        self.books.generation.take(&mut self.taken);
        if !self.taken.is_empty() {
            self.due = Some(self.clock.next(Instant::now()));
        }
        self.received += self.taken.len() as u64;
        for SettleRequest { tag, settlement } in self.taken.drain(..) {
            self.books.ledger.decide(tag, settlement);
            if settlement == Settlement::Abandoned {
                self.books.counters.settled(settlement, 1);
            }
        }
    }

    /// All frames are handed to the client before the first is awaited: it queues them in order.
    async fn flush(&mut self) -> Result<(), lapin::Error> {
        let frames = self.books.ledger.frames();
        self.sent += frames.len() as u64;
        let generation = Arc::clone(&self.books.generation);
        // An abort meanwhile leaves them to be counted as lost.
        let mut unsent = self.books.sending(&frames);
        let sent = join_all(frames.iter().map(|frame| self.channel.send(frame))).await;
        let mut outcome = Ok(());
        for (frame, sent) in frames.iter().zip(sent) {
            unsent.told(frame, sent.is_ok());
            if sent.is_ok() {
                generation.mark_settled();
            }
            outcome = outcome.and(sent);
        }
        drop(unsent);
        if outcome.is_err() {
            self.books.generation.end();
        }
        outcome
    }

    /// Settles what is decided and has the broker apply it, then counts what can no longer be settled.
    async fn finish(mut self) -> UnconfirmedAcks {
        if self.books.generation.alive() && self.flush().await.is_ok() && self.sent > WITHOUT_STASH {
            // What an error means for the channel its close will say.
            if self.channel.unstash(&self.queue).await.is_ok() {
                self.books.unheard().arrived();
            }
        }
        self.books.unheard.take().expect("only this takes it, once")
    }
}

/// What is known of a channel's deliveries. Dropped, it counts what can no longer be settled.
struct ChannelLedger {
    generation: Arc<ChannelGeneration>,
    counters: SettlementCounters,
    ledger: Ledger,
    /// None once it was handed on.
    unheard: Option<UnconfirmedAcks>,
}

impl ChannelLedger {
    fn unheard(&mut self) -> &mut UnconfirmedAcks {
        self.unheard.as_mut().expect("it is handed on at the very end")
    }

    fn sending(&mut self, frames: &[Frame]) -> Sending<'_> {
        let left = frames.iter().map(|frame| u64::from(frame.settlements.iter().sum::<u32>())).sum();
        let heard = self.generation.heard();
        let unheard = self.unheard();
        unheard.prove(heard);
        Sending { unheard, left }
    }
}

impl Drop for ChannelLedger {
    fn drop(&mut self) {
        self.generation.end();
        let lost = self.ledger.decided() + self.generation.close().len();
        self.counters.settled(Settlement::LostSettlement, lost as u64);
    }
}

/// Deliveries whose frames are on their way to the socket. Dropped, it counts the rest as lost.
struct Sending<'a> {
    unheard: &'a mut UnconfirmedAcks,
    left: u64,
}

impl Sending<'_> {
    /// Counts what a frame settled, or what was lost with it.
    fn told(&mut self, frame: &Frame, sent: bool) {
        for (settlement, count) in Settlement::ALL.into_iter().zip(frame.settlements) {
            let settlement = if sent { settlement } else { Settlement::LostSettlement };
            self.unheard.counters.settled(settlement, count.into());
            self.left -= u64::from(count);
        }
        if sent {
            self.unheard.sent(frame.settlements);
        }
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.unheard.counters.settled(Settlement::LostSettlement, self.left);
    }
}

/// What was counted as settled and nothing proves that the broker has heard of. Dropped, its deliveries are
/// lost settlements on the receipt: the broker redelivers them, or may. In the metrics they stay what was sent.
#[must_use = "dropped, it makes settlements lost ones"]
pub(super) struct UnconfirmedAcks {
    counters: SettlementCounters,
    /// What the frames settled, the oldest first; the prefetch bounds their number.
    frames: VecDeque<[u32; Settlement::ALL.len()]>,
    /// Deliveries settled in all on the channel, and by the frames that are forgotten.
    settled: u64,
    before: u64,
}

impl UnconfirmedAcks {
    fn sent(&mut self, settlements: [u32; Settlement::ALL.len()]) {
        self.settled += u64::from(settlements.iter().sum::<u32>());
        self.frames.push_back(settlements);
    }

    /// The broker has heard so many settlements at least, which come in the order in which they were sent.
    fn prove(&mut self, heard: u64) {
        while let Some(settlements) = self.frames.front() {
            let first = u64::from(settlements.iter().sum::<u32>());
            if self.before + first > heard {
                break;
            }
            self.before += first;
            self.frames.pop_front();
        }
    }

    /// The broker answered something that was asked after the last of them, or nobody will ever know.
    pub(super) fn arrived(&mut self) {
        self.frames.clear();
        self.before = self.settled;
    }
}

impl Drop for UnconfirmedAcks {
    fn drop(&mut self) {
        for settlements in self.frames.drain(..) {
            for (settlement, count) in Settlement::ALL.into_iter().zip(settlements) {
                self.counters.tally.correct(settlement, Settlement::LostSettlement, count.into());
            }
        }
    }
}
