//! A worker's loop: runs one task after the other, in place.

use std::{
    future::Future,
    pin::Pin,
    sync::atomic::Ordering,
    task::{Context, Poll, ready},
};

use super::{
    batch_size::BatchSize,
    finish::end_running,
    worker::{StartedTask, Worker},
};
use crate::{
    context::TaskContext,
    ending::{Cause, Ending},
    panic::{catch, drop_all},
    pool_types::PoolTypes,
    spec::{Placement, Run},
    state::{task::TaskOwner, workers::Mode},
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
pub(crate) struct TaskLoop<'a, P: PoolTypes> {
    worker: &'a Worker<P>,
    batch_size: BatchSize,
    /// The running task has waited.
    parked: bool,
    /// Runs only the task that was begun.
    once: bool,
    /// Panics since the last task that did not panic.
    pub(crate) panics_in_a_row: u32,
    /// The task panicked before it returned its future.
    start_panic: Option<String>,
}

impl<'a, P: PoolTypes> TaskLoop<'a, P> {
    pub(crate) fn new(worker: &'a Worker<P>, once: bool) -> Self {
        Self {
            worker,
            batch_size: BatchSize::default(),
            parked: false,
            once,
            panics_in_a_row: 0,
            start_panic: None,
        }
    }

    /// `future` is the future of the running task, made by `run`.
    pub(crate) fn poll<F: Future<Output = P::Output>>(
        &mut self,
        mut future: Pin<&mut Option<F>>,
        run: impl Fn(P::Task, TaskContext) -> F + Copy,
        cx: &mut Context<'_>,
    ) -> Poll<LoopEvent<P::Task>> {
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
                match ready!(self.worker.next_task(&mut self.batch_size, cx)) {
                    None => return Poll::Ready(LoopEvent::Exit),
                    Some(started) if started.placement == Placement::Threads => {
                        self.batch_size.reset();
                        return Poll::Ready(LoopEvent::RunOnThread(started));
                    }
                    Some(started) => self.begin(started, future.as_mut(), run),
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
        started: StartedTask<P::Task>,
        mut future: Pin<&mut Option<F>>,
        run: impl FnOnce(P::Task, TaskContext) -> F,
    ) {
        let StartedTask { task, cx, placement, waited } = started;
        if let Some(long) = &cx.long {
            self.worker.core.timer.wake_by(long.deadline);
        }
        if let Some(waited) = waited {
            self.worker.core.observe(|observer| observer.started(waited, placement));
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
        let slot = &self.worker.slot;
        slot.polling.store(true, Ordering::Relaxed);
        let polled = catch(|| running.poll(cx));
        slot.polling.store(false, Ordering::Relaxed);
        match polled {
            Ok(Poll::Ready(output)) => Poll::Ready(FutureEnd::Returned(output)),
            Err(message) => Poll::Ready(FutureEnd::Panicked(message)),
            Ok(Poll::Pending) => {
                if slot.drop_task.register_and_check(cx.waker()) {
                    return Poll::Ready(FutureEnd::Dropped);
                }
                if !self.once && !std::mem::replace(&mut self.parked, true) {
                    self.batch_size.reset();
                    self.worker.pause(Mode::Parked);
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
        end: FutureEnd<P::Output>,
        future: Pin<&mut Option<F>>,
        run: impl FnOnce(P::Task, TaskContext) -> F,
    ) -> LoopEvent<P::Task> {
        let worker = self.worker;
        let Worker { core, slot } = worker;
        if std::mem::take(&mut self.parked) {
            worker.resume();
        }
        let panicked = matches!(end, FutureEnd::Panicked(_));
        // One reading of the clock is both the end of this task and the start of the next.
        let now = core.observed_now();
        let mut local = slot.lock();
        slot.drop_task.reset();
        let Some(ended) = local.finish() else {
            drop(local);
            drop_all([end]);
            core.stuck.fetch_sub(1, Ordering::AcqRel);
            return LoopEvent::Exit;
        };
        // The end of a shard need not be the end of its task. A thread's worker may be abandoned meanwhile.
        let counted = !self.once && matches!(ended.task.owner, TaskOwner::Single(_));
        local.uncounted += u64::from(counted);
        let continues = !panicked && !self.once && !slot.exit_requested();
        if continues {
            worker.start(local, now, |started| self.begin(started, future, run));
        } else {
            drop(local);
        }
        if panicked {
            self.batch_size.reset();
        } else {
            self.panics_in_a_row = 0;
        }
        let run = ended.task.spec.run;
        let ending = match end {
            FutureEnd::Returned(output) => {
                Ending::Finished { output, cancelled_by: ended.state.cancelled(run) }
            }
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
