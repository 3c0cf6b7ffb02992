use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use prometheus::Registry;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{
    writer::{MAX_BATCH, SLOW_WRITE},
    *,
};
use crate::{
    consumer::Delivery, sink::SinkError, testing::finished, worker::handler_runtime::HandlerRuntime,
};

/// How a sink treats a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Store,
    Unavailable,
    Panic,
    PanicLater,
    TooFew,
    TooMany,
}

/// Does one action per batch, and stores once all are done.
struct Scripted {
    name: &'static str,
    actions: Mutex<VecDeque<Action>>,
    /// The ids of the tasks in the batches it was offered.
    batches: Mutex<Vec<Vec<String>>>,
}

impl Scripted {
    fn new(name: &'static str, actions: impl IntoIterator<Item = Action>) -> Arc<Self> {
        Arc::new(Self { name, actions: Mutex::new(actions.into_iter().collect()), batches: Mutex::default() })
    }

    /// The sizes of the batches it was offered.
    fn offered(&self) -> Vec<usize> {
        self.batches.lock().unwrap().iter().map(Vec::len).collect()
    }
}

impl Sink for Scripted {
    fn name(&self) -> &'static str {
        self.name
    }

    fn write<'a>(&'a self, batch: &'a [FinishedTask]) -> BoxFuture<'a, Result<Vec<SinkAnswer>, SinkError>> {
        self.batches.lock().unwrap().push(batch.iter().map(|it| it.envelope.id.to_string()).collect());
        let action = self.actions.lock().unwrap().pop_front().unwrap_or(Action::Store);
        assert!(action != Action::Panic, "before the future");
        async move {
            let stored = |count| Ok(vec![SinkAnswer::Stored; count]);
            match action {
                Action::Unavailable => Err(SinkError { sink: self.name, detail: "gone".into() }),
                Action::PanicLater => panic!("inside the future"),
                Action::TooFew => stored(batch.len() - 1),
                Action::TooMany => stored(batch.len() + 1),
                Action::Store | Action::Panic => stored(batch.len()),
            }
        }
        .boxed()
    }
}

/// Does not answer until it is notified. Counts its writes.
#[derive(Default)]
struct Frozen(tokio::sync::Notify, AtomicUsize);

impl Sink for Frozen {
    fn name(&self) -> &'static str {
        "frozen"
    }

    fn write<'a>(&'a self, batch: &'a [FinishedTask]) -> BoxFuture<'a, Result<Vec<SinkAnswer>, SinkError>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        async {
            self.0.notified().await;
            Ok(vec![SinkAnswer::Stored; batch.len()])
        }
        .boxed()
    }
}

struct TestBuffer {
    sink_buffer: SinkBuffer,
    registry: Registry,
    force_close: CancellationToken,
    generation: Arc<ChannelGeneration>,
}

fn test_buffer(sinks: Vec<Arc<dyn Sink>>) -> TestBuffer {
    test_buffer_on(sinks, &Handle::current())
}

fn test_buffer_on(sinks: Vec<Arc<dyn Sink>>, runtime: &Handle) -> TestBuffer {
    let (registry, force_close) = (Registry::new(), CancellationToken::new());
    let sink_buffer = SinkBuffer::open(sinks, &force_close, &SinkMetrics::register(&registry), runtime);
    TestBuffer { sink_buffer, registry, force_close, generation: ChannelGeneration::mock() }
}

impl TestBuffer {
    fn submit(&self) -> JoinHandle<Option<SinkAnswer>> {
        self.submit_of(&self.generation)
    }

    fn submit_of(&self, generation: &Arc<ChannelGeneration>) -> JoinHandle<Option<SinkAnswer>> {
        self.submit_as("t", generation)
    }

    fn submit_as(&self, id: &str, generation: &Arc<ChannelGeneration>) -> JoinHandle<Option<SinkAnswer>> {
        let (sink_buffer, finished) = (&self.sink_buffer, finished(id, "{}"));
        let task = InFlight {
            lane: "test".into(),
            delivery: Delivery::for_test(generation, 1),
            envelope: Arc::clone(&finished.envelope),
            span: AttemptSpan::default(),
            batch: None,
        };
        tokio::spawn(sink_buffer.offer(&task, finished).common())
    }

    /// The failing parts, without the time since which they fail.
    fn problems(&self) -> Vec<String> {
        let cause = |problem: String| problem.split_once(" (since 20").expect("a time").0.to_owned();
        self.sink_buffer.problems().map(cause).collect()
    }

    fn metric(&self, name: &str, sink: &str) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name).expect("a metric");
        let series = family.get_metric().iter().find(|it| it.get_label()[0].value() == sink);
        let series = series.expect("a series");
        series.get_gauge().get_value() + series.get_counter().get_value()
    }
}

const STORED: Option<SinkAnswer> = Some(SinkAnswer::Stored);

/// Blocks its thread until it is released, at most for two seconds.
struct Blocking {
    began: tokio::sync::Notify,
    release: Mutex<std::sync::mpsc::Receiver<()>>,
}

impl Sink for Blocking {
    fn name(&self) -> &'static str {
        "blocking"
    }

    fn write<'a>(&'a self, batch: &'a [FinishedTask]) -> BoxFuture<'a, Result<Vec<SinkAnswer>, SinkError>> {
        async move {
            self.began.notify_one();
            let released = self.release.lock().unwrap().recv_timeout(Duration::from_secs(2));
            let answer = released.map_or(SinkAnswer::Refused("not released".into()), |()| SinkAnswer::Stored);
            Ok(vec![answer; batch.len()])
        }
        .boxed()
    }
}

/// This test has one thread, as the broker's side of a worker has. It goes on while the sink blocks.
#[tokio::test]
async fn a_sink_that_blocks_its_thread_does_not_block_the_thread_of_the_broker() {
    let handlers = HandlerRuntime::start().unwrap();
    let (releasing, release) = std::sync::mpsc::channel();
    let sink = Arc::new(Blocking { began: tokio::sync::Notify::new(), release: Mutex::new(release) });
    let buffer = test_buffer_on(vec![Arc::clone(&sink) as _], &handlers.handle());
    let answer = buffer.submit();
    sink.began.notified().await;
    releasing.send(()).unwrap();
    assert_eq!(answer.await.unwrap(), STORED);
}

#[tokio::test(start_paused = true)]
async fn without_a_sink_results_are_answered_immediately() {
    let test = test_buffer(Vec::new());
    assert!(test.sink_buffer.is_empty());
    assert_eq!(test.submit().await.unwrap(), STORED);
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_sink_is_retried_and_reported() {
    let sink = Scripted::new("flaky", [Action::Unavailable; 5]);
    let test = test_buffer(vec![sink.clone()]);
    assert!(!test.sink_buffer.is_empty());
    assert_eq!((test.problems().len(), test.metric("garenne_sink_up", "flaky")), (0, 1.0));
    let answer = test.submit();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(test.problems(), ["sink flaky takes no results: sink flaky is unavailable: gone"]);
    assert_eq!(test.metric("garenne_sink_up", "flaky"), 0.0);
    assert_eq!(answer.await.unwrap(), STORED);
    assert_eq!((test.problems().len(), test.metric("garenne_sink_up", "flaky")), (0, 1.0));
    assert_eq!(test.metric("garenne_sink_panics_total", "flaky"), 0.0);
    assert_eq!(sink.offered(), [1; 6]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_offered_again_with_growing_pauses_after_a_panic() {
    let sink =
        Scripted::new("fragile", [Action::Panic, Action::PanicLater, Action::Panic, Action::PanicLater]);
    let test = test_buffer(vec![sink.clone()]);
    let begun = Instant::now();
    let answers: Vec<_> = (0..6).map(|_| test.submit()).collect();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(test.problems(), ["sink fragile takes no results: it panicked: before the future"]);
    assert_eq!(test.metric("garenne_sink_up", "fragile"), 0.0);
    for answer in answers {
        assert_eq!(answer.await.unwrap(), STORED);
    }
    assert_eq!(sink.offered(), [6; 5], "the same batch each time");
    assert!(begun.elapsed() >= Duration::from_millis(750), "{:?}", begun.elapsed());
    assert_eq!(test.metric("garenne_sink_panics_total", "fragile"), 4.0);
    assert_eq!((test.problems().len(), test.metric("garenne_sink_up", "fragile")), (0, 1.0));
}

#[tokio::test(start_paused = true)]
async fn results_are_offered_again_in_the_order_in_which_their_tasks_ended() {
    let sink = Scripted::new("flaky", [Action::Unavailable; 2]);
    let test = test_buffer(vec![sink.clone()]);
    let answers = ["a", "b", "c"].map(|id| test.submit_as(id, &test.generation));
    sleep(Duration::from_millis(1)).await;
    let later = test.submit_as("d", &test.generation);
    for answer in answers.into_iter().chain([later]) {
        assert_eq!(answer.await.unwrap(), STORED);
    }
    let batches = sink.batches.lock().unwrap();
    assert_eq!(*batches, [vec!["a", "b", "c"], vec!["a", "b", "c", "d"], vec!["a", "b", "c", "d"]]);
}

#[tokio::test(start_paused = true)]
async fn a_success_resets_the_pause_before_the_next_attempt() {
    let mut actions = vec![Action::Unavailable; 6];
    actions.extend([Action::Store, Action::Unavailable]);
    let test = test_buffer(vec![Scripted::new("flaky", actions)]);
    for longest in [Duration::from_secs(10), Duration::from_millis(100)] {
        let begun = Instant::now();
        assert_eq!(test.submit().await.unwrap(), STORED);
        assert!(begun.elapsed() <= longest, "{:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrong_number_of_answers_counts_as_a_failure() {
    for (action, told) in [
        (Action::TooFew, "it gave 1 answers for 2 results"),
        (Action::TooMany, "it gave 3 answers for 2 results"),
    ] {
        let sink = Scripted::new("careless", [action]);
        let test = test_buffer(vec![sink.clone()]);
        let answers = [test.submit(), test.submit()];
        sleep(Duration::from_millis(1)).await;
        let problem = test.problems().remove(0);
        assert!(problem.starts_with(&format!("sink careless takes no results: {told}")), "{problem}");
        for answer in answers {
            assert_eq!(answer.await.unwrap(), STORED);
        }
        assert_eq!((sink.offered(), test.problems().len()), (vec![2, 2], 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_sink_does_not_delay_the_others() {
    let (failing, healthy) = (Scripted::new("failing", [Action::Panic; 40]), Scripted::new("healthy", []));
    let test = test_buffer(vec![failing.clone(), healthy.clone()]);
    let first = test.submit();
    sleep(Duration::from_millis(1)).await;
    let second = test.submit();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(healthy.offered(), [1, 1]);
    assert_eq!(test.metric("garenne_sink_up", "healthy"), 1.0);
    assert_eq!(test.problems().len(), 1);
    assert!(!first.is_finished() && !second.is_finished(), "one sink has not stored them");
    failing.actions.lock().unwrap().clear();
    assert_eq!((first.await.unwrap(), second.await.unwrap()), (STORED, STORED));
}

#[tokio::test(start_paused = true)]
async fn a_conflict_in_one_sink_is_the_answer_for_the_result() {
    struct Conflicting;

    impl Sink for Conflicting {
        fn name(&self) -> &'static str {
            "conflicting"
        }

        fn write<'a>(&'a self, _: &'a [FinishedTask]) -> BoxFuture<'a, Result<Vec<SinkAnswer>, SinkError>> {
            std::future::ready(Ok(vec![SinkAnswer::Conflict("no".into())])).boxed()
        }
    }

    let test = test_buffer(vec![Arc::new(Conflicting), Scripted::new("healthy", [])]);
    assert_eq!(test.submit().await.unwrap(), Some(SinkAnswer::Conflict("no".into())));
}

#[tokio::test(start_paused = true)]
async fn reconnects_do_not_accumulate_results_for_an_unavailable_sink() {
    let sink = Scripted::new("unavailable", [Action::Unavailable; 1000]);
    let test = test_buffer(vec![sink.clone()]);
    let mut submitted: Vec<JoinHandle<_>> = Vec::new();
    let mut generations: Vec<Arc<ChannelGeneration>> = Vec::new();
    // Each reconnect ends a channel and delivers a full prefetch on the next.
    for _ in 0..50 {
        generations.iter().for_each(|generation| generation.end());
        let generation = ChannelGeneration::mock();
        submitted.extend((0..20).map(|_| test.submit_of(&generation)));
        generations.push(generation);
        sleep(Duration::from_secs(2)).await;
        let held = submitted.iter().filter(|submitted| !submitted.is_finished()).count();
        assert!(held <= 20, "{held} are held");
    }
    assert!(submitted.len() == 1000 && submitted.pop().unwrap().now_or_never().is_none());
    assert!(sink.offered().iter().all(|size| *size <= 20), "{:?}", sink.offered());
}

#[tokio::test(start_paused = true)]
async fn a_healthy_sink_stores_results_of_dead_channels() {
    let test = test_buffer(vec![Scripted::new("healthy", [])]);
    test.generation.end();
    assert_eq!(test.submit().await.unwrap(), STORED, "the work of a long task is not lost");
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_hangs_is_reported_and_results_of_dead_channels_do_not_wait_for_it() {
    let sink = Arc::new(Frozen::default());
    let test = test_buffer(vec![sink.clone()]);
    let first = test.submit();
    sleep(Duration::from_millis(1)).await;
    let (dead, alive) = (ChannelGeneration::mock(), ChannelGeneration::mock());
    let (second, third) = (test.submit_of(&dead), test.submit_of(&alive));
    dead.end();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(second.await.unwrap(), None);
    assert_eq!(test.problems().len(), 0);
    sleep(SLOW_WRITE).await;
    assert_eq!(test.problems(), ["sink frozen takes no results: it has not answered for 30 s"]);
    assert!(!third.is_finished());
    sink.0.notify_one();
    assert_eq!(first.await.unwrap(), STORED);
    assert_eq!(test.problems().len(), 0);
    sink.0.notify_one();
    assert_eq!(third.await.unwrap(), STORED);
    assert_eq!(sink.1.load(Ordering::Relaxed), 2, "no second write before the first has returned");
}

#[tokio::test(start_paused = true)]
async fn a_force_close_gives_up_results_of_an_unavailable_sink() {
    let test = test_buffer(vec![Scripted::new("unavailable", [Action::Unavailable; 100])]);
    let answer = test.submit();
    sleep(Duration::from_secs(60)).await;
    test.force_close.cancel();
    assert_eq!(answer.await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_force_close_gives_up_results_of_a_sink_that_hangs() {
    let test = test_buffer(vec![Arc::new(Frozen::default())]);
    let answer = test.submit();
    test.force_close.cancel();
    assert_eq!(answer.await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn batches_are_bounded() {
    let sink = Scripted::new("healthy", []);
    let test = test_buffer(vec![sink.clone()]);
    let answers: Vec<_> = (0..MAX_BATCH + 3).map(|_| test.submit()).collect();
    for answer in answers {
        assert_eq!(answer.await.unwrap(), STORED);
    }
    assert_eq!(sink.offered(), [MAX_BATCH, 3]);
}
