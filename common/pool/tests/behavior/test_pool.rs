//! A pool of scripted tasks, and channels that report their starts and endings.

use std::{
    ops::RangeInclusive,
    sync::{Arc, Mutex},
    time::Duration,
};

use garenne_pool::{
    Completion, Ending, Handle, Outcome, Pool, PoolConfig, PoolOptions, Refusal, Spec, Task, TaskContext,
    TaskId,
};
use tokio::{
    runtime,
    sync::{Notify, mpsc, oneshot},
};

/// Behavior of a task when it runs.
pub(crate) enum Behavior {
    /// Returns its number.
    Return(u32),
    /// Waits for the sender, then returns its number. Ignores cancellation.
    Hold(oneshot::Receiver<()>, u32),
    /// Waits until it is cancelled, then returns the cause as a number.
    AwaitCancel,
    /// Waits for ever and ignores cancellation.
    IgnoreCancel,
    /// Panics.
    Panic,
    /// Blocks its thread until the sender sends.
    Block(std::sync::mpsc::Receiver<()>),
    /// Blocks with `block_in_place`, so that the other tasks of the runtime move to another thread.
    BlockInPlace(std::sync::mpsc::Receiver<()>),
    /// Can be sharded. Each shard waits for the notification and returns `1 << shard`, or panics if it is named.
    Shards { go: Arc<Notify>, panics: Option<u32> },
    /// Can be sharded. At each notification, each shard records whether other tasks wait.
    AskWhetherTasksWait { ask: Arc<Notify>, answers: Arc<Mutex<Vec<(u32, bool)>>> },
}

pub(crate) struct TestTask {
    pub(crate) behavior: Behavior,
    pub(crate) started: Option<mpsc::UnboundedSender<String>>,
}

impl Task for TestTask {
    type Output = u32;

    async fn run(self, cx: TaskContext) -> u32 {
        if let Some(started) = &self.started {
            let id = match cx.width() {
                1 => cx.id().to_string(),
                width => format!("{} {}/{width}", cx.id(), cx.shard()),
            };
            started.send(id).unwrap();
        }
        match self.behavior {
            Behavior::Return(number) => number,
            Behavior::Hold(go, number) => {
                go.await.unwrap();
                number
            }
            Behavior::AwaitCancel => {
                cx.token().cancelled().await;
                assert_eq!(cx.cause(), Some(cx.cancelled().await));
                cx.cancelled().await as u32
            }
            Behavior::IgnoreCancel => std::future::pending().await,
            Behavior::Panic => panic!("test panic"),
            Behavior::Block(go) => {
                go.recv().unwrap();
                7
            }
            Behavior::BlockInPlace(go) => {
                tokio::task::block_in_place(|| go.recv().unwrap());
                7
            }
            Behavior::AskWhetherTasksWait { ask, answers } => loop {
                tokio::select! {
                    () = ask.notified() => answers.lock().unwrap().push((cx.shard(), cx.tasks_wait())),
                    cause = cx.cancelled() => return cause as u32,
                }
            },
            Behavior::Shards { panics, .. } if panics == Some(cx.shard()) => panic!("test panic"),
            Behavior::Shards { go, .. } => {
                tokio::select! {
                    () = go.notified() => 1 << cx.shard(),
                    cause = cx.cancelled() => 100 + cause as u32,
                }
            }
        }
    }

    fn label(&self) -> Option<&'static str> {
        match self.behavior {
            Behavior::Hold(..) => Some("hold"),
            // `resume_unwind` skips the panic hook, which would print a backtrace.
            Behavior::IgnoreCancel => std::panic::resume_unwind(Box::new("no name")),
            _ => None,
        }
    }

    fn shard(&self) -> Option<Self> {
        match &self.behavior {
            Behavior::Shards { go, panics } => Some(Self {
                behavior: Behavior::Shards { go: Arc::clone(go), panics: *panics },
                started: self.started.clone(),
            }),
            Behavior::AskWhetherTasksWait { ask, answers } => Some(Self {
                behavior: Behavior::AskWhetherTasksWait {
                    ask: Arc::clone(ask),
                    answers: Arc::clone(answers),
                },
                started: self.started.clone(),
            }),
            _ => None,
        }
    }

    fn join(first: u32, next: u32) -> u32 {
        first + next
    }
}

/// Reports the ending, and what was compensated before.
pub(crate) struct End {
    id: String,
    ended: mpsc::UnboundedSender<(String, Ending<u32>)>,
    compensated: mpsc::UnboundedSender<(TaskId, Outcome)>,
}

impl Completion<u32> for End {
    fn complete(self, ending: Ending<u32>) {
        // The test may have ended.
        let _ = self.ended.send((self.id, ending));
    }

    fn compensate(&mut self, id: &TaskId, ending: &Ending<u32>) {
        let _ = self.compensated.send((id.clone(), ending.outcome()));
    }
}

pub(crate) struct TestPool {
    pub(crate) pool: Pool<TestTask, End>,
    endings: mpsc::UnboundedReceiver<(String, Ending<u32>)>,
    ended: mpsc::UnboundedSender<(String, Ending<u32>)>,
    starts: mpsc::UnboundedReceiver<String>,
    started: mpsc::UnboundedSender<String>,
    pub(crate) compensated: mpsc::UnboundedReceiver<(TaskId, Outcome)>,
    compensate_sender: mpsc::UnboundedSender<(TaskId, Outcome)>,
}

pub(crate) fn config(queue: usize, workers: RangeInclusive<usize>) -> PoolConfig {
    PoolConfig {
        name: "test".to_owned(),
        queue,
        workers,
        idle_timeout: Duration::from_secs(60),
        default_deadline: Duration::from_secs(30),
        grace: Duration::from_secs(2),
    }
}

impl TestPool {
    pub(crate) fn new(queue: usize, workers: RangeInclusive<usize>) -> Self {
        Self::with(config(queue, workers), PoolOptions::default(), runtime::Handle::current())
    }

    pub(crate) fn with(config: PoolConfig, options: PoolOptions, tasks: runtime::Handle) -> Self {
        let pool = Pool::start_with(config, tasks, options).unwrap();
        let (ended, endings) = mpsc::unbounded_channel();
        let (started, starts) = mpsc::unbounded_channel();
        let (compensate_sender, compensated) = mpsc::unbounded_channel();
        Self { pool, endings, ended, starts, started, compensated, compensate_sender }
    }

    pub(crate) fn parts(&self, id: &TaskId, behavior: Behavior) -> (TestTask, End) {
        let end = End {
            id: id.to_string(),
            ended: self.ended.clone(),
            compensated: self.compensate_sender.clone(),
        };
        (TestTask { behavior, started: Some(self.started.clone()) }, end)
    }

    pub(crate) fn submit(&self, spec: Spec, behavior: Behavior) -> Result<Handle, Refusal> {
        let (job, end) = self.parts(&spec.id, behavior);
        self.pool.submit(spec, job, end).map_err(|refused| refused.reason)
    }

    /// Submits a task that waits. It returns when the sender sends.
    pub(crate) fn hold(&self, spec: Spec) -> oneshot::Sender<()> {
        let (go, hold) = oneshot::channel();
        self.submit(spec, Behavior::Hold(hold, 0)).unwrap();
        go
    }

    pub(crate) async fn ending(&mut self) -> (String, Ending<u32>) {
        self.endings.recv().await.unwrap()
    }

    pub(crate) async fn start(&mut self) -> String {
        self.starts.recv().await.unwrap()
    }

    /// The ids of the tasks that started since the last call, sorted, when the pool has nothing left to do.
    pub(crate) async fn starts(&mut self) -> Vec<String> {
        settle().await;
        let mut starts = Vec::new();
        while let Ok(id) = self.starts.try_recv() {
            starts.push(id);
        }
        starts.sort_unstable();
        starts
    }

    /// The tasks that ended since the last call, when the pool has nothing left to do.
    pub(crate) async fn ended(&mut self) -> Vec<(String, Ending<u32>)> {
        settle().await;
        let mut endings = Vec::new();
        while let Ok(ending) = self.endings.try_recv() {
            endings.push(ending);
        }
        endings
    }
}

/// Waits until the pool has nothing left to do: a paused clock only advances when no task can run.
pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

pub(crate) const fn finished(output: u32) -> Ending<u32> {
    Ending::Finished { output, cancelled_by: None }
}
