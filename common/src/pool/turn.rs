//! Whose turn it is: how workers come by their tasks.
//!
//! A worker takes one task at a time while others could take the next. Only when every seat is taken
//! (as many workers are at work as the runtime has threads, or as the pool has workers) does it take
//! a batch, sized so that tasks like the last ones would be through within [`SLICE`]: the lock on the
//! board, which all share, is then paid once for many. Tasks of a batch are given back the moment
//! their worker has to wait, are taken over by workers without work, and are moved on by the watch
//! when their worker has not got on, so that none of them waits for its batch.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, MutexGuard, OnceLock, atomic::Ordering},
    task::{Context, Poll},
    time::{Duration, Instant as StdInstant},
};

use tokio::time::Instant;

use super::{
    Completion, Phase, Placement, Run, Task, TaskContext,
    board::Board,
    cell::{Cell, Slot},
    entry::{Entry, Finish, Owner},
    shared::Shared,
    task::Long,
};

/// What a batch should take.
const SLICE: Duration = Duration::from_micros(20);
/// Most tasks in a batch.
const BATCH: usize = 64;

pub(super) enum Next<T> {
    Start(Start<T>),
    Leave,
}

/// A task ready to run; its other half is in the worker's slot.
pub(super) struct Start<T> {
    pub(super) task: T,
    pub(super) cx: TaskContext,
    pub(super) placement: Placement,
    /// How long it waited; only known to a pool that is observed.
    pub(super) waited: Option<Duration>,
}

/// What a worker knows of how quick its tasks are.
#[derive(Default)]
pub(super) struct Pace {
    size: usize,
    began: Option<(StdInstant, usize)>,
}

impl Pace {
    /// How many tasks to take now. Doubles from one up to what fits into the slice. Measured by the
    /// real clock, also under a paused one: it is about processor time.
    fn size(&mut self) -> (usize, StdInstant) {
        let now = StdInstant::now();
        let (fits, before) = match self.began {
            None => (1, 1),
            Some((began, tasks)) => {
                let each = (now - began).as_nanos() / tasks.max(1) as u128;
                (usize::try_from(SLICE.as_nanos() / each.max(1)).unwrap_or(BATCH), self.size)
            }
        };
        self.size = fits.min(before * 2).clamp(1, BATCH);
        (self.size, now)
    }

    /// The next task is not one of a run of quick ones.
    pub(super) fn forget(&mut self) {
        self.began = None;
    }
}

impl<T: Task, C: Completion<T::Output>> Shared<T, C> {
    /// The worker's next task, or its registration as idle. Called when its batch is used up.
    pub(super) fn next(
        self: &Arc<Self>,
        cell: &Arc<Cell<T, C>>,
        pace: &mut Pace,
        cx: &mut Context<'_>,
    ) -> Poll<Next<T>> {
        let mut board = self.lock();
        // Still there if it was woken for nothing; nobody must call it when it has set to work.
        board.idle.take(cell.index);
        if cell.reach.leave.load(Ordering::Acquire) {
            return Poll::Ready(Next::Leave);
        }
        let mut slot = cell.lock();
        board.ended += std::mem::take(&mut slot.uncounted);
        let Some(entry) = board.lane.take().or_else(|| steal(&mut board, &mut slot, cell.index)) else {
            drop(slot);
            pace.forget();
            return self.no_work(board, cell, cx);
        };
        let batched = entry.placement == Placement::Runtime && board.lane.has_plain() && !self.seats(&board);
        slot.push_first(entry);
        if batched {
            let (size, now) = pace.size();
            slot.extend(board.lane.take_plain(size - 1));
            pace.began = Some((now, slot.waiting()));
        }
        let batched = slot.waiting() > 1;
        // In the slot before the board is released: at no moment is the task in neither.
        let start = self.start(cell, slot, None, |start| start);
        board.activate(cell);
        let staffing = self.staff(&mut board);
        let tick = self.wants_tick(&mut board, batched);
        drop(board);
        self.apply(staffing);
        if tick {
            self.alarm.ring_by(Instant::now() + super::watch::TICK);
        }
        Poll::Ready(start.map_or(Next::Leave, Next::Start))
    }

    fn no_work(
        &self,
        mut board: MutexGuard<'_, Board<T, C>>,
        cell: &Cell<T, C>,
        cx: &Context<'_>,
    ) -> Poll<Next<T>> {
        // Nothing is startable and nothing new comes in; what waits for its group's cap is taken by
        // the worker that frees it.
        if board.phase > Phase::Open {
            return Poll::Ready(Next::Leave);
        }
        board.active.retain(|index| *index != cell.index);
        // Workers of the minimum stay; and more are only hired when nobody is idle, so that those
        // who came to be idle before need no time either.
        let spare = board.alive > *self.config.workers.start();
        let since = spare.then(Instant::now);
        board.idle.push(cell.index, since, cx.waker().clone());
        drop(board);
        if let Some(since) = since {
            self.alarm.ring_by(since + self.config.idle_timeout);
        }
        Poll::Pending
    }

    /// Marks the first of the batch as running, takes what runs out of it, and goes on with that when the
    /// slot is released. With a continuation and no answer, because one that two paths build in pieces is
    /// read back before its pieces have reached the cache: a fifth of an empty task's turn.
    #[inline(always)]
    pub(super) fn start<R>(
        &self,
        cell: &Cell<T, C>,
        mut slot: MutexGuard<'_, Slot<T, C>>,
        now: Option<Instant>,
        go_on: impl FnOnce(Start<T>) -> R,
    ) -> Option<R> {
        let (entry, running) = slot.start()?;
        match &entry.owner {
            Owner::One(Finish { handle: Some(handle), .. }) => handle.start(),
            Owner::One(_) => {}
            Owner::Wide(wide) => wide.started(),
        }
        let task = entry.task.take()?;
        // The task's own code: what it panics with here is not worth a worker.
        running.label = catch_unwind(AssertUnwindSafe(|| task.label())).unwrap_or_default();
        let (id, shard, width, placement) = (entry.id.clone(), entry.shard, entry.width, entry.placement);
        // Short tasks, observed or not, on paths of their own: they are taken a million times a second and the
        // other's fields would be moved about unset.
        let short = matches!(entry.run, Run::Short);
        if short && entry.submitted.is_none() {
            drop(slot);
            let cx = TaskContext { id, shard, width, long: None };
            return Some(go_on(Start { task, cx, placement, waited: None }));
        }
        let since = now.unwrap_or_else(Instant::now);
        running.since = Some(since);
        let waited = entry.submitted.map(|submitted| since.saturating_duration_since(submitted));
        if short {
            drop(slot);
            let cx = TaskContext { id, shard, width, long: None };
            return Some(go_on(Start { task, cx, placement, waited }));
        }
        let long = entry.deadline(running.since, self.config.default_deadline).map(|deadline| {
            let signal = Arc::clone(&cell.signal);
            let epoch = signal.begin();
            Long { signal, epoch, deadline, token: OnceLock::new() }
        });
        drop(slot);
        Some(go_on(Start { task, cx: TaskContext { id, shard, width, long }, placement, waited }))
    }

    /// The worker stops for a while: what is left of its batch goes back.
    pub(super) fn put_back(self: &Arc<Self>, cell: &Cell<T, C>) {
        let staffing = {
            let mut board = self.lock();
            board.put_back(cell);
            self.staff(&mut board)
        };
        self.apply(staffing);
    }

    /// The worker's task waits for something: its seat is free, and what is left of its batch.
    pub(super) fn park(self: &Arc<Self>, cell: &Cell<T, C>) {
        let staffing = {
            let mut board = self.lock();
            board.deactivate(cell);
            if !cell.reach.parked.swap(true, Ordering::Relaxed) {
                board.parked += 1;
            }
            self.staff(&mut board)
        };
        self.apply(staffing);
    }

    /// The task that waited is over.
    pub(super) fn unpark(&self, cell: &Cell<T, C>) {
        let mut board = self.lock();
        if cell.reach.parked.swap(false, Ordering::Relaxed) {
            board.parked -= 1;
            board.activate(cell);
        }
    }
}

/// Takes over the older half of what somebody's batch still holds.
fn steal<T: Task, C: Completion<T::Output>>(
    board: &mut Board<T, C>,
    into: &mut Slot<T, C>,
    own: usize,
) -> Option<Entry<T, C>> {
    for holder in board.active.iter().filter(|holder| **holder != own) {
        let Some(victim) = &board.workers[*holder] else { continue };
        let mut from = victim.lock();
        let half = from.waiting().div_ceil(2);
        let mut stolen = from.drain(half);
        if let Some(first) = stolen.next() {
            into.extend(stolen);
            return Some(first);
        }
    }
    None
}
