//! Everything under the pool's one lock: what waits, who is idle, how far the shutdown is.

use std::{collections::VecDeque, sync::Arc, task::Waker};

use tokio::time::Instant;

use super::{Completion, Phase, Task, cell::Cell, lane::Lane};

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
    /// Workers without work: the last to become idle at the back, taken from there so that few stay
    /// warm and the rest time out.
    pub(super) idle: VecDeque<Idle>,
    /// When `SoftTimeout` turns hard, and with which grace.
    pub(super) hard_at: Option<(Instant, std::time::Duration)>,
    /// Threads of control that still have completions of drained tasks to call.
    pub(super) draining: usize,
}

pub(super) struct Idle {
    pub(super) index: usize,
    pub(super) since: Instant,
    pub(super) waker: Waker,
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
            idle: VecDeque::new(),
            hard_at: None,
            draining: 0,
        }
    }

    /// Finds a worker for what waits, if something does: an idle one, else a new one.
    pub(super) fn staff(&mut self, min: usize, max: usize) -> Staffing<T, C> {
        let work = self.lane.has_work();
        if work && let Some(idle) = self.idle.pop_back() {
            return Staffing::Wake(idle.waker);
        }
        let wanted = (work && self.alive < max) || (self.phase == Phase::Open && self.alive < min);
        if wanted && self.phase != Phase::Closed { Staffing::Grow(self.hire()) } else { Staffing::Enough }
    }

    fn hire(&mut self) -> Arc<Cell<T, C>> {
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

    /// The worker no longer counts. False when it had been written off before.
    pub(super) fn dismiss(&mut self, cell: &Arc<Cell<T, C>>) -> bool {
        let place = &mut self.workers[cell.index];
        if !place.as_ref().is_some_and(|there| Arc::ptr_eq(there, cell)) {
            return false;
        }
        *place = None;
        self.alive -= 1;
        self.forget_idle(cell.index);
        true
    }

    pub(super) fn forget_idle(&mut self, index: usize) {
        self.idle.retain(|idle| idle.index != index);
    }
}
