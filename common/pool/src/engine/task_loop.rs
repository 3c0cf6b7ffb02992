//! A worker's loop: runs one task after the other, in place.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    sync::atomic::Ordering,
    task::{Context, Poll, ready},
};

use super::{
    batch_size::BatchSize,
    core::PoolCore,
    dispatch::{self, NextStep, StartedTask},
    finish::end_running,
};
use crate::{
    cause::Cause,
    completion::Completion,
    context::TaskContext,
    ending::Ending,
    panic::{catch, drop_all},
    spec::{Placement, Run},
    state::{admitted_task::TaskOwner, worker_slot::WorkerSlot},
    task::Task,
};

/// How the future of a task ended.
enum FutureEnd<O> {
    Returned(O),
    Panicked(String),
    /// The pool asked the worker to drop it.
    Dropped,
}

/// Why a worker leaves its loop.
pub(crate) enum LoopEvent<T> {
    /// Its task panicked.
    Restart,
    /// Its next task runs on a thread.
    RunOnThread(StartedTask<T>),
    /// The one task that the loop was created for has ended.
    Done,
    /// The worker exits.
    Exit,
}

/// A worker's loop. One poll runs all tasks that return without waiting.
///
/// The loop is one flat function rather than a chain of small async ones: those would move the parts of a task at
/// each level, which costs more than everything else.
pub(crate) struct TaskLoop<'a, T: Task, C: Completion<T::Output>> {
    core: &'a Arc<PoolCore<T, C>>,
    slot: &'a Arc<WorkerSlot<T, C>>,
    batch_size: BatchSize,
    /// The running task has waited.
    parked: bool,
    /// Runs only the task that was begun.
    once: bool,
    /// Tasks since the last event that did not panic.
    pub(crate) successes: u64,
    /// The task panicked before it returned its future.
    start_panic: Option<String>,
}

impl<'a, T: Task, C: Completion<T::Output>> TaskLoop<'a, T, C> {
    pub(crate) fn new(core: &'a Arc<PoolCore<T, C>>, slot: &'a Arc<WorkerSlot<T, C>>, once: bool) -> Self {
        Self {
            core,
            slot,
            batch_size: BatchSize::default(),
            parked: false,
            once,
            successes: 0,
            start_panic: None,
        }
    }

    /// `future` is the future of the running task, made by `run`.
    pub(crate) fn poll<F: Future<Output = T::Output>>(
        &mut self,
        mut future: Pin<&mut Option<F>>,
        run: impl Fn(T, TaskContext) -> F + Copy,
        cx: &mut Context<'_>,
    ) -> Poll<LoopEvent<T>> {
        loop {
            let end = if let Some(message) = self.start_panic.take() {
                FutureEnd::Panicked(message)
            } else if let Some(running) = future.as_mut().as_pin_mut() {
                let end = ready!(self.poll_task(running, cx));
                match catch(|| future.set(None)) {
                    Ok(()) => end,
                    Err(message) => FutureEnd::Panicked(message),
                }
            } else {
                // Yields to other futures of the runtime between batches, even if tasks never wait.
                let proceed = ready!(tokio::task::coop::poll_proceed(cx));
                match ready!(dispatch::next_step(self.core, self.slot, &mut self.batch_size, cx)) {
                    NextStep::Exit => return Poll::Ready(LoopEvent::Exit),
                    NextStep::Start(started) if started.placement == Placement::Threads => {
                        self.batch_size.reset();
                        return Poll::Ready(LoopEvent::RunOnThread(started));
                    }
                    NextStep::Start(started) => self.begin(started, future.as_mut(), run),
                }
                proceed.made_progress();
                continue;
            };
            match self.end_task(end, future.as_mut(), run) {
                LoopEvent::Done if !self.once => {}
                event => return Poll::Ready(event),
            }
        }
    }

    /// Creates the future of a task.
    #[inline(always)]
    pub(crate) fn begin<F>(
        &mut self,
        started: StartedTask<T>,
        mut future: Pin<&mut Option<F>>,
        run: impl FnOnce(T, TaskContext) -> F,
    ) {
        let StartedTask { task, cx, placement, waited } = started;
        if let Some(long) = &cx.long {
            self.core.timer.wake_by(long.deadline);
        }
        if let Some(waited) = waited {
            self.core.observer.started(&self.core.config.name, waited, placement);
        }
        match catch(|| run(task, cx)) {
            Ok(made) => future.set(Some(made)),
            Err(message) => self.start_panic = Some(message),
        }
    }

    /// Polls the future of a task and catches its panics.
    fn poll_task<F: Future>(
        &mut self,
        running: Pin<&mut F>,
        cx: &mut Context<'_>,
    ) -> Poll<FutureEnd<F::Output>> {
        let control = &self.slot.control;
        control.polling.store(true, Ordering::Relaxed);
        let polled = catch(|| running.poll(cx));
        control.polling.store(false, Ordering::Relaxed);
        match polled {
            Ok(Poll::Ready(output)) => Poll::Ready(FutureEnd::Returned(output)),
            Err(message) => Poll::Ready(FutureEnd::Panicked(message)),
            Ok(Poll::Pending) => {
                if control.drop_task.register_and_check(cx.waker()) {
                    return Poll::Ready(FutureEnd::Dropped);
                }
                if !self.once && !std::mem::replace(&mut self.parked, true) {
                    self.batch_size.reset();
                    dispatch::park(self.core, self.slot);
                }
                Poll::Pending
            }
        }
    }

    /// Removes the task from the local queue and notifies its owner, unless the task was abandoned. The next task of
    /// the batch is started under the same lock.
    #[inline(always)]
    fn end_task<F>(
        &mut self,
        end: FutureEnd<T::Output>,
        future: Pin<&mut Option<F>>,
        run: impl FnOnce(T, TaskContext) -> F,
    ) -> LoopEvent<T> {
        let (core, control) = (self.core, &self.slot.control);
        if std::mem::take(&mut self.parked) {
            dispatch::unpark(core, self.slot);
        }
        let panicked = matches!(end, FutureEnd::Panicked(_));
        // One reading of the clock is both the end of this task and the start of the next.
        let now = core.observed_now();
        let mut local = self.slot.lock();
        control.drop_task.reset();
        let Some(ended) = local.finish() else {
            drop(local);
            drop_all([end]);
            core.stuck_worker_returned();
            return LoopEvent::Exit;
        };
        // The end of a shard need not be the end of its task. A thread's worker may be abandoned meanwhile.
        let counted = !self.once && matches!(ended.task.owner, TaskOwner::Single(_));
        local.uncounted += u64::from(counted);
        let continues = !panicked && !self.once && !control.exit_requested();
        if continues {
            dispatch::start(core, self.slot, local, now, |started| self.begin(started, future, run));
        } else {
            drop(local);
        }
        if panicked {
            self.batch_size.reset();
            dispatch::put_back(core, self.slot);
        } else {
            self.successes += 1;
        }
        let run = ended.task.run;
        let ending = match end {
            FutureEnd::Returned(output) => Ending::Finished { output, told: ended.state.cancelled(run) },
            FutureEnd::Panicked(message) => Ending::Panicked { message },
            FutureEnd::Dropped => {
                let cause = ended.state.limit.map_or(Cause::Stopped, |limit| limit.cause);
                // A short task is never cancelled, so it counts as abandoned.
                Ending::GaveUp { cause, stuck: matches!(run, Run::Short) }
            }
        };
        end_running(core, ended, ending, now, counted);
        if panicked { LoopEvent::Restart } else { LoopEvent::Done }
    }
}
