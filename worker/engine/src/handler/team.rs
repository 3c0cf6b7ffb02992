//! The workers that share one task: the one that runs it, and idle workers that help.

use std::{
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use garenne_common::supervise::catch;
use garenne_pool as pool;
use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::TaskError;

/// How often a helper without work checks whether another task needs its worker.
const IDLE_CHECK: Duration = Duration::from_millis(5);

/// The state that the workers of one task share.
#[derive(Default)]
pub(crate) struct Team(watch::Sender<Work>);

#[derive(Clone, Default)]
enum Work {
    /// The handler does something that cannot be shared.
    #[default]
    None,
    Units(Arc<dyn Units>),
    /// The handler has returned.
    Ended,
}

/// Units of work that any worker may run.
trait Units: Send + Sync {
    /// Runs a unit that no worker has taken yet. Returns false if there is none.
    fn run_one(&self) -> bool;
}

struct Spread<T, F> {
    unit: F,
    count: usize,
    /// The first unit that no worker has taken.
    next: AtomicUsize,
    /// The result of each unit, or the message of its panic.
    results: mpsc::UnboundedSender<(usize, Result<T, String>)>,
}

impl<T: Send, F: Fn(usize) -> T + Send + Sync> Units for Spread<T, F> {
    fn run_one(&self) -> bool {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        if index >= self.count {
            return false;
        }
        // The receiver is gone if the task was cancelled.
        let _ = self.results.send((index, catch(|| (self.unit)(index))));
        true
    }
}

/// Ends the work that the helpers of a team see, however the step that offered it ends.
pub(crate) struct EndOnDrop<'a>(&'a Team, Work);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.0.send_replace(std::mem::take(&mut self.1));
    }
}

impl Team {
    /// Sends the helpers away when the guard is dropped.
    pub(crate) fn end_on_drop(&self) -> EndOnDrop<'_> {
        EndOnDrop(self, Work::Ended)
    }

    /// Runs units of the task on a helper, until the task ends or another task waits for a worker.
    pub(crate) async fn help(&self, cx: &pool::TaskContext) {
        let must_leave = || cx.tasks_wait() || cx.cause().is_some();
        let mut offers = self.0.subscribe();
        loop {
            let work = offers.borrow_and_update().clone();
            match work {
                Work::Ended => return,
                Work::None => {}
                Work::Units(units) => {
                    while units.run_one() {
                        if must_leave() {
                            return;
                        }
                    }
                }
            }
            loop {
                tokio::select! {
                    biased;
                    // The sender lives as long as this reference to the team.
                    _ = offers.changed() => break,
                    () = sleep(IDLE_CHECK) => if must_leave() { return },
                }
            }
        }
    }
}

/// Runs `unit` for each index below `count`, on this worker and the helpers of `team`. Returns the results by index.
pub(super) async fn spread<T: Send + 'static>(
    team: Option<&Team>,
    token: &CancellationToken,
    count: usize,
    unit: impl Fn(usize) -> T + Send + Sync + 'static,
) -> Result<Vec<T>, TaskError> {
    let (sender, mut received) = mpsc::unbounded_channel();
    let units = Arc::new(Spread { unit, count, next: AtomicUsize::new(0), results: sender });
    let _offer = team.map(|team| {
        team.0.send_replace(Work::Units(Arc::<Spread<_, _>>::clone(&units)));
        EndOnDrop(team, Work::None)
    });
    while !token.is_cancelled() && units.run_one() {
        tokio::task::coop::consume_budget().await;
    }
    let mut results: Vec<Option<T>> = (0..count).map(|_| None).collect();
    for _ in 0..count {
        let (index, result) = tokio::select! {
            biased;
            Some(result) = received.recv() => result,
            // A helper may be within a unit; its result is not needed.
            () = token.cancelled() => return Err(TaskError::interrupted()),
        };
        // The task fails as if its own worker had run the unit.
        results[index] = Some(result.unwrap_or_else(|panic| resume_unwind(Box::new(panic))));
    }
    Ok(results.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        num::NonZeroUsize,
        sync::{Barrier, Condvar, Mutex},
    };

    use garenne_protocol::task::{ContentType, Kind, NewTask};
    use serde::Deserialize;
    use tokio::sync::mpsc::UnboundedReceiver;

    use super::*;
    use crate::{
        TaskContext, TaskOptions, Worker, WorkerConfig, json_payload,
        panics::lock,
        testing::{TestOutcome, TestWorker},
    };

    #[derive(Deserialize)]
    struct Anything {}
    json_payload!(Anything, "any.thing");

    /// A worker whose kind `any.thing` spreads `count` units over `workers` workers.
    fn spreads<T: serde::Serialize + Send + 'static>(
        workers: usize,
        count: usize,
        unit: impl Fn(usize) -> T + Send + Sync + 'static,
    ) -> TestWorker {
        let unit = Arc::new(unit);
        let handler = move |cx: TaskContext, _: Anything| {
            let unit = Arc::clone(&unit);
            async move { cx.spread(count, move |index| unit(index)).await }
        };
        let options = TaskOptions::long().cpu_bound().helpers(0, 3);
        let builder = Worker::builder(WorkerConfig::default()).handle_with(handler, options);
        let builder =
            builder.handle_kind("small", async |_: Anything| Ok::<_, TaskError>(1), TaskOptions::short());
        TestWorker::new(builder).unwrap().workers(NonZeroUsize::new(workers).unwrap())
    }

    fn json(outcome: TestOutcome) -> String {
        let TestOutcome::Done(output) = outcome else { panic!("{outcome:?}") };
        output.json.get().to_owned()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn units_run_on_several_workers_and_keep_their_order() {
        // Three units run at once: none of them returns before.
        let together = Barrier::new(3);
        let worker = spreads(3, 6, move |index| {
            together.wait();
            index * index
        });
        assert_eq!(json(worker.run("any.thing", "{}").await), "[0,1,4,9,16,25]");
        let alone = spreads(1, 6, |index| index * index);
        assert_eq!(json(alone.run("any.thing", "{}").await), "[0,1,4,9,16,25]");
    }

    /// The units that may return.
    #[derive(Clone, Default)]
    struct Gate(Arc<(Mutex<BTreeSet<usize>>, Condvar)>);

    impl Gate {
        fn open(&self, units: impl IntoIterator<Item = usize>) {
            lock(&self.0.0).extend(units);
            self.0.1.notify_all();
        }
    }

    /// Waits until both workers run a unit. Which of them tells it first is not known.
    async fn first_two(starts: &mut UnboundedReceiver<usize>) {
        let mut units = [starts.recv().await, starts.recv().await];
        units.sort_unstable();
        assert_eq!(units, [Some(0), Some(1)]);
    }

    /// Units that report their start and wait until they may return.
    fn gated_units() -> (impl Fn(usize) -> usize, UnboundedReceiver<usize>, Gate) {
        let (started, starts) = mpsc::unbounded_channel();
        let gate = Gate::default();
        let Gate(opened) = gate.clone();
        let unit = move |index| {
            // The receiver is gone if the test has ended.
            let _ = started.send(index);
            let waiting = opened.1.wait_while(lock(&opened.0), |open| !open.contains(&index));
            drop(waiting.unwrap());
            index
        };
        (unit, starts, gate)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_small_task_gets_the_worker_of_a_helper_at_its_next_unit() {
        let (unit, mut starts, gate) = gated_units();
        let worker = spreads(2, 50, unit);
        let pool = worker.start_pool();
        let new = |kind| NewTask::new(Kind::parse(kind).unwrap(), ContentType::Json, b"{}".to_vec());
        let (large, small) = (new("any.thing"), new("small"));
        let small = async {
            // Both workers run a unit, so the small task waits.
            first_two(&mut starts).await;
            let mut small = Box::pin(worker.run_in(&pool, &small));
            assert!(futures_util::poll!(&mut small).is_pending());
            gate.open([0, 1]);
            let outcome = small.await;
            // Of 50 units two have run, and the task's own worker runs a third one.
            let (last, others) = (starts.recv().await, starts.try_recv());
            gate.open(2..50);
            (json(outcome), last, others.is_err())
        };
        let (large, small) = tokio::join!(worker.run_in(&pool, &large), small);
        assert_eq!(small, ("1".to_owned(), Some(2), true));
        assert_eq!(json(large), format!("{:?}", (0..50).collect::<Vec<_>>()).replace(' ', ""));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_unit_that_panics_on_a_helper_fails_the_task() {
        let together = Barrier::new(2);
        let worker = spreads(2, 2, move |index| {
            together.wait();
            // The helper takes the second unit or the first one.
            let is_helper = index == 1;
            assert!(!is_helper, "unit {index}");
        });
        let TestOutcome::Retry { error, .. } = worker.run("any.thing", "{}").await else {
            panic!("it is retried")
        };
        assert_eq!(error, "the handler panicked: unit 1");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_cancelled_task_does_not_wait_for_its_helpers() {
        let (unit, mut starts, gate) = gated_units();
        let worker = spreads(2, 3, unit);
        let task = async {
            let mut task = NewTask::new(Kind::parse("any.thing").unwrap(), ContentType::Json, b"{}".to_vec());
            task.timeout = Some(Duration::from_millis(50));
            worker.run_task(&task).await
        };
        let release = async {
            first_two(&mut starts).await;
            // One worker goes on to the third unit, the other one stays in its unit until the deadline.
            gate.open([0]);
            assert_eq!(starts.recv().await, Some(2));
            gate.open([2]);
        };
        let (outcome, ()) = tokio::join!(task, release);
        // Lets the thread of the other unit end.
        gate.open([1]);
        assert!(matches!(outcome, TestOutcome::Retry { error, .. } if error == "the deadline passed"));
    }
}
