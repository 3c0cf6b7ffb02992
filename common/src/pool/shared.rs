//! What the pool's handles, its workers and its watch have in common.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{runtime, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Backoff, Cause, Completion, Ending, EndingKind, GroupName, Observer, Phase, Placement, PoolConfig, Run,
    Task, TaskContext, TaskId,
    board::{Board, Idle, Staffing},
    cell::{Cell, Current},
    entry::{Entry, Finish, Owner},
    task::Long,
    watch::Alarm,
    wide::ShardEnd,
    worker::{self, Presence},
};

/// What a pool may be given beyond its sizes.
#[derive(Clone, Default)]
pub struct PoolOptions {
    /// Told of starts and endings.
    pub observer: Option<Arc<dyn Observer>>,
    /// Pauses of a worker whose task panicked.
    pub restart: Backoff,
}

pub(super) struct Shared<T: Task, C: Completion<T::Output>> {
    pub(super) config: PoolConfig,
    pub(super) options: PoolOptions,
    pub(super) runtime: runtime::Handle,
    board: Mutex<Board<T, C>>,
    pub(super) alarm: Alarm,
    /// Tasks whose end is known; raised before their completion is called, so that whoever learns of
    /// the end finds the room it made.
    ended: AtomicU64,
    tallies: [AtomicU64; 4],
    pub(super) stuck: AtomicU64,
    /// Cancelled when a shutdown begins.
    pub(super) closing: CancellationToken,
    pub(super) closed: CancellationToken,
    pub(super) baseline: OnceLock<Counts>,
}

/// Endings by kind, at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) ended: u64,
    /// Not started, interrupted, abandoned, panicked.
    pub(super) rare: [u64; 4],
}

pub(super) enum Next<T> {
    Start(Start<T>),
    Leave,
}

/// A task ready to run; its other half is in the worker's slot.
pub(super) struct Start<T> {
    pub(super) task: T,
    pub(super) cx: TaskContext,
    pub(super) placement: Placement,
}

impl<T: Task, C: Completion<T::Output>> Shared<T, C> {
    pub(super) fn new(config: PoolConfig, options: PoolOptions, runtime: runtime::Handle) -> Arc<Self> {
        Arc::new(Self {
            config,
            options,
            runtime,
            board: Mutex::new(Board::new()),
            alarm: Alarm::new(),
            ended: AtomicU64::new(0),
            tallies: Default::default(),
            stuck: AtomicU64::new(0),
            closing: CancellationToken::new(),
            closed: CancellationToken::new(),
            baseline: OnceLock::new(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Board<T, C>> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn staff(&self, board: &mut Board<T, C>) -> Staffing<T, C> {
        board.staff(*self.config.workers.start(), *self.config.workers.end())
    }

    /// Does what `staff` found to be needed. Call without the lock.
    pub(super) fn apply(self: &Arc<Self>, staffing: Staffing<T, C>) {
        match staffing {
            Staffing::Enough => {}
            Staffing::Wake(waker) => waker.wake(),
            Staffing::Grow(cell) => {
                self.runtime.spawn(worker::work(Presence::new(Arc::clone(self), cell)));
            }
        }
    }

    /// Looks whether something can have changed for who waits, and finds workers for it.
    pub(super) fn restaff(self: &Arc<Self>) {
        let staffing = self.staff(&mut self.lock());
        self.apply(staffing);
    }

    pub(super) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    pub(super) fn counts(&self) -> Counts {
        let rare = self.tallies.each_ref().map(|tally| tally.load(Ordering::Acquire));
        Counts { ended: self.ended(), rare }
    }

    /// The worker's next task, or its registration as idle.
    pub(super) fn next(self: &Arc<Self>, cell: &Arc<Cell<T, C>>, cx: &mut Context<'_>) -> Poll<Next<T>> {
        let mut board = self.lock();
        if cell.reach.leave.load(Ordering::Acquire) {
            return Poll::Ready(Next::Leave);
        }
        let Some(entry) = board.lane.take() else {
            // Nothing is startable and nothing new comes in; what waits for its group's cap is taken
            // by the worker that frees it.
            if board.phase > Phase::Open {
                return Poll::Ready(Next::Leave);
            }
            board.forget_idle(cell.index);
            let since = Instant::now();
            board.idle.push_back(Idle { index: cell.index, since, waker: cx.waker().clone() });
            let spare = board.alive > *self.config.workers.start();
            drop(board);
            if spare {
                self.alarm.ring_by(since + self.config.idle_timeout);
            }
            return Poll::Pending;
        };
        // In the slot before the board is released: at no moment is the task in neither.
        let (start, wake_at) = self.install(cell, entry);
        let staffing = self.staff(&mut board);
        drop(board);
        self.apply(staffing);
        if let Some(at) = wake_at {
            self.alarm.ring_by(at);
        }
        Poll::Ready(Next::Start(start))
    }

    fn install(&self, cell: &Cell<T, C>, entry: Entry<T, C>) -> (Start<T>, Option<Instant>) {
        let Entry { seq, id, run, placement, group, shard, width, submitted, task, owner } = entry;
        let epoch = cell.signal.begin();
        let observer = self.options.observer.as_deref();
        let mut long = None;
        let since = match run {
            Run::Short if observer.is_none() => None,
            Run::Short | Run::Long { .. } => Some(Instant::now()),
        };
        if let (Run::Long { deadline }, Some(since)) = (run, since) {
            let deadline = since + deadline.unwrap_or(self.config.default_deadline);
            long = Some(Long { signal: Arc::clone(&cell.signal), epoch, deadline, token: OnceLock::new() });
        }
        let deadline = long.as_ref().map(|long| long.deadline);
        if let (Some(observer), Some(since), Some(submitted)) = (observer, since, submitted) {
            observer.started(since - submitted, placement);
        }
        if let Owner::One(Finish { handle: Some(handle), .. }) = &owner {
            handle.start();
        } else if let Owner::Wide(wide) = &owner {
            wide.started();
        }
        let cx = TaskContext { id: id.clone(), shard, width, long };
        let current = Current {
            id,
            seq,
            run,
            placement,
            group,
            shard: (shard, width),
            epoch,
            since,
            deadline,
            limit: None,
            owner,
        };
        cell.lock().current = Some(current);
        (Start { task, cx, placement }, deadline)
    }

    /// The running task is over and out of its worker's slot.
    pub(super) fn end_current(self: &Arc<Self>, current: Current<T, C>, ending: Ending<T::Output>) {
        let Current { id, seq, group, since, owner, .. } = current;
        if let (Some(observer), Some(since)) = (self.options.observer.as_deref(), since) {
            observer.ended(since.elapsed(), ending.kind());
        }
        if let Some(group) = &group {
            // Room for the next of the group before anybody hears of this end.
            let staffing = {
                let mut board = self.lock();
                board.lane.release(group);
                self.staff(&mut board)
            };
            self.apply(staffing);
        }
        self.end(&id, seq, group.as_ref(), owner, ending);
    }

    /// A task that waited is over.
    pub(super) fn end_waiting(self: &Arc<Self>, entry: Entry<T, C>, cause: Cause) {
        let Entry { seq, id, group, shard, task, owner, .. } = entry;
        // The task's own destructor is user code.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(task)));
        match owner {
            Owner::Wide(wide) if shard == 0 => {
                if let Some(finish) = wide.never_started() {
                    self.conclude(&id, group.as_ref(), finish, Ending::NotStarted { cause });
                }
            }
            // Its siblings started, so the task as a whole was.
            owner @ Owner::Wide(_) => {
                self.end(&id, seq, group.as_ref(), owner, Ending::GaveUp { cause, stuck: false });
            }
            owner @ Owner::One(_) => {
                self.end(&id, seq, group.as_ref(), owner, Ending::NotStarted { cause });
            }
        }
    }

    fn end(
        self: &Arc<Self>,
        id: &TaskId,
        seq: u64,
        group: Option<&GroupName>,
        owner: Owner<T, C>,
        ending: Ending<T::Output>,
    ) {
        match owner {
            Owner::One(finish) => self.conclude(id, group, finish, ending),
            Owner::Wide(wide) => match wide.shard_ended(ending) {
                ShardEnd::Continue => {}
                ShardEnd::StopSiblings => {
                    self.stop_where(Cause::Stopped, |other, _, _| other == seq);
                }
                ShardEnd::Last { finish, parts } => {
                    let ending = match parts {
                        Err(failure) => failure,
                        Ok((outputs, told)) => joined::<T>(outputs, told),
                    };
                    self.conclude(id, group, finish, ending);
                }
            },
        }
    }

    /// The one place where a task's end is counted and told.
    fn conclude(&self, id: &TaskId, group: Option<&GroupName>, finish: Finish<C>, ending: Ending<T::Output>) {
        let Finish { mut completion, handle } = finish;
        let kind = ending.kind();
        if kind != EndingKind::Finished {
            self.tallies[rare(kind)].fetch_add(1, Ordering::Release);
        }
        self.ended.fetch_add(1, Ordering::Release);
        let outcome = handle.is_some().then(|| ending.outcome());
        if matches!(ending, Ending::Panicked { .. } | Ending::GaveUp { .. }) {
            let undo = catch_unwind(AssertUnwindSafe(|| completion.compensate(id, &ending)));
            if undo.is_err() {
                tracing::error!(pool = self.config.name, task = %id, "the compensation hook panicked");
            }
        }
        if catch_unwind(AssertUnwindSafe(|| completion.complete(ending))).is_err() {
            tracing::error!(pool = self.config.name, task = %id, "the completion panicked");
        }
        if let (Some(handle), Some(outcome)) = (handle, outcome) {
            handle.end(outcome);
        }
        if let Some(group) = group {
            self.lock().lane.ended(group);
        }
    }

    /// A written-off worker's task returned after all.
    pub(super) fn came_back(&self) {
        self.stuck.fetch_sub(1, Ordering::AcqRel);
    }

    /// Pauses a worker whose task panicked; a shutdown cuts the pause short.
    pub(super) async fn restart(&self, pause: Duration) {
        {
            let mut board = self.lock();
            board.restarts += 1;
            board.restarting += 1;
        }
        // Counted down also when the runtime drops the worker here.
        let _restarting = Restarting(self);
        tokio::select! {
            biased;
            () = self.closing.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    /// The worker is gone. `cut_off` when its runtime dropped it: nobody can be hired any more.
    pub(super) fn leave(self: &Arc<Self>, cell: &Arc<Cell<T, C>>, cut_off: bool) {
        let (staffing, orphans) = {
            let mut board = self.lock();
            if !board.dismiss(cell) {
                return;
            }
            if !cut_off {
                (self.staff(&mut board), Vec::new())
            } else if board.alive == 0 {
                board.phase = board.phase.max(Phase::Hard);
                let orphans = board.lane.extract(|_| true);
                board.draining += usize::from(!orphans.is_empty());
                (Staffing::Enough, orphans)
            } else {
                (Staffing::Enough, Vec::new())
            }
        };
        self.apply(staffing);
        if orphans.is_empty() {
            self.settle_closed();
        } else {
            self.hand_back(orphans, Cause::Shutdown);
        }
    }

    /// Ends tasks that waited. The caller raised `draining` when it took them out.
    pub(super) fn hand_back(self: &Arc<Self>, entries: Vec<Entry<T, C>>, cause: Cause) {
        for entry in entries {
            self.end_waiting(entry, cause);
        }
        self.lock().draining -= 1;
        self.settle_closed();
    }

    /// Closes the pool for good if its shutdown has nothing left to wait for.
    pub(super) fn settle_closed(&self) {
        let mut board = self.lock();
        let over = board.phase > Phase::Open && board.alive == 0 && board.draining == 0;
        if over && board.lane.len() == 0 && board.phase != Phase::Closed {
            board.phase = Phase::Closed;
            drop(board);
            self.closed.cancel();
        }
    }
}

struct Restarting<'a, T: Task, C: Completion<T::Output>>(&'a Shared<T, C>);

impl<T: Task, C: Completion<T::Output>> Drop for Restarting<'_, T, C> {
    fn drop(&mut self) {
        self.0.lock().restarting -= 1;
    }
}

fn joined<T: Task>(outputs: Vec<T::Output>, told: Option<Cause>) -> Ending<T::Output> {
    match catch_unwind(AssertUnwindSafe(|| outputs.into_iter().reduce(T::join))) {
        Ok(Some(output)) => Ending::Finished { output, told },
        Ok(None) | Err(_) => Ending::Panicked { message: "joining the shards' outputs panicked".to_owned() },
    }
}

const fn rare(kind: EndingKind) -> usize {
    match kind {
        EndingKind::Finished | EndingKind::NotStarted => 0,
        EndingKind::Interrupted => 1,
        EndingKind::Abandoned => 2,
        EndingKind::Panicked => 3,
    }
}
