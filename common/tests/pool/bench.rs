//! Tasks that do as they are told, and a log of what became of them.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use garenne_common::pool::{
    Completion, Ending, Handle, Outcome, Pool, PoolConfig, PoolOptions, Refusal, Spec, Task, TaskContext,
    TaskId,
};
use tokio::{
    runtime,
    sync::{Notify, mpsc, oneshot},
};

/// What a test task does once it runs.
pub(crate) enum Act {
    /// Returns its number.
    Return(u32),
    /// Waits to be let go, then returns; deaf to its token.
    Hold(oneshot::Receiver<()>, u32),
    /// Waits until told, then returns the cause as a number.
    Obey,
    /// Ignores everything, but gives the processor back.
    Deaf,
    /// Panics.
    Panic,
    /// Blocks its thread until let go.
    Block(std::sync::mpsc::Receiver<()>),
    /// The same, letting the runtime's other tasks move to another thread.
    BlockInPlace(std::sync::mpsc::Receiver<()>),
    /// Can be sharded. Each shard waits to be let go and returns its number; the first named panics.
    Shards { go: Arc<Notify>, panics: Option<u32> },
}

pub(crate) struct Job {
    pub(crate) act: Act,
    pub(crate) started: Option<mpsc::UnboundedSender<String>>,
}

impl Task for Job {
    type Output = u32;

    async fn run(self, cx: TaskContext) -> u32 {
        if let Some(started) = &self.started {
            let id = match cx.width() {
                1 => cx.id().to_string(),
                width => format!("{} {}/{width}", cx.id(), cx.shard()),
            };
            started.send(id).unwrap();
        }
        match self.act {
            Act::Return(number) => number,
            Act::Hold(go, number) => {
                go.await.unwrap();
                number
            }
            Act::Obey => {
                cx.token().cancelled().await;
                assert_eq!(cx.cause(), Some(cx.cancelled().await));
                cx.cancelled().await as u32
            }
            Act::Deaf => std::future::pending().await,
            Act::Panic => panic!("as asked"),
            Act::Block(go) => {
                go.recv().unwrap();
                7
            }
            Act::BlockInPlace(go) => {
                tokio::task::block_in_place(|| go.recv().unwrap());
                7
            }
            Act::Shards { panics, .. } if panics == Some(cx.shard()) => panic!("as asked"),
            Act::Shards { go, .. } => {
                tokio::select! {
                    () = go.notified() => 1 << cx.shard(),
                    cause = cx.cancelled() => 100 + cause as u32,
                }
            }
        }
    }

    fn label(&self) -> Option<&'static str> {
        match self.act {
            Act::Hold(..) => Some("hold"),
            // Does not go through the panic hook, which would print each.
            Act::Deaf => std::panic::resume_unwind(Box::new("no name")),
            _ => None,
        }
    }

    fn shard(&self) -> Option<Self> {
        match &self.act {
            Act::Shards { go, panics } => Some(Self {
                act: Act::Shards { go: Arc::clone(go), panics: *panics },
                started: self.started.clone(),
            }),
            _ => None,
        }
    }

    fn join(first: u32, next: u32) -> u32 {
        first + next
    }
}

/// Passes the ending on, and what had to be undone before.
pub(crate) struct End {
    id: String,
    ended: mpsc::UnboundedSender<(String, Ending<u32>)>,
    undone: mpsc::UnboundedSender<(TaskId, Outcome)>,
}

impl Completion<u32> for End {
    fn complete(self, ending: Ending<u32>) {
        // The test may have looked at all it wanted to see.
        let _ = self.ended.send((self.id, ending));
    }

    fn compensate(&mut self, id: &TaskId, ending: &Ending<u32>) {
        let _ = self.undone.send((id.clone(), ending.outcome()));
    }
}

pub(crate) struct Bench {
    pub(crate) pool: Pool<Job, End>,
    endings: mpsc::UnboundedReceiver<(String, Ending<u32>)>,
    ended: mpsc::UnboundedSender<(String, Ending<u32>)>,
    starts: mpsc::UnboundedReceiver<String>,
    started: mpsc::UnboundedSender<String>,
    pub(crate) undone: mpsc::UnboundedReceiver<(TaskId, Outcome)>,
    undo: mpsc::UnboundedSender<(TaskId, Outcome)>,
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

impl Bench {
    pub(crate) fn new(queue: usize, workers: RangeInclusive<usize>) -> Self {
        Self::with(config(queue, workers), PoolOptions::default(), runtime::Handle::current())
    }

    pub(crate) fn with(config: PoolConfig, options: PoolOptions, tasks: runtime::Handle) -> Self {
        let pool = Pool::start_with(config, tasks, options).unwrap();
        let (ended, endings) = mpsc::unbounded_channel();
        let (started, starts) = mpsc::unbounded_channel();
        let (undo, undone) = mpsc::unbounded_channel();
        Self { pool, endings, ended, starts, started, undone, undo }
    }

    pub(crate) fn parts(&self, id: &TaskId, act: Act) -> (Job, End) {
        let end = End { id: id.to_string(), ended: self.ended.clone(), undone: self.undo.clone() };
        (Job { act, started: Some(self.started.clone()) }, end)
    }

    pub(crate) fn submit(&self, spec: Spec, act: Act) -> Result<Handle, Refusal> {
        let (job, end) = self.parts(&spec.id, act);
        self.pool.submit(spec, job, end).map_err(|refused| refused.reason)
    }

    /// Submits a task that waits, and answers how to let it go.
    pub(crate) fn hold(&self, spec: Spec) -> oneshot::Sender<()> {
        let (go, hold) = oneshot::channel();
        self.submit(spec, Act::Hold(hold, 0)).unwrap();
        go
    }

    pub(crate) async fn ending(&mut self) -> (String, Ending<u32>) {
        self.endings.recv().await.unwrap()
    }

    pub(crate) async fn start(&mut self) -> String {
        self.starts.recv().await.unwrap()
    }

    /// What has started since the last look, once nothing is left to do.
    pub(crate) async fn starts(&mut self) -> Vec<String> {
        settle().await;
        let mut starts = Vec::new();
        while let Ok(id) = self.starts.try_recv() {
            starts.push(id);
        }
        starts.sort_unstable();
        starts
    }

    /// What has ended since the last look, once nothing is left to do.
    pub(crate) async fn ended(&mut self) -> Vec<(String, Ending<u32>)> {
        settle().await;
        let mut endings = Vec::new();
        while let Ok(ending) = self.endings.try_recv() {
            endings.push(ending);
        }
        endings
    }
}

/// The paused clock only moves on when nothing is left to do, so this waits for all of it.
pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

pub(crate) const fn finished(output: u32) -> Ending<u32> {
    Ending::Finished { output, told: None }
}
