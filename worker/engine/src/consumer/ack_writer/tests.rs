use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use garenne_common::telemetry::Metrics;
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::*;
use crate::consumer::{OnOrphan, broker::Disposition, intake::LaneQuiet};

/// A channel that records its frames.
#[derive(Clone, Default)]
struct FakeChannel(Arc<FakeState>);

#[derive(Default)]
struct FakeState {
    sent: Mutex<Vec<(Disposition, u64, bool)>>,
    stash_flushes: Mutex<Vec<String>>,
    /// All calls fail.
    dead: AtomicBool,
    /// No call completes.
    frozen: AtomicBool,
}

impl FakeChannel {
    fn sent(&self) -> Vec<(Disposition, u64, bool)> {
        self.0.sent.lock().unwrap().clone()
    }

    async fn result(&self) -> Result<(), ChannelError> {
        if self.0.frozen.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        match self.0.dead.load(Ordering::Relaxed) {
            true => Err(ChannelError { reply: None, text: "no heartbeat".into() }),
            false => Ok(()),
        }
    }
}

impl SettleChannel for FakeChannel {
    async fn send(&self, frame: &Frame) -> Result<(), ChannelError> {
        self.0.sent.lock().unwrap().push((frame.disposition, frame.tag, frame.multiple));
        self.result().await
    }

    async fn flush_stash(&self, queue: &str) -> Result<(), ChannelError> {
        self.0.stash_flushes.lock().unwrap().push(queue.to_owned());
        self.result().await
    }
}

struct Bench {
    channel: FakeChannel,
    generation: Arc<ChannelGeneration>,
    counters: SettlementCounters,
    intake: watch::Sender<Intake>,
    drain: watch::Sender<bool>,
    running: JoinHandle<UnconfirmedAcks>,
}

const FLUSH_AT: usize = 4;

fn bench() -> Bench {
    let counters = SettlementCounters { tally: Arc::default(), lane: Metrics::new("test").lane("test") };
    let subscription = Subscription::for_queues(vec!["queue".into()], 16, "tag").remove(0);
    assert_eq!(flush_at(&subscription), FLUSH_AT);
    let generation = Arc::new(ChannelGeneration::new(counters.clone(), FLUSH_AT));
    let channel = FakeChannel::default();
    let ((intake, wanted), (drain, draining)) = (watch::channel(Intake::Open), watch::channel(false));
    let quiet = watch::Sender::new(LaneQuiet::default());
    let wanted = LaneIntake::new(wanted, quiet.subscribe());
    let writer = AckWriter::new(channel.clone(), Arc::clone(&generation), &subscription, wanted, draining);
    generation.consumer_started(subscription.prefetch);
    Bench { channel, generation, counters, intake, drain, running: tokio::spawn(writer.run()) }
}

impl Bench {
    fn deliver(&self, count: usize) {
        (0..count).for_each(|_| self.generation.count_delivery(false));
    }

    fn settle(&self, tags: impl IntoIterator<Item = u64>, settlement: Settlement) {
        tags.into_iter()
            .for_each(|tag| self.generation.request_settlement(SettleRequest { tag, settlement }));
    }

    /// Behavior of the consumer after the intake has closed.
    fn end_consumer(&self) {
        self.intake.send_replace(Intake::Closed);
        self.generation.consumer_stopped();
        self.drain.send_replace(true);
    }

    /// The numbers of acked, requeued and lost deliveries.
    fn counts(&self) -> (u64, u64, u64) {
        let of = |settlement| self.counters.tally.count(settlement);
        (of(Settlement::Acked), of(Settlement::Requeued), of(Settlement::LostSettlement))
    }
}

const SHORT_WAIT: Duration = Duration::from_millis(20);

#[test]
fn settlements_are_flushed_at_a_quarter_of_the_prefetch() {
    let of = |prefetch| flush_at(&Subscription::for_queues(vec!["q".into()], prefetch, "t")[0]);
    assert_eq!([1, 3, 4, 8, 200].map(of), [1, 1, 1, 2, 50]);
}

#[tokio::test(start_paused = true)]
async fn a_full_batch_is_flushed_at_once_and_a_single_settlement_at_the_next_tick() {
    let bench = bench();
    bench.deliver(6);
    sleep(SHORT_WAIT).await;
    let start = Instant::now();
    bench.settle(1..=4, Settlement::Acked);
    while bench.channel.sent().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(bench.channel.sent(), [(Disposition::Ack, 4, true)]);
    bench.settle([5], Settlement::Requeued);
    sleep(SHORT_WAIT).await;
    assert_eq!(bench.channel.sent()[1..], [(Disposition::Requeue, 5, false)]);
    assert_eq!(bench.counts(), (4, 1, 0));
    bench.settle([6], Settlement::Dead);
    sleep(SHORT_WAIT).await;
    assert_eq!(bench.counters.tally.count(Settlement::Dead), 1);
    assert!(bench.generation.is_open() && !bench.running.is_finished());
}

/// The messages are published again, so that the broker must not get them back too.
#[tokio::test(start_paused = true)]
async fn what_is_requeued_after_its_queue_was_deleted_is_not_sent_and_counts_as_lost() {
    let bench = bench();
    bench.deliver(6);
    bench.settle([1], Settlement::Requeued);
    sleep(SHORT_WAIT).await;
    let on_orphan: OnOrphan = Arc::new(|_| ());
    bench.generation.queue_may_be_deleted(&on_orphan);
    bench.settle(2..=5, Settlement::Requeued);
    sleep(SHORT_WAIT).await;
    bench.settle([6], Settlement::Requeued);
    bench.end_consumer();
    bench.running.await.unwrap().confirm_all();
    assert_eq!(bench.channel.sent(), [(Disposition::Requeue, 1, false)]);
    assert_eq!(bench.counters.tally.count(Settlement::LostSettlement), 5);
    assert_eq!(bench.counters.tally.count(Settlement::Requeued), 1);
}

#[tokio::test(start_paused = true)]
async fn a_settlement_waits_for_others_until_the_next_tick() {
    let bench = bench();
    bench.deliver(2);
    sleep(SHORT_WAIT).await;
    bench.settle([1], Settlement::Acked);
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    assert!(bench.channel.sent().is_empty(), "it waits until the tick");
    bench.settle([2], Settlement::Acked);
    sleep(SHORT_WAIT).await;
    assert_eq!(bench.channel.sent(), [(Disposition::Ack, 2, true)]);
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_when_every_delivery_is_settled() {
    let bench = bench();
    bench.deliver(3);
    bench.settle([1], Settlement::Acked);
    bench.end_consumer();
    sleep(SHORT_WAIT).await;
    assert!(!bench.running.is_finished(), "two are outstanding");
    bench.settle([2], Settlement::Requeued);
    bench.settle([3], Settlement::Abandoned);
    let mut unconfirmed = timeout(SHORT_WAIT, bench.running).await.unwrap().unwrap();
    assert!(!bench.generation.is_open(), "no further settlement can be sent");
    assert_eq!(bench.channel.sent(), [(Disposition::Ack, 1, false), (Disposition::Requeue, 2, false)]);
    assert!(
        bench.channel.0.stash_flushes.lock().unwrap().is_empty(),
        "the broker stashes nothing of so few frames"
    );
    assert_eq!(bench.counters.tally.count(Settlement::Abandoned), 1);
    unconfirmed.confirm_all();
    drop(unconfirmed);
    assert_eq!(
        (bench.counters.tally.count(Settlement::Acked), bench.counters.tally.count(Settlement::Requeued)),
        (1, 1)
    );
    assert_eq!(bench.counters.tally.outstanding(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_requeue_for_a_pause_or_a_stop_is_sent_after_the_consumer_is_cancelled() {
    for intake in [Intake::Quiet, Intake::Closed] {
        let bench = bench();
        bench.deliver(3);
        bench.settle([1], Settlement::Requeued);
        sleep(SHORT_WAIT).await;
        assert_eq!(bench.counts(), (0, 1, 0), "the worker wants messages, so another worker may take it");
        bench.intake.send_replace(intake);
        bench.settle([2], Settlement::Requeued);
        bench.settle([3], Settlement::Acked);
        sleep(SHORT_WAIT).await;
        assert_eq!(bench.counts(), (1, 1, 0), "only the requeue is held");
        bench.generation.consumer_stopped();
        sleep(SHORT_WAIT).await;
        assert_eq!(bench.counts(), (1, 2, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_requeue_is_sent_when_the_worker_resumes_and_lost_when_the_channel_ends() {
    let bench = bench();
    bench.deliver(2);
    bench.intake.send_replace(Intake::Quiet);
    bench.settle([1], Settlement::Requeued);
    sleep(SHORT_WAIT).await;
    bench.intake.send_replace(Intake::Open);
    sleep(SHORT_WAIT).await;
    assert_eq!(bench.counts(), (0, 1, 0));
    bench.intake.send_replace(Intake::Quiet);
    bench.settle([2], Settlement::Requeued);
    sleep(SHORT_WAIT).await;
    drop(bench.drain);
    drop(timeout(SHORT_WAIT, bench.running).await.unwrap().unwrap());
    assert_eq!(bench.counters.tally.count(Settlement::LostSettlement), 2);
}

#[tokio::test(start_paused = true)]
async fn flushing_the_stash_before_the_end_confirms_all_settlements() {
    for (frames, stash_flushes) in [(16, 0), (17, 1)] {
        let bench = bench();
        bench.deliver(frames + 1);
        // Behind the gap at tag 1, each settlement is a frame.
        bench.settle(2..=frames as u64 + 1, Settlement::Acked);
        sleep(SHORT_WAIT).await;
        bench.settle([1], Settlement::Abandoned);
        bench.end_consumer();
        let (tally, channel) = (Arc::clone(&bench.counters.tally), bench.channel.clone());
        drop(timeout(SHORT_WAIT, bench.running).await.unwrap().unwrap());
        assert_eq!(channel.sent().len(), frames);
        assert_eq!(*channel.0.stash_flushes.lock().unwrap(), vec!["queue"; stash_flushes]);
        let acked = tally.count(Settlement::Acked);
        // Without a stash flush, the only settlement known to be processed is the one beyond the prefetch of 16.
        let expected = if stash_flushes == 1 { frames as u64 } else { 1 };
        assert_eq!((acked, tally.count(Settlement::LostSettlement)), (expected, frames as u64 - expected));
        assert_eq!(tally.outstanding(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn settlements_that_a_dead_channel_does_not_send_are_lost() {
    let bench = bench();
    bench.deliver(4);
    bench.channel.0.dead.store(true, Ordering::Relaxed);
    bench.settle([1, 2], Settlement::Acked);
    let unconfirmed = timeout(SHORT_WAIT, bench.running).await.unwrap().unwrap();
    assert!(!bench.generation.is_open());
    assert_eq!(bench.channel.sent(), [(Disposition::Ack, 2, true)]);
    drop(unconfirmed);
    bench.generation.request_settlement(SettleRequest { tag: 3, settlement: Settlement::Acked });
    bench.generation.request_settlement(SettleRequest { tag: 4, settlement: Settlement::Requeued });
    let lost = (
        bench.counters.tally.count(Settlement::Acked),
        bench.counters.tally.count(Settlement::LostSettlement),
    );
    assert_eq!(lost, (0, 4));
}

#[tokio::test(start_paused = true)]
async fn the_writer_ends_without_spinning_when_its_consumer_is_gone() {
    let Bench { channel, generation, counters, intake: _intake, drain, running } = bench();
    generation.count_delivery(false);
    generation.count_delivery(false);
    generation.request_settlement(SettleRequest { tag: 1, settlement: Settlement::Acked });
    drop(drain);
    drop(timeout(SHORT_WAIT, running).await.expect("the writer ends").unwrap());
    assert!(!generation.is_open() && channel.sent().is_empty());
    generation.request_settlement(SettleRequest { tag: 2, settlement: Settlement::Requeued });
    assert_eq!(counters.tally.count(Settlement::LostSettlement), 2);
    assert_eq!(counters.tally.outstanding(), 0);
}

/// The broker's host hangs: the kernel accepts the frames, but no answer arrives.
#[tokio::test(start_paused = true)]
async fn settlements_sent_to_a_hung_broker_are_lost_on_the_receipt() {
    let bench = bench();
    bench.deliver(6);
    bench.settle([1, 2, 3], Settlement::Acked);
    bench.settle([4, 5], Settlement::Requeued);
    sleep(SHORT_WAIT).await;
    assert_eq!(bench.counts(), (3, 2, 0));
    bench.running.abort();
    assert!(bench.running.await.is_err());
    assert_eq!(bench.counters.tally.count(Settlement::LostSettlement), 5);
    bench.generation.request_settlement(SettleRequest { tag: 6, settlement: Settlement::Acked });
    assert_eq!(
        (bench.counters.tally.count(Settlement::LostSettlement), bench.counters.tally.outstanding()),
        (6, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn settlements_that_are_being_sent_at_an_abort_are_lost() {
    let bench = bench();
    bench.deliver(5);
    bench.channel.0.frozen.store(true, Ordering::Relaxed);
    bench.settle(1..=4, Settlement::Acked);
    sleep(SHORT_WAIT).await;
    bench.settle([5], Settlement::Acked);
    assert_eq!(bench.counts(), (0, 0, 0));
    bench.running.abort();
    assert!(bench.running.await.is_err());
    assert_eq!(bench.counters.tally.count(Settlement::LostSettlement), 5);
    assert_eq!(bench.counters.tally.outstanding(), 0);
}

#[tokio::test(start_paused = true)]
async fn deliveries_beyond_the_prefetch_confirm_the_oldest_frames() {
    let bench = bench();
    bench.deliver(16);
    for tags in [1..=4, 5..=8] {
        bench.settle(tags, Settlement::Acked);
        sleep(SHORT_WAIT).await;
    }
    // Eight deliveries beyond the prefetch: the broker has processed eight settlements. The next flush uses that.
    bench.deliver(8);
    bench.settle(9..=12, Settlement::Requeued);
    sleep(SHORT_WAIT).await;
    bench.running.abort();
    assert!(bench.running.await.is_err());
    let tally = &bench.counters.tally;
    assert_eq!(
        (
            tally.count(Settlement::Acked),
            tally.count(Settlement::Requeued),
            tally.count(Settlement::LostSettlement)
        ),
        (8, 0, 4)
    );
}

#[tokio::test(start_paused = true)]
async fn a_partly_confirmed_frame_stays_unconfirmed() {
    let bench = bench();
    bench.deliver(16);
    bench.settle(1..=4, Settlement::Acked);
    sleep(SHORT_WAIT).await;
    bench.deliver(3);
    bench.settle([5], Settlement::Acked);
    sleep(SHORT_WAIT).await;
    bench.running.abort();
    assert!(bench.running.await.is_err());
    assert_eq!(bench.counters.tally.count(Settlement::LostSettlement), 5);
}
