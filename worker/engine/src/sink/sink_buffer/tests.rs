use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use futures_util::future::BoxFuture;
use garenne_common::telemetry::Metrics;
use prometheus::Registry;
use tokio::{sync::oneshot, time::sleep};

use super::*;
use crate::{consumer::SettlementCounters, sink::SinkError, testing::finished};

/// What a sink does with one batch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Store,
    Away,
    Panic,
    PanicLater,
    TooFew,
    TooMany,
}

/// Does one act after the other, then stores.
struct Scripted {
    name: &'static str,
    acts: Mutex<VecDeque<Act>>,
    /// The sizes of the batches it was offered.
    batches: Mutex<Vec<usize>>,
}

impl Scripted {
    fn new(name: &'static str, acts: impl IntoIterator<Item = Act>) -> Arc<Self> {
        Arc::new(Self { name, acts: Mutex::new(acts.into_iter().collect()), batches: Mutex::default() })
    }

    fn offered(&self) -> Vec<usize> {
        self.batches.lock().unwrap().clone()
    }
}

impl Sink for Scripted {
    fn name(&self) -> &'static str {
        self.name
    }

    fn write<'a>(&'a self, batch: &'a [Finished]) -> BoxFuture<'a, Result<Vec<Accepted>, SinkError>> {
        self.batches.lock().unwrap().push(batch.len());
        let act = self.acts.lock().unwrap().pop_front().unwrap_or(Act::Store);
        assert!(act != Act::Panic, "no future at all");
        async move {
            let stored = |count| Ok(vec![Accepted::Stored; count]);
            match act {
                Act::Away => Err(SinkError { sink: self.name, detail: "away".into() }),
                Act::PanicLater => panic!("in the middle of it"),
                Act::TooFew => stored(batch.len() - 1),
                Act::TooMany => stored(batch.len() + 1),
                Act::Store | Act::Panic => stored(batch.len()),
            }
        }
        .boxed()
    }
}

/// Its connection is open and nobody answers, until it is let go.
#[derive(Default)]
struct Frozen(tokio::sync::Notify, AtomicUsize);

impl Sink for Frozen {
    fn name(&self) -> &'static str {
        "frozen"
    }

    fn write<'a>(&'a self, batch: &'a [Finished]) -> BoxFuture<'a, Result<Vec<Accepted>, SinkError>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        async {
            self.0.notified().await;
            Ok(vec![Accepted::Stored; batch.len()])
        }
        .boxed()
    }
}

struct Bench {
    sink_buffer: SinkBuffer,
    registry: Registry,
    panics: Panics,
    force_close: CancellationToken,
    generation: Arc<ChannelGeneration>,
}

fn generation() -> Arc<ChannelGeneration> {
    let counters = SettlementCounters { tally: Arc::default(), lane: Metrics::new("test").lane("test") };
    Arc::new(ChannelGeneration::new(counters, 1))
}

fn bench(sinks: Vec<Arc<dyn Sink>>) -> Bench {
    let (registry, force_close) = (Registry::new(), CancellationToken::new());
    let panics = Panics::register(&registry);
    let sink_buffer = SinkBuffer::open(sinks, &force_close, &SinkMetrics::register(&registry), &panics);
    Bench { sink_buffer, registry, panics, force_close, generation: generation() }
}

impl Bench {
    fn give(&self) -> oneshot::Receiver<Option<Accepted>> {
        self.give_of(&self.generation)
    }

    fn give_of(&self, generation: &Arc<ChannelGeneration>) -> oneshot::Receiver<Option<Accepted>> {
        let (sender, receiver) = oneshot::channel();
        let answer = Box::new(move |accepted| drop(sender.send(accepted)));
        let (span, generation) = (AttemptSpan::default(), Arc::clone(generation));
        self.sink_buffer.hand_over(SinkItem { finished: finished("t", "{}"), span, generation, answer });
        receiver
    }

    fn problems(&self) -> Vec<String> {
        self.sink_buffer.problems().collect()
    }

    fn metric(&self, name: &str, sink: &str) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name).expect("a metric");
        let series = family.get_metric().iter().find(|it| it.get_label()[0].value() == sink);
        let series = series.expect("a series");
        series.get_gauge().get_value() + series.get_counter().get_value()
    }
}

const STORED: Option<Accepted> = Some(Accepted::Stored);

#[tokio::test(start_paused = true)]
async fn without_a_sink_everything_is_stored_at_once() {
    let bench = bench(Vec::new());
    assert!(bench.sink_buffer.is_empty());
    assert_eq!(bench.give().now_or_never().unwrap().unwrap(), STORED);
}

#[tokio::test(start_paused = true)]
async fn an_absent_sink_is_waited_for_and_named() {
    let sink = Scripted::new("flaky", [Act::Away; 5]);
    let bench = bench(vec![sink.clone()]);
    assert!(!bench.sink_buffer.is_empty());
    assert_eq!((bench.problems().len(), bench.metric("garenne_sink_up", "flaky")), (0, 1.0));
    let word = bench.give();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(bench.problems(), ["sink flaky takes no results: sink flaky is away: away"]);
    assert_eq!(bench.metric("garenne_sink_up", "flaky"), 0.0);
    assert_eq!(word.await.unwrap(), STORED);
    assert_eq!((bench.problems().len(), bench.metric("garenne_sink_up", "flaky")), (0, 1.0));
    assert_eq!(bench.metric("garenne_sink_panics_total", "flaky"), 0.0);
    assert_eq!(sink.offered(), [1; 6]);
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_panics_is_offered_the_batch_again_with_growing_pauses() {
    let sink = Scripted::new("fragile", [Act::Panic, Act::PanicLater, Act::Panic, Act::PanicLater]);
    let bench = bench(vec![sink.clone()]);
    let begun = Instant::now();
    let words: Vec<_> = (0..6).map(|_| bench.give()).collect();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(bench.problems(), ["sink fragile takes no results: it panicked: no future at all"]);
    assert_eq!(bench.metric("garenne_sink_up", "fragile"), 0.0);
    for word in words {
        assert_eq!(word.await.unwrap(), STORED);
    }
    assert_eq!(sink.offered(), [6; 5], "the same batch, and nothing went back");
    assert!(begun.elapsed() >= Duration::from_millis(750), "{:?}", begun.elapsed());
    assert_eq!(bench.metric("garenne_sink_panics_total", "fragile"), 4.0);
    assert_eq!((bench.problems().len(), bench.metric("garenne_sink_up", "fragile")), (0, 1.0));
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_answers_for_another_number_of_results_is_an_error_that_names_it() {
    for (act, told) in [(Act::TooFew, "it answered for 1 results of 2"), (Act::TooMany, "it answered for 3")]
    {
        let sink = Scripted::new("careless", [act]);
        let bench = bench(vec![sink.clone()]);
        let words = [bench.give(), bench.give()];
        sleep(Duration::from_millis(1)).await;
        let problem = bench.problems().remove(0);
        assert!(problem.starts_with(&format!("sink careless takes no results: {told}")), "{problem}");
        for word in words {
            assert_eq!(word.await.unwrap(), STORED);
        }
        assert_eq!((sink.offered(), bench.problems().len()), (vec![2, 2], 0));
    }
}

#[tokio::test(start_paused = true)]
async fn one_sick_sink_does_not_keep_the_others_from_their_results() {
    let (sick, well) = (Scripted::new("sick", [Act::Panic; 40]), Scripted::new("well", []));
    let bench = bench(vec![sick.clone(), well.clone()]);
    let first = bench.give();
    sleep(Duration::from_millis(1)).await;
    let second = bench.give();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(well.offered(), [1, 1]);
    assert_eq!(bench.metric("garenne_sink_up", "well"), 1.0);
    assert_eq!(bench.problems().len(), 1);
    let (mut first, mut second) = (first, second);
    assert!(first.try_recv().is_err() && second.try_recv().is_err(), "one of them has not stored it");
    sick.acts.lock().unwrap().clear();
    assert_eq!((first.await.unwrap(), second.await.unwrap()), (STORED, STORED));
}

#[tokio::test(start_paused = true)]
async fn a_conflict_in_one_sink_is_the_word_on_the_result() {
    struct Contradicts;

    impl Sink for Contradicts {
        fn name(&self) -> &'static str {
            "contradicts"
        }

        fn write<'a>(&'a self, _: &'a [Finished]) -> BoxFuture<'a, Result<Vec<Accepted>, SinkError>> {
            std::future::ready(Ok(vec![Accepted::Conflict("no".into())])).boxed()
        }
    }

    let bench = bench(vec![Arc::new(Contradicts), Scripted::new("well", [])]);
    assert_eq!(bench.give().await.unwrap(), Some(Accepted::Conflict("no".into())));
}

#[tokio::test(start_paused = true)]
async fn reconnects_do_not_pile_up_results_behind_an_absent_sink() {
    let sink = Scripted::new("away", [Act::Away; 1000]);
    let bench = bench(vec![sink.clone()]);
    let (told, mut held) = (Arc::new(AtomicUsize::new(0)), 0);
    let mut generations: Vec<Arc<ChannelGeneration>> = Vec::new();
    // Each reconnect ends one channel and brings the same prefetch on the next.
    for _ in 0..50 {
        generations.iter().for_each(|generation| generation.end());
        let generation = generation();
        for _ in 0..20 {
            held += 1;
            let told = Arc::clone(&told);
            let answer: Answer = Box::new(move |word| {
                assert_eq!(word, None);
                told.fetch_add(1, Ordering::Relaxed);
            });
            let (span, generation) = (AttemptSpan::default(), Arc::clone(&generation));
            bench.sink_buffer.hand_over(SinkItem { finished: finished("t", "{}"), span, generation, answer });
        }
        generations.push(generation);
        sleep(Duration::from_secs(2)).await;
        let held = held - told.load(Ordering::Relaxed);
        assert!(held <= 20, "{held} are held");
    }
    assert!(sink.offered().iter().all(|size| *size <= 20), "{:?}", sink.offered());
}

#[tokio::test(start_paused = true)]
async fn what_a_healthy_sink_takes_is_stored_although_its_channel_died() {
    let bench = bench(vec![Scripted::new("well", [])]);
    bench.generation.end();
    assert_eq!(bench.give().await.unwrap(), STORED, "a long task's work is not thrown away");
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_does_not_answer_is_named_and_what_comes_again_does_not_wait_for_it() {
    let sink = Arc::new(Frozen::default());
    let bench = bench(vec![sink.clone()]);
    let first = bench.give();
    sleep(Duration::from_millis(1)).await;
    let (dead, alive) = (generation(), generation());
    let (second, mut third) = (bench.give_of(&dead), bench.give_of(&alive));
    dead.end();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(second.await.unwrap(), None);
    assert_eq!(bench.problems().len(), 0);
    sleep(SLOW).await;
    assert_eq!(bench.problems(), ["sink frozen takes no results: it has not answered for 30 s"]);
    assert!(third.try_recv().is_err());
    sink.0.notify_one();
    assert_eq!(first.await.unwrap(), STORED);
    assert_eq!(bench.problems().len(), 0);
    sink.0.notify_one();
    assert_eq!(third.await.unwrap(), STORED);
    assert_eq!(sink.1.load(Ordering::Relaxed), 2, "it was never asked again before it answered");
}

#[tokio::test(start_paused = true)]
async fn in_a_hurry_an_absent_sink_means_not_stored() {
    let bench = bench(vec![Scripted::new("away", [Act::Away; 100])]);
    let word = bench.give();
    sleep(Duration::from_secs(60)).await;
    bench.force_close.cancel();
    assert_eq!(word.await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn in_a_hurry_a_frozen_sink_means_not_stored() {
    let bench = bench(vec![Arc::new(Frozen::default())]);
    let word = bench.give();
    bench.force_close.cancel();
    assert_eq!(word.await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_panic_after_the_sinks_word_ends_nothing() {
    let bench = bench(vec![Scripted::new("well", [])]);
    let dropped = Arc::new(AtomicBool::new(false));
    struct Delivery(Arc<AtomicBool>);
    impl Drop for Delivery {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let delivery = Delivery(Arc::clone(&dropped));
    let answer: Answer = Box::new(move |_| {
        let _held = delivery;
        panic!("a copy that cannot be made");
    });
    let (span, generation) = (AttemptSpan::default(), generation());
    bench.sink_buffer.hand_over(SinkItem { finished: finished("t", "{}"), span, generation, answer });
    assert_eq!(bench.give().await.unwrap(), STORED, "the next one has its word");
    assert!(dropped.load(Ordering::Relaxed), "the delivery went back");
    assert_eq!(bench.panics.counted("settlement"), 1);
    assert!(bench.problems().is_empty(), "the sink is well");
}

#[tokio::test(start_paused = true)]
async fn batches_are_bounded_and_keep_their_order() {
    let sink = Scripted::new("well", []);
    let bench = bench(vec![sink.clone()]);
    let words: Vec<_> = (0..BATCH + 3).map(|_| bench.give()).collect();
    for word in words {
        assert_eq!(word.await.unwrap(), STORED);
    }
    assert_eq!(sink.offered(), [BATCH, 3]);
}
