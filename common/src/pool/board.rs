//! Everything under the pool's one lock: what waits, who is idle, how far the shutdown is.

use std::{
    sync::{Arc, atomic::Ordering},
    task::Waker,
    time::Duration,
};

use tokio::time::Instant;

use super::{Completion, Phase, Task, cell::Cell, entry::Entry, idle::IdleList, lane::Lane};

pub(super) struct Board<T: Task, C: Completion<T::Output>> {
    pub(super) phase: Phase,
    pub(super) lane: Lane<T, C>,
    /// Ever admitted; also the next sequence number.
    pub(super) admitted: u64,
    /// By index; a leaving worker's place is reused.
    pub(super) workers: Vec<Option<Arc<Cell<T, C>>>>,
    pub(super) names: u64,
    /// Workers that have not left and were not written off.
    pub(super) alive: usize,
    pub(super) restarting: usize,
    pub(super) restarts: u64,
    /// Workers whose task waits, or runs on a thread of its own.
    pub(super) parked: usize,
    pub(super) idle: IdleList,
    /// Indexes of workers at work that are not parked: only they hold batches and ends not counted
    /// here. About as many as the runtime has threads.
    pub(super) active: Vec<usize>,
    /// Tasks that ended, as far as counted here.
    pub(super) ended: u64,
    /// Whether the watch looks after batches and seats.
    pub(super) ticking: bool,
    /// When `SoftTimeout` turns hard, and with which grace.
    pub(super) hard_at: Option<(Instant, Duration)>,
    /// Threads of control that still have completions of drained tasks to call.
    pub(super) draining: usize,
}

/// What is to be done once the lock is released.
#[must_use]
pub(super) enum Staffing<T: Task, C: Completion<T::Output>> {
    Enough,
    Wake(Waker),
    Grow(Arc<Cell<T, C>>),
}

impl<T: Task, C: Completion<T::Output>> Board<T, C> {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Open,
            lane: Lane::new(),
            admitted: 0,
            workers: Vec::new(),
            names: 0,
            alive: 0,
            restarting: 0,
            restarts: 0,
            parked: 0,
            idle: IdleList::default(),
            active: Vec::new(),
            ended: 0,
            ticking: false,
            hard_at: None,
            draining: 0,
        }
    }

    /// Workers that are at work and keep a thread of the runtime busy, or are about to.
    pub(super) fn running(&self) -> usize {
        (self.alive - self.idle.len()).saturating_sub(self.restarting + self.parked)
    }

    /// Finds a worker for what waits: an idle one, else a new one.
    pub(super) fn call(&mut self, max: usize) -> Staffing<T, C> {
        if let Some(waker) = self.idle.call_last() {
            Staffing::Wake(waker)
        } else if self.alive < max && self.phase != Phase::Closed {
            Staffing::Grow(self.hire())
        } else {
            Staffing::Enough
        }
    }

    pub(super) fn hire(&mut self) -> Arc<Cell<T, C>> {
        let index = self.workers.iter().position(Option::is_none).unwrap_or(self.workers.len());
        let cell = Arc::new(Cell::new(self.names, index));
        self.names += 1;
        self.alive += 1;
        if index == self.workers.len() {
            self.workers.push(None);
        }
        self.workers[index] = Some(Arc::clone(&cell));
        cell
    }

    /// The worker no longer counts, and what is left of its batch goes back. False when it had been
    /// written off before.
    pub(super) fn dismiss(&mut self, cell: &Arc<Cell<T, C>>) -> bool {
        if !self.workers[cell.index].as_ref().is_some_and(|there| Arc::ptr_eq(there, cell)) {
            return false;
        }
        self.deactivate(cell);
        self.workers[cell.index] = None;
        self.alive -= 1;
        if cell.reach.parked.swap(false, Ordering::Relaxed) {
            self.parked -= 1;
        }
        self.idle.take(cell.index);
        true
    }

    /// What is left of the worker's batch waits for others again.
    pub(super) fn put_back(&mut self, cell: &Cell<T, C>) {
        let mut slot = cell.lock();
        self.lane.put_back(slot.drain(usize::MAX >> 1));
    }

    /// The worker holds no more than what it runs, and counts for nothing.
    pub(super) fn deactivate(&mut self, cell: &Cell<T, C>) {
        let mut slot = cell.lock();
        self.lane.put_back(slot.drain(usize::MAX >> 1));
        self.ended += std::mem::take(&mut slot.uncounted);
        self.active.retain(|index| *index != cell.index);
    }

    pub(super) fn activate(&mut self, cell: &Cell<T, C>) {
        if !self.active.contains(&cell.index) {
            self.active.push(cell.index);
        }
    }

    /// Whether `tasks` more can be admitted. `elsewhere` counts ends that were not a worker's.
    pub(super) fn has_room(&self, tasks: u64, limit: u64, elsewhere: u64) -> bool {
        let open = self.admitted - self.ended - elsewhere + tasks;
        open <= limit || open - self.uncounted() <= limit
    }

    pub(super) fn uncounted(&self) -> u64 {
        let of = |index: &usize| self.workers[*index].as_ref().map_or(0, |cell| cell.lock().uncounted);
        self.active.iter().map(of).sum()
    }

    /// How many tasks wait, those in batches included.
    pub(super) fn waiting(&self) -> usize {
        let held = |index: &usize| self.workers[*index].as_ref().map_or(0, |cell| cell.lock().waiting());
        self.lane.len() + self.active.iter().map(held).sum::<usize>()
    }

    /// Takes out what matches, wherever it waits.
    pub(super) fn extract(&mut self, matches: impl Fn(&Entry<T, C>) -> bool) -> Vec<Entry<T, C>> {
        // Batches first: they are older than what is in the lane.
        let mut out = Vec::new();
        for index in &self.active {
            if let Some(cell) = &self.workers[*index] {
                out.append(&mut cell.lock().extract(&matches));
            }
        }
        out.append(&mut self.lane.extract(matches));
        out
    }
}
