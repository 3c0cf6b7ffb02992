//! The pool's one timer: deadlines, graces, idle workers, and the moment `SoftTimeout` turns hard.
//!
//! A task costs no timer of its own: it only compares its deadline with when the watch wakes anyway.
//! The watch runs where the pool was started, not where its tasks run, so that tasks that never give
//! the processor back cannot stop it.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::{
    Cause, Completion, Ending, Phase, Stop, Task,
    atomic::due::{Due, NEVER},
    board::{Board, Staffing},
    cell::{Cell, Ended, Limit},
    shared::Shared,
    signal::Epoch,
};

/// When the watch wakes next.
pub(super) struct Alarm {
    start: Instant,
    /// Nanoseconds after `start`.
    due: Due,
    rung: Notify,
}

impl Alarm {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), due: Due::new(), rung: Notify::new() }
    }

    /// Makes sure that the watch looks no later than this.
    pub(super) fn ring_by(&self, at: Instant) {
        let after = at.saturating_duration_since(self.start).as_nanos();
        if self.due.no_later_than(u64::try_from(after).unwrap_or(NEVER - 1)) {
            self.rung.notify_one();
        }
    }

    async fn wait(&self) {
        loop {
            match self.due.get() {
                NEVER => self.rung.notified().await,
                next => {
                    let at = self.start + Duration::from_nanos(next);
                    tokio::select! {
                        () = tokio::time::sleep_until(at) => return,
                        () = self.rung.notified() => {}
                    }
                }
            }
        }
    }
}

/// How long a worker may take to drop a future it was asked to drop, before it counts as stuck.
const DROP_TIME: Duration = Duration::from_millis(100);

/// How often batches and seats are looked after, while there are any.
pub(super) const TICK: Duration = Duration::from_millis(5);

/// Serves a pool until it is closed.
pub(super) async fn watch<T: Task, C: Completion<T::Output>>(shared: Arc<Shared<T, C>>) {
    loop {
        tokio::select! {
            () = shared.closed.cancelled() => return,
            () = shared.alarm.wait() => shared.look(),
        }
    }
}

struct Findings<T: Task, C: Completion<T::Output>> {
    now: Instant,
    grace: Duration,
    next: Option<Instant>,
    /// Found past their deadline.
    told: Vec<(Arc<Cell<T, C>>, Epoch)>,
    stuck: Vec<Arc<Cell<T, C>>>,
    given_up: Vec<(Ended<T, C>, Cause)>,
}

impl<T: Task, C: Completion<T::Output>> Findings<T, C> {
    fn look_again(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    fn look_at(&mut self, cell: &Arc<Cell<T, C>>, default_deadline: Duration) {
        let mut slot = cell.lock();
        let Some(mut current) = slot.current() else { return };
        match current.entry.deadline(current.running.since, default_deadline) {
            Some(deadline) if deadline > self.now => self.look_again(deadline),
            Some(_) if current.running.limit.is_none() => {
                current.limit(Cause::Deadline, self.now, self.grace);
                self.told.push((Arc::clone(cell), cell.signal.epoch()));
            }
            _ => {}
        }
        let Some(limit) = &mut current.running.limit else { return };
        let Limit { cause, give_up, asked } = *limit;
        if give_up > self.now {
            self.look_again(give_up);
            return;
        }
        if !asked {
            limit.asked = true;
            cell.ask_to_drop();
        }
        // Inside the task's code at this moment: it had its grace and did not use it.
        if cell.reach.polling.load(Ordering::Relaxed) || give_up + DROP_TIME <= self.now {
            if let Some(ended) = slot.finish() {
                self.stuck.push(Arc::clone(cell));
                self.given_up.push((ended, cause));
            }
        } else {
            self.look_again(give_up + DROP_TIME);
        }
    }
}

impl<T: Task, C: Completion<T::Output>> Shared<T, C> {
    fn look(self: &Arc<Self>) {
        self.alarm.due.clear();
        let now = Instant::now();
        let mut board = self.lock();
        let hard = match board.hard_at {
            Some((at, grace)) if at <= now => Some(Stop::Hard { grace }),
            _ => None,
        };
        let mut findings = Findings {
            now,
            grace: self.config.grace,
            next: board.hard_at.filter(|_| hard.is_none()).map(|(at, _)| at),
            told: Vec::new(),
            stuck: Vec::new(),
            given_up: Vec::new(),
        };
        for cell in board.workers.iter().flatten() {
            findings.look_at(cell, self.config.default_deadline);
        }
        for cell in &findings.stuck {
            board.dismiss(cell);
            self.stuck.fetch_add(1, Ordering::AcqRel);
        }
        // Kept from closing until the ends found here have been told.
        board.draining += 1;
        let idle_until = self.shrink(&mut board, now);
        let (staffing, tick) = self.tick(&mut board);
        drop(board);
        if tick {
            self.alarm.ring_by(now + TICK);
        }
        self.apply(staffing);
        for (cell, epoch) in findings.told.drain(..) {
            cell.signal.tell(epoch, Cause::Deadline);
        }
        for cell in findings.stuck.drain(..) {
            cell.reach.abandoned.notify_one();
        }
        for (ended, cause) in findings.given_up.drain(..) {
            let id = &ended.entry.id;
            let trace_id = ended.entry.trace_id();
            tracing::warn!(pool = self.config.name, task = %id, trace_id, ?cause, "task is stuck; its worker was replaced");
            self.end_current(ended, Ending::GaveUp { cause, stuck: true }, None, false);
        }
        if let Some(hard) = hard {
            self.begin_shutdown(hard);
        }
        for at in findings.next.into_iter().chain(idle_until) {
            self.alarm.ring_by(at);
        }
        self.lock().draining -= 1;
        self.settle_closed();
    }

    /// Moves on what waits behind a worker that has not got on since the last look, and calls a worker
    /// in spite of the runtime's threads seeming taken: one of them may be blocked.
    fn tick(&self, board: &mut Board<T, C>) -> (Staffing<T, C>, bool) {
        let mut holds = false;
        for at in 0..board.active.len() {
            let Some(cell) = board.workers[board.active[at]].clone() else { continue };
            let mut slot = cell.lock();
            let running = slot.current().map(|current| current.entry.seq);
            let stands_still = slot.seen == running;
            slot.seen = running;
            holds |= slot.waiting() > 0;
            drop(slot);
            if stands_still {
                board.put_back(&cell);
            }
        }
        board.ticking = false;
        let tick = board.running() > 0 && self.wants_tick(board, holds);
        let max = *self.config.workers.end();
        (if board.lane.has_work() { board.call(max) } else { self.staff(board) }, tick)
    }

    /// Sends workers home that have been idle for too long; answers when to look again.
    fn shrink(&self, board: &mut Board<T, C>, now: Instant) -> Option<Instant> {
        while board.phase == Phase::Open && board.alive > *self.config.workers.start() {
            let oldest = board.idle.oldest()? + self.config.idle_timeout;
            if oldest > now {
                return Some(oldest);
            }
            let (index, waker) = board.idle.take_oldest()?;
            if let Some(cell) = board.workers[index].clone() {
                cell.reach.leave.store(true, Ordering::Release);
                // It no longer counts from here, or this loop would send home one too many.
                board.dismiss(&cell);
            }
            waker.wake();
        }
        None
    }
}
