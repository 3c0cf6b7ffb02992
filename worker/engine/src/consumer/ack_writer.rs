//! Sends settlements to the broker, in as few frames as the [`Ledger`] finds.
//!
//! When the worker stops or pauses, messages go back to the queue only after the consumer is cancelled. Otherwise the
//! broker would deliver them to the same worker again.

use std::{collections::VecDeque, sync::Arc};

use futures_util::future::join_all;
use garenne_protocol::settlement::Settlement;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{
    broker::{ChannelError, Frame, SettleChannel},
    channel_generation::{ChannelGeneration, SettleRequest, SettlementCounters},
    coalescer::TickClock,
    intake::{Intake, LaneIntake},
    ledger::Ledger,
    subscription::Subscription,
};

#[cfg(test)]
mod tests;

/// Frames that a channel may send without leaving settlements in the broker's stash.
///
/// The broker's channel stashes settlements beyond 32 that its queue has not applied yet, and drops the stash
/// when the channel closes.
const MAX_UNSTASHED_FRAMES: u64 = 16;

/// Settles the deliveries of one channel.
///
/// Every delivery of the channel is counted exactly once, also if the writer is aborted or panics.
pub(super) struct AckWriter<C> {
    channel: C,
    queue: String,
    ledger: ChannelLedger,
    unconfirmed: UnconfirmedAcks,
    /// Reused buffer for requests taken from the generation.
    requests: Vec<SettleRequest>,
    /// A settlement may wait until the next tick for others.
    clock: TickClock,
    /// When to take requests next. Set while requests wait, or may arrive without a wake-up.
    next_flush: Option<Instant>,
    requests_taken: u64,
    frames_sent: u64,
    /// Whether the lane wants new messages.
    intake: LaneIntake,
    /// True once the intake is closed: the writer ends when every delivery is settled.
    draining: watch::Receiver<bool>,
}

/// Waiting settlements that are flushed at once: a quarter of the prefetch.
pub(super) fn flush_at(subscription: &Subscription) -> usize {
    usize::from(subscription.prefetch / 4).max(1)
}

impl<C: SettleChannel> AckWriter<C> {
    pub(super) fn new(
        channel: C,
        generation: Arc<ChannelGeneration>,
        subscription: &Subscription,
        intake: LaneIntake,
        draining: watch::Receiver<bool>,
    ) -> Self {
        let counters = generation.counters.clone();
        Self {
            channel,
            queue: subscription.queue.clone(),
            ledger: ChannelLedger { generation, tags: Ledger::new(), held: Vec::new(), sending: 0 },
            unconfirmed: UnconfirmedAcks { counters, frames: VecDeque::new(), confirmed: 0 },
            requests: Vec::new(),
            clock: subscription.clock,
            next_flush: None,
            requests_taken: 0,
            frames_sent: 0,
            intake,
            draining,
        }
    }

    /// Runs until the channel or its consumer ends, until its queue was deleted, or until every delivery is settled after the intake closed.
    ///
    /// The returned settlements are confirmed when the channel is closed in order.
    pub(super) async fn run(mut self) -> UnconfirmedAcks {
        loop {
            let draining = *self.draining.borrow();
            if draining {
                self.take_requests();
                let all_settled = self.requests_taken == self.ledger.generation.deliveries();
                if all_settled || !self.ledger.generation.is_open() {
                    break;
                }
            }
            let next_flush = self.next_flush;
            tokio::select! {
                biased;
                () = self.ledger.generation.requests_ready() => {}
                () = sleep_until(next_flush.unwrap_or_else(Instant::now)), if next_flush.is_some() => {}
                changed = self.draining.changed() => match changed {
                    Ok(()) => continue,
                    // The consumer was aborted or panicked. The channel will not be closed in order, so nothing
                    // that is sent from now on could be confirmed.
                    Err(_) => {
                        self.ledger.generation.end();
                        break;
                    }
                },
            }
            let pending = self.ledger.tags.pending() + self.ledger.generation.waiting_requests();
            let now = Instant::now();
            if pending >= self.ledger.generation.flush_at || next_flush.is_some_and(|time| time <= now) {
                self.next_flush = None;
                self.take_requests();
                // Its messages go elsewhere, and count as settled there.
                if self.ledger.generation.on_orphan().is_some() {
                    break;
                }
                if self.flush().await.is_err() {
                    break;
                }
            } else if pending > 0 {
                self.next_flush = next_flush.or(Some(self.clock.next_tick(now)));
            }
        }
        self.finish().await
    }

    /// Records the waiting requests in the ledger. If there were any, it takes again at the next
    /// tick, because the generation does not wake the writer for the next request.
    ///
    /// Requeues are held until the next tick while the consumer is about to be cancelled.
    fn take_requests(&mut self) {
        self.ledger.generation.take_requests(&mut self.requests);
        self.requests_taken += self.requests.len() as u64;
        // Read after the requests: a pool requeues for a stop or a pause only after the intake has changed.
        let hold_requeues = self.intake.current() != Intake::Open && self.ledger.generation.is_consuming();
        if !hold_requeues {
            self.requests.append(&mut self.ledger.held);
        }
        if !self.requests.is_empty() || !self.ledger.held.is_empty() {
            self.next_flush = Some(self.clock.next_tick(Instant::now()));
        }
        for request in self.requests.drain(..) {
            let SettleRequest { tag, settlement } = request;
            if hold_requeues && settlement == Settlement::Requeued {
                self.ledger.held.push(request);
                continue;
            }
            self.ledger.tags.record(tag, settlement);
            if settlement == Settlement::Abandoned {
                self.ledger.generation.counters.settled(settlement, 1);
            }
        }
    }

    /// Sends the frames of all recorded settlements. It polls all of them before it awaits the first, so that
    /// the client queues them in order.
    async fn flush(&mut self) -> Result<(), ChannelError> {
        self.unconfirmed.confirm(self.ledger.generation.confirmed_settlements());
        let frames = self.ledger.start_flush();
        self.frames_sent += frames.len() as u64;
        let results = join_all(frames.iter().map(|frame| self.channel.send(frame))).await;
        let mut outcome = Ok(());
        for (frame, result) in frames.iter().zip(results) {
            self.ledger.end_flush(frame, result.is_ok());
            if result.is_ok() {
                self.unconfirmed.frames.push_back(frame.settlements);
            }
            outcome = outcome.and(result);
        }
        if let Err(error) = &outcome {
            tracing::warn!(queue = self.queue, %error, "settlements could not be sent");
            self.ledger.generation.end();
        }
        outcome
    }

    /// Sends the last settlements and makes the broker apply them. Dropping the ledger then counts what can no
    /// longer be settled.
    async fn finish(mut self) -> UnconfirmedAcks {
        if self.ledger.generation.is_open()
            && self.ledger.generation.on_orphan().is_none()
            && self.flush().await.is_ok()
            && self.frames_sent > MAX_UNSTASHED_FRAMES
        {
            // An error here also fails the close of the channel, where it is handled.
            if self.channel.flush_stash(&self.queue).await.is_ok() {
                self.unconfirmed.confirm_all();
            }
        }
        self.unconfirmed
    }
}

/// The state of a channel's deliveries. Dropping it counts those that can no longer be settled as lost.
struct ChannelLedger {
    generation: Arc<ChannelGeneration>,
    tags: Ledger,
    /// Requeues that wait until the consumer is cancelled.
    held: Vec<SettleRequest>,
    /// Deliveries of frames that are being sent.
    sending: u64,
}

impl ChannelLedger {
    /// The frames of all recorded settlements. Each must be passed to [`end_flush`](Self::end_flush); if the ledger
    /// is dropped before, its deliveries are lost.
    fn start_flush(&mut self) -> Vec<Frame> {
        let frames = self.tags.frames();
        self.sending = frames.iter().map(|frame| deliveries_of(&frame.settlements)).sum();
        frames
    }

    /// Counts the deliveries of one frame as settled or, if it was not sent, as lost.
    fn end_flush(&mut self, frame: &Frame, sent: bool) {
        self.sending -= deliveries_of(&frame.settlements);
        for (settlement, count) in Settlement::ALL.into_iter().zip(frame.settlements) {
            let settlement = if sent { settlement } else { Settlement::LostSettlement };
            self.generation.counters.settled(settlement, count.into());
        }
        if sent {
            self.generation.mark_settlement_sent();
        }
    }
}

impl Drop for ChannelLedger {
    fn drop(&mut self) {
        self.generation.end();
        let waiting = self.tags.pending() + self.held.len() + self.generation.close().len();
        self.generation.counters.settled(Settlement::LostSettlement, self.sending + waiting as u64);
    }
}

/// Deliveries by settlement, in the order of [`Settlement::ALL`].
type Counts = [u32; Settlement::ALL.len()];

fn deliveries_of(settlements: &Counts) -> u64 {
    settlements.iter().copied().map(u64::from).sum()
}

/// Settlements that were sent and counted, but that the broker has not provably processed.
///
/// Dropping it changes them to lost settlements on the shutdown receipt, because the broker may redeliver them.
/// The metrics keep counting what was sent.
#[must_use = "dropping it turns the unconfirmed settlements into lost ones"]
pub(super) struct UnconfirmedAcks {
    counters: SettlementCounters,
    /// The settlements of each unconfirmed frame, oldest first. The prefetch bounds their number.
    frames: VecDeque<Counts>,
    /// Deliveries settled by frames that are confirmed.
    confirmed: u64,
}

impl UnconfirmedAcks {
    /// Confirms the oldest frames, given that the broker has processed at least this number of settlements. It
    /// processes them in the order in which they were sent.
    fn confirm(&mut self, processed: u64) {
        while let Some(settlements) = self.frames.front() {
            let in_frame = deliveries_of(settlements);
            if self.confirmed + in_frame > processed {
                break;
            }
            self.confirmed += in_frame;
            self.frames.pop_front();
        }
    }

    /// Confirms all frames: the broker has answered a later request, or their result cannot be known.
    pub(super) fn confirm_all(&mut self) {
        self.frames.clear();
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
