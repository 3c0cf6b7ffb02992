//! What the pool's handles, its workers and its watch have in common.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::runtime;
use tokio_util::sync::CancellationToken;

use super::{
    Backoff, Cause, Completion, EndingKind, Observer, Phase, PoolConfig, Task,
    board::{Board, Staffing},
    cell::Cell,
    entry::Entry,
    watch::Alarm,
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
    /// Of that runtime.
    threads: usize,
    board: Mutex<Board<T, C>>,
    pub(super) alarm: Alarm,
    /// Tasks whose end no worker of the runtime told.
    elsewhere: AtomicU64,
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

impl<T: Task, C: Completion<T::Output>> Shared<T, C> {
    pub(super) fn new(config: PoolConfig, options: PoolOptions, runtime: runtime::Handle) -> Arc<Self> {
        let threads = runtime.metrics().num_workers();
        Arc::new(Self {
            config,
            threads,
            options,
            runtime,
            board: Mutex::new(Board::new()),
            alarm: Alarm::new(),
            elsewhere: AtomicU64::new(0),
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

    /// Whether another worker could set to work: there is one, and a thread of the runtime for it.
    pub(super) fn seats(&self, board: &Board<T, C>) -> bool {
        board.running() < self.threads && (!board.idle.is_empty() || board.alive < *self.config.workers.end())
    }

    /// Finds a worker for what waits, if another could set to work. More of them than the runtime has
    /// threads would only be switched between, so a worker whose task waits calls the next.
    pub(super) fn staff(&self, board: &mut Board<T, C>) -> Staffing<T, C> {
        let (min, max) = (*self.config.workers.start(), *self.config.workers.end());
        if board.phase == Phase::Open && board.alive < min {
            return Staffing::Grow(board.hire());
        }
        if board.lane.has_work() && board.running() < self.threads {
            board.call(max)
        } else {
            Staffing::Enough
        }
    }

    /// Whether the watch has to be set ticking: a batch is held, or workers are held back for want of
    /// threads, and either may turn out wrong.
    pub(super) fn wants_tick(&self, board: &mut Board<T, C>, batch: bool) -> bool {
        let wanted = batch || *self.config.workers.end() > self.threads;
        wanted && !std::mem::replace(&mut board.ticking, wanted)
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

    pub(super) fn ended_elsewhere(&self) -> u64 {
        self.elsewhere.load(Ordering::Acquire)
    }

    /// Counts an end before it is told. `counted` when its worker has, but for the kind.
    pub(super) fn count(&self, kind: EndingKind, counted: bool) {
        if kind != EndingKind::Finished {
            self.tallies[rare(kind)].fetch_add(1, Ordering::Release);
        }
        if !counted {
            self.elsewhere.fetch_add(1, Ordering::Release);
        }
    }

    pub(super) fn counts(&self, board: &Board<T, C>) -> Counts {
        let ended = board.ended + board.uncounted() + self.ended_elsewhere();
        Counts { ended, rare: self.tallies.each_ref().map(|tally| tally.load(Ordering::Acquire)) }
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
                let orphans = board.extract(|_| true);
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
        if over && board.waiting() == 0 && board.phase != Phase::Closed {
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

const fn rare(kind: EndingKind) -> usize {
    match kind {
        EndingKind::Finished | EndingKind::NotStarted => 0,
        EndingKind::Interrupted => 1,
        EndingKind::Abandoned => 2,
        EndingKind::Panicked => 3,
    }
}
