//! The Tokio task of a worker: runs tasks until the pool needs the worker no longer.

use std::{future::poll_fn, pin::pin, sync::Arc};

use tokio::sync::oneshot;

use super::{
    core::PoolCore,
    finish::{end_running, unlock_and_stop},
    task_loop::{LoopEvent, TaskLoop},
    worker::{StartedTask, Worker},
    worker_thread::{BlockingJob, WorkerThread},
};
use crate::{
    ending::{Cause, Ending},
    pool_types::PoolTypes,
    shutdown::Phase,
    spawn,
    state::{
        worker_slot::{Arrival, WorkerSlot},
        workers::Mode,
    },
    task::Task,
};

/// Spawns a worker on the runtime of the tasks.
pub(crate) fn spawn<P: PoolTypes>(core: Arc<PoolCore<P>>, slot: Arc<WorkerSlot<P>>) {
    let worker = Arc::new(Worker { core: Arc::clone(&core), slot });
    let guard = WorkerGuard { worker: Arc::clone(&worker), result: None };
    spawn::once(&core.spawner(&core.runtime), &core.config.name, "worker", work(worker), move |result| {
        guard.end(result);
    });
}

async fn work<P: PoolTypes>(worker: Arc<Worker<P>>) {
    let mut thread = WorkerThread::default();
    let mut tasks = TaskLoop::new(&worker, false);
    let mut future = pin!(None);
    loop {
        let mut event = poll_fn(|cx| tasks.poll(future.as_mut(), <P::Task>::run, cx)).await;
        if let LoopEvent::RunOnThread(started) = event {
            event = run_on_thread(&worker, started, &mut thread).await;
        }
        match event {
            LoopEvent::Restart => {
                tasks.panics_in_a_row += 1;
                restart(&worker, tasks.panics_in_a_row).await;
            }
            LoopEvent::RunOnThread(_) | LoopEvent::Done => tasks.panics_in_a_row = 0,
            LoopEvent::Exit => return,
        }
    }
}

/// Runs a task on the worker's own thread. A worker whose task was abandoned leaves the thread to it.
async fn run_on_thread<P: PoolTypes>(
    worker: &Arc<Worker<P>>,
    started: StartedTask<P::Task>,
    thread: &mut WorkerThread,
) -> LoopEvent<P::Task> {
    let Worker { core, slot } = &**worker;
    let (sender, ended) = oneshot::channel();
    worker.pause(Mode::Parked);
    let on_thread = Arc::clone(worker);
    let job: BlockingJob = Box::new(move || {
        let event = on_thread.core.runtime.block_on(run_one(&on_thread, started));
        // The receiver is gone if the worker was abandoned or dropped by its runtime.
        let _ = sender.send(event);
    });
    let spawn = |body| spawn::thread(&core.config.name, slot.key.id, body);
    let event = if thread.run(job, spawn) {
        tokio::select! {
            biased;
            event = ended => event.unwrap_or(LoopEvent::Exit),
            () = slot.abandoned.notified() => LoopEvent::Exit,
        }
    } else {
        end_without_thread(worker);
        LoopEvent::Restart
    };
    worker.resume();
    event
}

fn end_without_thread<P: PoolTypes>(worker: &Worker<P>) {
    let Worker { core, slot } = worker;
    tracing::error!(pool = core.config.name, worker = slot.key.id, "cannot start a thread for a task");
    let ended = slot.lock().finish();
    if let Some(ended) = ended {
        let message = "cannot start a thread for the task".to_owned();
        end_running(core, ended, Ending::Panicked { message }, None, false);
    }
}

async fn run_one<P: PoolTypes>(worker: &Worker<P>, started: StartedTask<P::Task>) -> LoopEvent<P::Task> {
    let mut tasks = TaskLoop::new(worker, true);
    let mut future = pin!(None);
    tasks.begin(started, future.as_mut(), <P::Task>::run);
    poll_fn(|cx| tasks.poll(future.as_mut(), <P::Task>::run, cx)).await
}

/// Pauses a worker after a panic. A shutdown ends the pause.
async fn restart<P: PoolTypes>(worker: &Worker<P>, panics_in_a_row: u32) {
    let core = &worker.core;
    core.lock().restarts += 1;
    worker.pause(Mode::Restarting);
    let pause = core.options.restart.pause(panics_in_a_row, core.random());
    core.closing.run_until_cancelled(tokio::time::sleep(pause)).await;
    worker.resume();
}

/// Removes a worker from the pool however it ends, even if the runtime drops it or never runs it. The task that it
/// was running then ends here: no task may be left without an end.
struct WorkerGuard<P: PoolTypes> {
    worker: Arc<Worker<P>>,
    /// How the worker ended; `None` if the runtime is gone and dropped it. An error is the message of a panic, which
    /// is a defect of this crate: panics of tasks do not end a worker.
    result: Option<Result<(), String>>,
}

impl<P: PoolTypes> WorkerGuard<P> {
    fn end(mut self, result: Result<(), String>) {
        self.result = Some(result);
    }
}

impl<P: PoolTypes> Drop for WorkerGuard<P> {
    fn drop(&mut self) {
        let Worker { core, slot } = &*self.worker;
        let result = self.result.take();
        let dropped_by_runtime = result.is_none();
        let ended = slot.lock().finish();
        if let Some(ended) = ended {
            let ending = match result {
                Some(Err(message)) => Ending::Panicked { message },
                Some(Ok(())) | None => Ending::GaveUp { cause: Cause::Shutdown, stuck: false },
            };
            end_running(core, ended, ending, None, false);
        }
        let mut state = core.lock();
        if slot.lock().arrival == Arrival::Replaced {
            state.replaced -= 1;
        }
        if !state.remove_worker(slot) {
            // It was abandoned or replaced before.
        } else if !dropped_by_runtime {
            core.unlock_and_scale(state);
            core.close_if_done(core.lock());
        } else if state.workers.len() == 0 {
            // No worker is left and none can be spawned: end what waits.
            state.phase = state.phase.max(Phase::Hard);
            let waiting = state.extract(|_| true);
            unlock_and_stop(core, state, Cause::Shutdown, waiting, Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::tests::{Slot, TestCore, TestTypes},
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

    fn guard(test: &TestCore, slot: &Slot) -> WorkerGuard<TestTypes> {
        WorkerGuard { worker: Arc::new(test.worker(slot)), result: None }
    }

    #[test]
    fn a_worker_that_panics_fails_its_task_and_is_replaced() {
        let test = TestCore::new(1..=1, 1);
        let slot = busy_worker(&test);
        guard(&test, &slot).end(Err("defect".to_owned()));
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
        guard(&test, &slot).end(Ok(()));
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
        end_without_thread(&test.worker(&slot));
        let message = "cannot start a thread for the task".to_owned();
        assert_eq!(test.endings.try_recv(), Ok(Ending::Panicked { message }));
        assert!(slot.lock().finish().is_none());
    }
}
