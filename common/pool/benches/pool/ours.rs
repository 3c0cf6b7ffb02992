//! The pool under measurement.

use std::{
    collections::VecDeque,
    hint::black_box,
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use garenne_pool::{
    Completion, Ending, EndingKind, Observer, Placement, Pool, PoolConfig, PoolOptions, Run, Spec, Task,
    TaskContext, TaskId,
};
use tokio::{runtime::Runtime, sync::Notify};

use super::harness::{Measured, Watch};

/// The work of the measured task.
#[derive(Clone, Copy)]
pub(crate) enum Load {
    Empty,
    Factorial(u64),
}

impl Load {
    pub(crate) fn work(self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Factorial(n) => (1..=black_box(n)).fold(1, u64::wrapping_mul),
        }
    }
}

pub(crate) struct Job(pub(crate) Load);

impl Task for Job {
    type Output = u64;

    async fn run(self, _cx: TaskContext) -> u64 {
        self.0.work()
    }
}

/// Counts a group down; shared by its tasks.
pub(crate) struct Countdown {
    left: AtomicUsize,
    done: Notify,
}

impl Countdown {
    /// Leaked, so that the benchmark does not measure a reference count.
    pub(crate) fn new() -> &'static Self {
        Box::leak(Box::new(Self { left: AtomicUsize::new(0), done: Notify::new() }))
    }

    pub(crate) fn start(&self, tasks: usize) {
        self.left.store(tasks, Ordering::Release);
    }

    pub(crate) fn one(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.done.notify_one();
        }
    }

    pub(crate) async fn wait(&self) {
        self.done.notified().await;
    }
}

#[derive(Clone)]
pub(crate) struct Count(pub(crate) &'static Countdown);

impl Completion<u64> for Count {
    fn complete(self, ending: Ending<u64>) {
        assert!(matches!(ending, Ending::Finished { .. }));
        self.0.one();
    }
}

/// As much as a metrics registry does per task: two histograms and a counter.
#[derive(Default)]
pub(crate) struct Metrics {
    wait: AtomicU64,
    run: AtomicU64,
    ended: AtomicU64,
}

impl Observer for Metrics {
    fn started(&self, waited: Duration, _placement: Placement) {
        self.wait.fetch_add(waited.subsec_nanos().into(), Ordering::Relaxed);
    }

    fn ended(&self, ran: Duration, _ending: EndingKind) {
        self.run.fetch_add(ran.subsec_nanos().into(), Ordering::Relaxed);
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) fn start(
    runtime: &Runtime,
    queue: usize,
    workers: RangeInclusive<usize>,
    observed: bool,
) -> Pool<Job, Count> {
    let config = PoolConfig {
        name: "bench".to_owned(),
        queue,
        workers,
        idle_timeout: Duration::from_secs(60),
        default_deadline: Duration::from_secs(60),
        grace: Duration::from_secs(2),
    };
    let observer = observed.then(|| Arc::new(Metrics::default()) as Arc<dyn Observer>);
    let options = PoolOptions { observer, ..PoolOptions::default() };
    let _control = runtime.enter();
    Pool::start_with(config, runtime.handle().clone(), options).expect("the sizes agree")
}

/// How a group is submitted.
#[derive(Clone, Copy)]
pub(crate) enum Submit {
    OneByOne,
    Together,
}

/// Submits groups and waits for each, from a task of the runtime.
pub(crate) fn groups(
    runtime: &Arc<Runtime>,
    pool: Pool<Job, Count>,
    run: Run,
    load: Load,
    (groups, group): (u64, u64),
    submit: Submit,
) -> impl FnMut() -> Measured + 'static {
    let runtime = Arc::clone(runtime);
    let countdown = Countdown::new();
    move || {
        let pool = pool.clone();
        let measured = runtime.spawn(async move {
            let mut together = VecDeque::with_capacity(group as usize);
            let watch = Watch::start();
            for _ in 0..groups {
                countdown.start(group as usize);
                let tasks = (0..group).map(|number| {
                    (Spec { run, ..Spec::short(TaskId::number(number)) }, Job(load), Count(countdown))
                });
                match submit {
                    Submit::OneByOne => {
                        for (spec, job, count) in tasks {
                            pool.submit_detached(spec, job, count).expect("the queue holds a group");
                        }
                    }
                    Submit::Together => {
                        together.extend(tasks);
                        pool.submit_each(&mut together).expect("the queue holds a group");
                    }
                }
                countdown.wait().await;
            }
            watch.stop()
        });
        runtime.block_on(measured).expect("nothing panics here")
    }
}

/// One task at a time: submit it, wait for its handle.
pub(crate) fn round_trips(
    runtime: &Arc<Runtime>,
    pool: Pool<Job, Count>,
    run: Run,
    trips: u64,
) -> impl FnMut() -> Measured + 'static {
    let runtime = Arc::clone(runtime);
    let countdown = Countdown::new();
    move || {
        let pool = pool.clone();
        let measured = runtime.spawn(async move {
            let watch = Watch::start();
            for number in 0..trips {
                countdown.start(1);
                let spec = Spec { run, ..Spec::short(TaskId::number(number)) };
                pool.submit_detached(spec, Job(Load::Empty), Count(countdown)).expect("the pool is empty");
                countdown.wait().await;
            }
            watch.stop()
        });
        runtime.block_on(measured).expect("nothing panics here")
    }
}
