//! Orders from outside: stop a task, a worker, a group, the pool.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Cause, Completion, GroupName, Phase, Stop, Task, TaskId, entry::Entry, handle::Control, shared::Shared,
};

impl<T: Task, C: Completion<T::Output>> Shared<T, C> {
    /// Ends what waits and tells what runs, where it matches; answers how many tasks or shards.
    pub(super) fn stop_where(
        self: &Arc<Self>,
        cause: Cause,
        matches: impl Fn(u64, &TaskId, Option<&GroupName>) -> bool,
    ) -> usize {
        let now = Instant::now();
        let matches = |entry: &Entry<T, C>| matches(entry.seq, &entry.id, entry.group.as_ref());
        let mut told = Vec::new();
        let waiting = {
            let mut board = self.lock();
            let waiting = board.extract(matches);
            for cell in board.workers.iter().flatten() {
                if let Some(mut current) = cell.lock().current()
                    && matches(current.entry)
                    && current.running.told(current.entry.run).is_none()
                    && current.limit(cause, now, self.config.grace)
                {
                    told.push((Arc::clone(cell), cell.signal.epoch()));
                }
            }
            board.draining += 1;
            waiting
        };
        let found = waiting.len() + told.len();
        for (cell, epoch) in told {
            cell.signal.tell(epoch, cause);
        }
        self.alarm.ring_by(now + self.config.grace);
        self.hand_back(waiting, cause);
        found
    }

    /// Ends what has waited longer than this and has not started; answers how many tasks.
    pub(super) fn hand_back_waiting(self: &Arc<Self>, longer_than: Duration) -> usize {
        let now = Instant::now();
        let stale = |entry: &Entry<T, C>| {
            entry.shard == 0 && entry.submitted.is_some_and(|at| now.duration_since(at) > longer_than)
        };
        let waiting = {
            let mut board = self.lock();
            let waiting = board.extract(stale);
            board.draining += 1;
            waiting
        };
        let found = waiting.len();
        self.hand_back(waiting, Cause::Shutdown);
        found
    }

    /// In a shutdown, ends what waits in groups that start nothing.
    pub(super) fn hand_back_shut(self: &Arc<Self>) {
        let waiting = {
            let mut board = self.lock();
            if board.phase == Phase::Open {
                return;
            }
            board.draining += 1;
            board.lane.extract_shut()
        };
        self.hand_back(waiting, Cause::Shutdown);
    }

    pub(super) fn begin_shutdown(self: &Arc<Self>, stop: Stop) {
        let now = Instant::now();
        let mut told = Vec::new();
        let mut wake_at = None;
        let (waiting, idle, staffing) = {
            let mut board = self.lock();
            if board.phase == Phase::Closed {
                return;
            }
            if board.phase == Phase::Open {
                // Set before any end that belongs to the shutdown.
                let _ = self.baseline.set(self.counts(&board));
            }
            board.phase = board.phase.max(stop.phase());
            match stop {
                Stop::Light | Stop::Soft => {}
                Stop::SoftTimeout { timeout, grace } => {
                    if board.phase < Phase::Hard && board.hard_at.is_none_or(|(at, _)| now + timeout < at) {
                        board.hard_at = Some((now + timeout, grace));
                        wake_at = Some(now + timeout);
                    }
                }
                Stop::Hard { grace } => {
                    board.hard_at = None;
                    wake_at = Some(now + grace);
                    for cell in board.workers.iter().flatten() {
                        if let Some(mut current) = cell.lock().current()
                            && current.limit(Cause::Shutdown, now, grace)
                        {
                            told.push((Arc::clone(cell), cell.signal.epoch()));
                        }
                    }
                }
            }
            let waiting = match board.phase {
                Phase::Open | Phase::Closed => Vec::new(),
                Phase::Light => board.lane.extract_shut(),
                // A shard whose task has started belongs to what runs, unless nobody may start it.
                Phase::Soft | Phase::SoftTimeout => {
                    let mut waiting = board.extract(|entry| entry.shard == 0);
                    waiting.append(&mut board.lane.extract_shut());
                    waiting
                }
                Phase::Hard => board.extract(|_| true),
            };
            board.draining += 1;
            let idle = board.idle.take_all();
            (waiting, idle, self.staff(&mut board))
        };
        self.closing.cancel();
        for waker in idle {
            waker.wake();
        }
        self.apply(staffing);
        for (cell, epoch) in told {
            cell.signal.tell(epoch, Cause::Shutdown);
        }
        if let Some(at) = wake_at {
            self.alarm.ring_by(at);
        }
        self.hand_back(waiting, Cause::Shutdown);
    }

    /// Sends one worker home: after its current task, or, `now`, as soon as that can be interrupted.
    pub(super) fn stop_worker(self: &Arc<Self>, worker: u64, now: bool) -> bool {
        let at = Instant::now();
        let mut told = None;
        let waker;
        {
            let mut board = self.lock();
            let Some(cell) = board.workers.iter().flatten().find(|cell| cell.name == worker).cloned() else {
                return false;
            };
            cell.reach.leave.store(true, Ordering::Release);
            waker = board.idle.take(cell.index);
            if now
                && let Some(mut current) = cell.lock().current()
                && current.running.told(current.entry.run).is_none()
                && current.limit(Cause::Stopped, at, self.config.grace)
            {
                told = Some((Arc::clone(&cell), cell.signal.epoch()));
            }
        }
        if let Some(waker) = waker {
            waker.wake();
        }
        if let Some((cell, epoch)) = told {
            cell.signal.tell(epoch, Cause::Stopped);
            self.alarm.ring_by(at + self.config.grace);
        }
        true
    }
}

impl<T: Task, C: Completion<T::Output>> Control for Shared<T, C> {
    fn stop_seq(self: Arc<Self>, seq: u64) -> bool {
        self.stop_where(Cause::Stopped, |other, _, _| other == seq) > 0
    }
}
