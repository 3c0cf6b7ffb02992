//! A worker: runs tasks until the pool needs it no longer.

use std::{future::poll_fn, pin::pin, sync::Arc, time::Duration};

use rand::Rng;
use tokio::sync::oneshot;

use super::{
    core::PoolCore,
    dispatch::{self, StartedTask},
    finish::{end_running, end_waiting},
    task_loop::{LoopEvent, TaskLoop},
    worker_thread::{BlockingJob, WorkerThread},
};
use crate::{
    cause::Cause, completion::Completion, ending::Ending, shutdown::Phase, spawn,
    state::worker_slot::WorkerSlot, task::Task,
};

/// Spawns a worker on the runtime of the tasks.
pub(crate) fn spawn<T: Task, C: Completion<T::Output>>(
    core: Arc<PoolCore<T, C>>,
    slot: Arc<WorkerSlot<T, C>>,
) {
    let name = core.name("worker");
    let worker = work(Arc::clone(&core), Arc::clone(&slot));
    let runtime = core.runtime.clone();
    let guard = WorkerGuard { core, slot, exit: WorkerExit::DroppedByRuntime };
    spawn::once(&runtime, name, worker, move |result| guard.exit(result));
}

async fn work<T: Task, C: Completion<T::Output>>(core: Arc<PoolCore<T, C>>, slot: Arc<WorkerSlot<T, C>>) {
    let mut thread = WorkerThread::default();
    let mut panics_in_a_row = 0;
    let mut tasks = TaskLoop::new(&core, &slot, false);
    let mut future = pin!(None);
    loop {
        let mut event = poll_fn(|cx| tasks.poll(future.as_mut(), T::run, cx)).await;
        if let LoopEvent::RunOnThread(started) = event {
            event = run_on_thread(&core, &slot, started, &mut thread).await;
        }
        if std::mem::take(&mut tasks.successes) > 0 {
            panics_in_a_row = 0;
        }
        match event {
            LoopEvent::Restart => {
                panics_in_a_row += 1;
                let jitter = rand::rng().random();
                restart(&core, core.backoff.pause(panics_in_a_row, jitter)).await;
            }
            LoopEvent::RunOnThread(_) | LoopEvent::Done => panics_in_a_row = 0,
            LoopEvent::Exit => return,
        }
    }
}

/// Runs a task on the worker's own thread. A worker whose task was abandoned leaves the thread to it.
async fn run_on_thread<T: Task, C: Completion<T::Output>>(
    core: &Arc<PoolCore<T, C>>,
    slot: &Arc<WorkerSlot<T, C>>,
    started: StartedTask<T>,
    thread: &mut WorkerThread,
) -> LoopEvent<T> {
    let (sender, ended) = oneshot::channel();
    dispatch::park(core, slot);
    let job: BlockingJob = {
        let (core, slot) = (Arc::clone(core), Arc::clone(slot));
        Box::new(move || {
            let event = core.runtime.block_on(run_one(&core, &slot, started));
            // The receiver is gone if the worker was abandoned or dropped by its runtime.
            let _ = sender.send(event);
        })
    };
    let spawn = |body| spawn::thread(core.name("worker thread"), slot.key.id, body);
    let event = if thread.run(job, spawn).is_ok() {
        tokio::select! {
            event = ended => event.unwrap_or(LoopEvent::Exit),
            () = slot.control.abandoned.notified() => LoopEvent::Exit,
        }
    } else {
        end_without_thread(core, slot);
        LoopEvent::Restart
    };
    dispatch::unpark(core, slot);
    event
}

fn end_without_thread<T: Task, C: Completion<T::Output>>(
    core: &Arc<PoolCore<T, C>>,
    slot: &WorkerSlot<T, C>,
) {
    tracing::error!(pool = core.config.name, worker = slot.key.id, "cannot start a thread for a task");
    let ended = slot.lock().finish();
    if let Some(ended) = ended {
        let message = "cannot start a thread for the task".to_owned();
        end_running(core, ended, Ending::Panicked { message }, None, false);
    }
}

async fn run_one<T: Task, C: Completion<T::Output>>(
    core: &Arc<PoolCore<T, C>>,
    slot: &Arc<WorkerSlot<T, C>>,
    started: StartedTask<T>,
) -> LoopEvent<T> {
    let mut tasks = TaskLoop::new(core, slot, true);
    let mut future = pin!(None);
    tasks.begin(started, future.as_mut(), T::run);
    poll_fn(|cx| tasks.poll(future.as_mut(), T::run, cx)).await
}

/// Pauses a worker after a panic. A shutdown ends the pause.
async fn restart<T: Task, C: Completion<T::Output>>(core: &PoolCore<T, C>, pause: Duration) {
    let _restarting = RestartGuard::new(core);
    tokio::select! {
        biased;
        () = core.closing.cancelled() => {}
        () = tokio::time::sleep(pause) => {}
    }
}

/// Counts a worker as restarting, until it is dropped: by the end of the pause, or by the runtime.
struct RestartGuard<'a, T: Task, C: Completion<T::Output>>(&'a PoolCore<T, C>);

impl<'a, T: Task, C: Completion<T::Output>> RestartGuard<'a, T, C> {
    fn new(core: &'a PoolCore<T, C>) -> Self {
        let mut state = core.lock();
        state.restarts += 1;
        state.restarting += 1;
        drop(state);
        Self(core)
    }
}

impl<T: Task, C: Completion<T::Output>> Drop for RestartGuard<'_, T, C> {
    fn drop(&mut self) {
        self.0.lock().restarting -= 1;
    }
}

/// Why a worker no longer runs.
enum WorkerExit {
    Returned,
    /// A defect of this crate; panics of tasks do not end a worker.
    Panicked(String),
    /// The runtime is gone. No other worker can be spawned.
    DroppedByRuntime,
}

/// Removes a worker from the pool however it ends, even if the runtime drops it or never runs it. The task that it
/// was running then ends here: no task may be left without an end.
struct WorkerGuard<T: Task, C: Completion<T::Output>> {
    core: Arc<PoolCore<T, C>>,
    slot: Arc<WorkerSlot<T, C>>,
    exit: WorkerExit,
}

impl<T: Task, C: Completion<T::Output>> WorkerGuard<T, C> {
    fn exit(mut self, result: Result<(), String>) {
        self.exit = result.map_or_else(WorkerExit::Panicked, |()| WorkerExit::Returned);
    }
}

impl<T: Task, C: Completion<T::Output>> Drop for WorkerGuard<T, C> {
    fn drop(&mut self) {
        let exit = std::mem::replace(&mut self.exit, WorkerExit::Returned);
        let dropped_by_runtime = matches!(exit, WorkerExit::DroppedByRuntime);
        let ended = self.slot.lock().finish();
        if let Some(ended) = ended {
            let ending = match exit {
                WorkerExit::Panicked(message) => Ending::Panicked { message },
                WorkerExit::Returned | WorkerExit::DroppedByRuntime => {
                    Ending::GaveUp { cause: Cause::Shutdown, stuck: false }
                }
            };
            end_running(&self.core, ended, ending, None, false);
        }
        remove(&self.core, &self.slot, dropped_by_runtime);
    }
}

/// Removes a worker from the pool, unless it was abandoned before.
fn remove<T: Task, C: Completion<T::Output>>(
    core: &Arc<PoolCore<T, C>>,
    slot: &WorkerSlot<T, C>,
    dropped_by_runtime: bool,
) {
    let mut state = core.lock();
    if !state.remove_worker(slot) {
        return;
    }
    if !dropped_by_runtime {
        core.unlock_and_scale(state);
        core.close_if_done(core.lock());
    } else if state.workers.len() == 0 {
        // No worker is left and none can be spawned: end what waits.
        state.phase = state.phase.max(Phase::Hard);
        let waiting = state.extract(|_| true);
        let hold = core.hold_open(&mut state);
        drop(state);
        end_waiting(core, waiting, Cause::Shutdown, hold);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::test_core::{SendEnding, Slot, TestCore, TestTask},
        spec::Spec,
    };

    /// A worker that runs one task while another task waits.
    fn busy_worker(test: &TestCore) -> Slot {
        let slot = test.add_worker();
        test.submit(Spec::short("runs")).unwrap();
        let task = test.core.lock().queue.take().unwrap();
        slot.lock().push_first(task);
        assert!(slot.lock().start().is_some());
        test.submit(Spec::short("waits")).unwrap();
        slot
    }

    fn guard(test: &TestCore, slot: &Slot) -> WorkerGuard<TestTask, SendEnding> {
        let (core, slot) = (Arc::clone(&test.core), Arc::clone(slot));
        WorkerGuard { core, slot, exit: WorkerExit::DroppedByRuntime }
    }

    #[test]
    fn a_worker_that_panics_fails_its_task_and_is_replaced() {
        let test = TestCore::new(1..=1, 1);
        let slot = busy_worker(&test);
        guard(&test, &slot).exit(Err("defect".to_owned()));
        assert_eq!(test.endings.try_recv(), Ok(Ending::Panicked { message: "defect".to_owned() }));
        assert!(test.endings.try_recv().is_err());
        let state = test.core.lock();
        assert_eq!((state.phase, state.workers.len(), state.waiting()), (Phase::Open, 1, 1));
        assert!(state.workers.get(slot.key).is_none());
    }

    #[test]
    fn a_worker_that_returns_is_replaced() {
        let test = TestCore::new(1..=1, 1);
        let slot = test.add_worker();
        guard(&test, &slot).exit(Ok(()));
        let state = test.core.lock();
        assert_eq!((state.phase, state.workers.len()), (Phase::Open, 1));
        assert!(state.workers.get(slot.key).is_none());
    }

    #[test]
    fn tasks_end_when_the_runtime_drops_the_last_worker() {
        let test = TestCore::new(1..=2, 1);
        let (slot, other) = (busy_worker(&test), test.add_worker());
        drop(guard(&test, &slot));
        let gave_up = Ending::GaveUp { cause: Cause::Shutdown, stuck: false };
        assert_eq!(test.endings.try_recv(), Ok(gave_up));
        // The other worker may still run the waiting task.
        assert!(test.endings.try_recv().is_err());
        drop(guard(&test, &other));
        assert_eq!(test.endings.try_recv(), Ok(Ending::NotStarted { cause: Cause::Shutdown }));
        assert_eq!(test.core.lock().phase, Phase::Closed);
    }

    #[test]
    fn a_task_without_a_thread_fails() {
        let test = TestCore::new(1..=1, 1);
        let slot = busy_worker(&test);
        end_without_thread(&test.core, &slot);
        let message = "cannot start a thread for the task".to_owned();
        assert_eq!(test.endings.try_recv(), Ok(Ending::Panicked { message }));
        assert!(slot.lock().finish().is_none());
    }
}
