//! What can be seen from outside: snapshots and the report of a shutdown.

use tokio::time::Instant;

use super::{
    Completion, GroupView, Report, RunningTask, Snapshot, Task, TaskState, Totals, Workers,
    cell::Current,
    shared::{Counts, Shared},
};
use std::sync::atomic::Ordering;

impl Counts {
    fn since(self, earlier: Self) -> Totals {
        let mut rare = [0; 4];
        for (at, count) in rare.iter_mut().enumerate() {
            *count = self.rare[at] - earlier.rare[at];
        }
        let [not_started, interrupted, abandoned, panicked] = rare;
        // A task is tallied before it is counted as ended, so the difference never goes below zero
        // for good; saturating covers the moment in between.
        let finished = (self.ended - earlier.ended).saturating_sub(rare.iter().sum());
        Totals { admitted: 0, finished, not_started, interrupted, abandoned, panicked }
    }
}

impl<T: Task, C: Completion<T::Output>> Shared<T, C> {
    pub(super) fn report(&self) -> Report {
        let earlier = self.baseline.get().copied().unwrap_or_default();
        let Totals { finished, not_started, interrupted, abandoned, panicked, .. } =
            self.counts(&self.lock()).since(earlier);
        Report { finished, not_started, interrupted, abandoned, panicked }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let now = Instant::now();
        let board = self.lock();
        let mut tasks = Vec::new();
        for cell in board.workers.iter().flatten() {
            if let Some(Current { entry, running }) = cell.lock().current() {
                let state = match running.told(entry.run) {
                    None => TaskState::Running,
                    Some(cause) => TaskState::Stopping(cause),
                };
                tasks.push(RunningTask {
                    id: entry.id.clone(),
                    worker: cell.name,
                    label: running.label,
                    group: entry.group.clone(),
                    shard: (entry.shard, entry.width),
                    state,
                    on_thread: entry.placement == super::Placement::Threads,
                    running_seconds: running.since.map(|since| (now - since).as_secs_f64()),
                });
            }
        }
        let mut groups: Vec<_> = board
            .lane
            .groups()
            .map(|(name, group)| GroupView {
                name: name.clone(),
                cap: group.cap,
                paused: group.paused,
                running: group.running,
                queued: board.lane.waiting_in(name),
            })
            .collect();
        groups.sort_by(|a, b| a.name.cmp(&b.name));
        let idle = board.idle.len();
        Snapshot {
            name: self.config.name.clone(),
            phase: board.phase,
            workers: Workers {
                idle,
                busy: (board.alive - idle).saturating_sub(board.restarting),
                restarting: board.restarting,
                min: *self.config.workers.start(),
                max: *self.config.workers.end(),
                restarts: board.restarts,
            },
            queue: self.config.queue,
            queued: board.waiting(),
            running: tasks.len(),
            stuck: self.stuck.load(Ordering::Acquire),
            totals: Totals { admitted: board.admitted, ..self.counts(&board).since(Counts::default()) },
            tasks,
            groups,
        }
    }
}
