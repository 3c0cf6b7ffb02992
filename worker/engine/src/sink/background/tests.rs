use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use garenne_protocol::heartbeat::SinkBeat;
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::{
    consumer::Delivery,
    settlement::tests::{TestSettler, test_settler},
    sink::{FinishedTask, SinkAnswer, SinkError},
    testing::finished,
};

/// Notes the steps of its background work.
#[derive(Default)]
struct Working {
    steps: Mutex<Vec<&'static str>>,
    panics: AtomicUsize,
    ignores_stop: AtomicBool,
    /// Held by a test to delay writes.
    writing: tokio::sync::Mutex<()>,
    context: Mutex<Option<SinkContext>>,
}

impl Sink for Working {
    fn name(&self) -> &'static str {
        "working"
    }

    fn write<'a>(&'a self, batch: &'a [FinishedTask]) -> BoxFuture<'a, Result<Vec<SinkAnswer>, SinkError>> {
        async {
            let _writing = self.writing.lock().await;
            Ok(vec![SinkAnswer::Stored; batch.len()])
        }
        .boxed()
    }

    fn background<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, ()> {
        async move {
            self.steps.lock().unwrap().push("began");
            *self.context.lock().unwrap() = Some(context.clone());
            if self.panics.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
                panic!("once");
            }
            context.stopping().await;
            assert!(context.is_stopping());
            self.steps.lock().unwrap().push("stopping");
            if self.ignores_stop.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            sleep(Duration::from_secs(1)).await;
            self.steps.lock().unwrap().push("ended");
        }
        .boxed()
    }
}

impl Working {
    fn steps(&self) -> Vec<&'static str> {
        self.steps.lock().unwrap().clone()
    }

    fn context(&self) -> SinkContext {
        self.context.lock().unwrap().clone().expect("the work has begun")
    }
}

struct TestState(Arc<AtomicBool>);

impl WorkerState for TestState {
    fn is_consuming(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn is_lane_paused(&self, _: &str) -> bool {
        false
    }

    fn lanes(&self) -> Vec<LaneFigures> {
        vec![LaneFigures::new("fast", 4, 1, 2, 7)]
    }

    fn backlog<'a>(&'a self, lane: &'a str) -> BoxFuture<'a, Option<u64>> {
        std::future::ready((lane == "fast").then_some(9)).boxed()
    }
}

fn start(sink: &Arc<Working>, is_consuming: &Arc<AtomicBool>) -> (TestSettler, BackgroundWork) {
    let test = test_settler(vec![sink.clone()], "amqp://127.0.0.1:1/%2f", crate::handler::Routes::default());
    let (settler, worker) = (&test.settler, Arc::new(TestState(Arc::clone(is_consuming))) as _);
    let publisher = settler.task_publisher();
    let work = settler.sink_buffer.start_background(&publisher, &worker, &settler.force_close);
    (test, work)
}

#[tokio::test(start_paused = true)]
async fn the_work_ends_by_itself_once_it_is_told_to_stop() {
    let sink = Arc::new(Working::default());
    let (_test, mut work) = start(&sink, &Arc::default());
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(sink.steps(), ["began"]);
    let stopped = Instant::now();
    work.stop().await;
    assert_eq!(
        (sink.steps(), stopped.elapsed()),
        (vec!["began", "stopping", "ended"], Duration::from_secs(1))
    );
}

#[tokio::test(start_paused = true)]
async fn a_force_close_ends_work_that_does_not_stop() {
    let sink = Arc::new(Working::default());
    sink.ignores_stop.store(true, Ordering::Relaxed);
    let (test, mut work) = start(&sink, &Arc::default());
    assert!(timeout(Duration::from_secs(60), work.stop()).await.is_err());
    test.settler.force_close.cancel();
    timeout(Duration::from_secs(1), work.stop()).await.unwrap();
    assert_eq!(sink.steps(), ["began", "stopping"]);
}

#[tokio::test(start_paused = true)]
async fn the_work_starts_again_after_a_panic() {
    let sink = Arc::new(Working::default());
    sink.panics.store(2, Ordering::Relaxed);
    let (_test, mut work) = start(&sink, &Arc::default());
    sleep(Duration::from_secs(5)).await;
    assert_eq!(sink.steps(), ["began"; 3]);
    work.stop().await;
    assert_eq!(sink.steps().last(), Some(&"ended"));
}

#[tokio::test(start_paused = true)]
async fn a_part_that_fails_is_reported_until_it_succeeds() {
    let (sink, is_consuming) = (Arc::new(Working::default()), Arc::new(AtomicBool::new(true)));
    let (test, _work) = start(&sink, &is_consuming);
    sleep(Duration::from_secs(1)).await;
    let (context, buffer) = (sink.context(), &test.settler.sink_buffer);
    let up = SinkBeat { up: true, away_since: None, trouble: None };
    assert_eq!((buffer.problems().count(), &buffer.beats()["working"]), (0, &up));
    context.failed("relay", "no answer");
    context.failed("relay", "refused");
    context.failed("monitor", "refused");
    let problems: Vec<_> = buffer.problems().collect();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[1].starts_with("sink working relay fails: refused (since 20"), "{problems:?}");
    let beat = buffer.beats().remove("working").unwrap();
    assert!(!beat.up && beat.away_since.is_some(), "{beat:?}");
    // Only a failed write means that results do not arrive.
    assert!(context.is_receiving());
    assert_eq!(context.lanes(), [LaneFigures::new("fast", 4, 1, 2, 7)]);
    assert_eq!((context.backlog("fast").await, context.backlog("slow").await), (Some(9), None));
    context.succeeded("monitor");
    assert_eq!(buffer.problems().count(), 1);
    context.succeeded("relay");
    assert_eq!((buffer.problems().count(), &buffer.beats()["working"]), (0, &up));
    is_consuming.store(false, Ordering::Relaxed);
    assert!(!context.is_receiving());
}

#[tokio::test(start_paused = true)]
async fn results_do_not_arrive_while_a_write_takes_long() {
    let (sink, is_consuming) = (Arc::new(Working::default()), Arc::new(AtomicBool::new(true)));
    let (test, _work) = start(&sink, &is_consuming);
    let held = sink.writing.lock().await;
    let (task, buffer) =
        (test.task_of(Delivery::for_test(&test.generation, 1)), test.settler.sink_buffer.clone());
    let storing = tokio::spawn(buffer.offer(&task, finished("t", "{}")).common());
    sleep(Duration::from_secs(2)).await;
    assert!(sink.context().is_receiving());
    sleep(Duration::from_secs(2)).await;
    assert!(!sink.context().is_receiving());
    assert_eq!(test.settler.sink_buffer.problems().count(), 0);
    drop(held);
    assert_eq!(storing.await.unwrap(), Some(SinkAnswer::Stored));
    assert!(sink.context().is_receiving());
}
