use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use garenne_common::telemetry::Metrics;
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::*;

/// A channel that remembers what it was told.
#[derive(Clone, Default)]
struct Fake(Arc<FakeState>);

#[derive(Default)]
struct FakeState {
    sent: Mutex<Vec<(Disposition, u64, bool)>>,
    unstashed: Mutex<Vec<String>>,
    /// Errors from then on.
    dead: AtomicBool,
    /// Never completes from then on.
    frozen: AtomicBool,
    polls: AtomicUsize,
}

impl Fake {
    fn sent(&self) -> Vec<(Disposition, u64, bool)> {
        self.0.sent.lock().unwrap().clone()
    }

    async fn answer(&self) -> Result<(), lapin::Error> {
        self.0.polls.fetch_add(1, Ordering::Relaxed);
        if self.0.frozen.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        match self.0.dead.load(Ordering::Relaxed) {
            true => Err(lapin::ErrorKind::MissingHeartbeatError.into()),
            false => Ok(()),
        }
    }
}

impl SettleChannel for Fake {
    async fn send(&self, frame: &Frame) -> Result<(), lapin::Error> {
        self.0.sent.lock().unwrap().push((frame.verdict, frame.tag, frame.multiple));
        self.answer().await
    }

    async fn unstash(&self, queue: &str) -> Result<(), lapin::Error> {
        self.0.unstashed.lock().unwrap().push(queue.to_owned());
        self.answer().await
    }
}

struct Bench {
    channel: Fake,
    generation: Arc<ChannelGeneration>,
    counters: SettlementCounters,
    drain: watch::Sender<bool>,
    running: JoinHandle<UnconfirmedAcks>,
}

const BATCH: usize = 4;

fn bench() -> Bench {
    let counters = SettlementCounters { tally: Arc::default(), lane: Metrics::new("test").lane("test") };
    let subscription = Subscription::for_queues(vec!["queue".into()], 16, "tag").remove(0);
    assert_eq!(batch(&subscription), BATCH);
    let generation = Arc::new(ChannelGeneration::new(counters.clone(), BATCH));
    let (channel, (drain, draining)) = (Fake::default(), watch::channel(false));
    let ack_writer =
        AckWriter::new(channel.clone(), Arc::clone(&generation), counters.clone(), &subscription, draining);
    generation.grant(subscription.prefetch);
    Bench { channel, generation, counters, drain, running: tokio::spawn(ack_writer.run(BATCH)) }
}

impl Bench {
    fn deliver(&self, count: usize) {
        (0..count).for_each(|_| self.generation.count_delivery(false));
    }

    fn decide(&self, tags: impl IntoIterator<Item = u64>, settlement: Settlement) {
        tags.into_iter().for_each(|tag| self.generation.order(SettleRequest { tag, settlement }));
    }

    /// The counts of acked, requeued and lost.
    fn counts(&self) -> (u64, u64, u64) {
        let of = |settlement| self.counters.tally.count(settlement);
        (of(Settlement::Acked), of(Settlement::Requeued), of(Settlement::LostSettlement))
    }
}

const MOMENT: Duration = Duration::from_millis(20);

#[test]
fn a_quarter_of_the_prefetch_is_a_batch() {
    let of = |prefetch| batch(&Subscription::for_queues(vec!["q".into()], prefetch, "t")[0]);
    assert_eq!([1, 3, 4, 8, 200].map(of), [1, 1, 1, 2, 50]);
}

#[tokio::test(start_paused = true)]
async fn a_full_batch_is_sent_at_once_and_a_lone_decision_at_the_next_tick() {
    let bench = bench();
    bench.deliver(6);
    sleep(MOMENT).await;
    let begun = Instant::now();
    bench.decide(1..=4, Settlement::Acked);
    while bench.channel.sent().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(bench.channel.sent(), [(Disposition::Ack, 4, true)]);
    bench.decide([5], Settlement::Requeued);
    sleep(MOMENT).await;
    assert_eq!(bench.channel.sent()[1..], [(Disposition::Requeue, 5, false)]);
    assert_eq!(bench.counts(), (4, 1, 0));
    bench.decide([6], Settlement::Dead);
    sleep(MOMENT).await;
    assert_eq!(bench.counters.tally.count(Settlement::Dead), 1);
    assert!(bench.generation.alive() && !bench.running.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_decision_waits_for_others_until_the_tick() {
    let bench = bench();
    bench.deliver(2);
    sleep(MOMENT).await;
    bench.decide([1], Settlement::Acked);
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    assert!(bench.channel.sent().is_empty(), "it waits for company");
    bench.decide([2], Settlement::Acked);
    sleep(MOMENT).await;
    assert_eq!(bench.channel.sent(), [(Disposition::Ack, 2, true)]);
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_when_everything_delivered_is_settled() {
    let bench = bench();
    bench.deliver(3);
    bench.decide([1], Settlement::Acked);
    bench.drain.send_replace(true);
    sleep(MOMENT).await;
    assert!(!bench.running.is_finished(), "two are out");
    bench.decide([2], Settlement::Requeued);
    bench.decide([3], Settlement::Abandoned);
    let mut unheard = timeout(MOMENT, bench.running).await.unwrap().unwrap();
    assert!(!bench.generation.alive(), "nothing can be settled any more");
    assert_eq!(bench.channel.sent(), [(Disposition::Ack, 1, false), (Disposition::Requeue, 2, false)]);
    assert!(bench.channel.0.unstashed.lock().unwrap().is_empty(), "so few frames are never stashed");
    assert_eq!(bench.counters.tally.count(Settlement::Abandoned), 1);
    unheard.arrived();
    drop(unheard);
    assert_eq!(
        (bench.counters.tally.count(Settlement::Acked), bench.counters.tally.count(Settlement::Requeued)),
        (1, 1)
    );
    assert_eq!(bench.counters.tally.outstanding(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_may_be_stashed_is_passed_on_before_the_end_which_proves_that_it_was_heard() {
    for (frames, unstashed) in [(16, 0), (17, 1)] {
        let bench = bench();
        bench.deliver(frames + 1);
        // Behind a gap each is a frame.
        bench.decide(2..=frames as u64 + 1, Settlement::Acked);
        sleep(MOMENT).await;
        bench.decide([1], Settlement::Abandoned);
        bench.drain.send_replace(true);
        let (tally, channel) = (Arc::clone(&bench.counters.tally), bench.channel.clone());
        drop(timeout(MOMENT, bench.running).await.unwrap().unwrap());
        assert_eq!(channel.sent().len(), frames);
        assert_eq!(*channel.0.unstashed.lock().unwrap(), vec!["queue"; unstashed]);
        let acked = tally.count(Settlement::Acked);
        // Dropped unproven: all that a prefetch of 16 does not prove is lost.
        let expected = if unstashed == 1 { frames as u64 } else { 1 };
        assert_eq!((acked, tally.count(Settlement::LostSettlement)), (expected, frames as u64 - expected));
        assert_eq!(tally.outstanding(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_channel_that_dies_makes_what_it_does_not_take_lost() {
    let bench = bench();
    bench.deliver(4);
    bench.channel.0.dead.store(true, Ordering::Relaxed);
    bench.decide([1, 2], Settlement::Acked);
    let unheard = timeout(MOMENT, bench.running).await.unwrap().unwrap();
    assert!(!bench.generation.alive());
    assert_eq!(bench.channel.sent(), [(Disposition::Ack, 2, true)]);
    drop(unheard);
    bench.generation.order(SettleRequest { tag: 3, settlement: Settlement::Acked });
    bench.generation.order(SettleRequest { tag: 4, settlement: Settlement::Requeued });
    let lost = (
        bench.counters.tally.count(Settlement::Acked),
        bench.counters.tally.count(Settlement::LostSettlement),
    );
    assert_eq!(lost, (0, 4));
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_is_gone_ends_it_without_spinning() {
    let Bench { channel, generation, counters, drain, running } = bench();
    generation.count_delivery(false);
    generation.count_delivery(false);
    generation.order(SettleRequest { tag: 1, settlement: Settlement::Acked });
    drop(drain);
    drop(timeout(MOMENT, running).await.expect("it ends").unwrap());
    assert!(!generation.alive() && channel.sent().is_empty());
    generation.order(SettleRequest { tag: 2, settlement: Settlement::Requeued });
    assert_eq!(counters.tally.count(Settlement::LostSettlement), 2);
    assert_eq!(counters.tally.outstanding(), 0);
}

/// The broker's host hangs: the kernel takes the frames, and nobody answers.
#[tokio::test(start_paused = true)]
async fn what_was_sent_to_a_silent_broker_is_a_lost_settlement_on_the_receipt() {
    let bench = bench();
    bench.deliver(6);
    bench.decide([1, 2, 3], Settlement::Acked);
    bench.decide([4, 5], Settlement::Requeued);
    sleep(MOMENT).await;
    assert_eq!(bench.counts(), (3, 2, 0));
    bench.running.abort();
    assert!(bench.running.await.is_err());
    assert_eq!(bench.counters.tally.count(Settlement::LostSettlement), 5);
    bench.generation.order(SettleRequest { tag: 6, settlement: Settlement::Acked });
    assert_eq!(
        (bench.counters.tally.count(Settlement::LostSettlement), bench.counters.tally.outstanding()),
        (6, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_half_sent_when_it_is_aborted_is_lost() {
    let bench = bench();
    bench.deliver(5);
    bench.channel.0.frozen.store(true, Ordering::Relaxed);
    bench.decide(1..=4, Settlement::Acked);
    sleep(MOMENT).await;
    bench.decide([5], Settlement::Acked);
    assert_eq!(bench.counts(), (0, 0, 0));
    bench.running.abort();
    assert!(bench.running.await.is_err());
    assert_eq!(bench.counters.tally.count(Settlement::LostSettlement), 5);
    assert_eq!(bench.counters.tally.outstanding(), 0);
}

#[tokio::test(start_paused = true)]
async fn deliveries_beyond_the_prefetch_prove_what_was_heard() {
    let bench = bench();
    bench.deliver(16);
    for tags in [1..=4, 5..=8] {
        bench.decide(tags, Settlement::Acked);
        sleep(MOMENT).await;
    }
    // Eight more than the prefetch: the broker settled eight. One more frame looks at that.
    bench.deliver(8);
    bench.decide(9..=12, Settlement::Requeued);
    sleep(MOMENT).await;
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
async fn part_of_a_frame_proves_nothing() {
    let bench = bench();
    bench.deliver(16);
    bench.decide(1..=4, Settlement::Acked);
    sleep(MOMENT).await;
    bench.deliver(3);
    bench.decide([5], Settlement::Acked);
    sleep(MOMENT).await;
    bench.running.abort();
    assert!(bench.running.await.is_err());
    assert_eq!(bench.counters.tally.count(Settlement::LostSettlement), 5);
}
