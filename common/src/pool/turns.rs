//! A worker at work: one task after the other, in place.

use std::{
    any::Any,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use tokio::time::Instant;

use super::{
    Cause, Completion, Ending, Placement, Run, Task, TaskContext,
    cell::Cell,
    entry::Owner,
    shared::Shared,
    turn::{Next, Pace, Start},
};

/// What a task's own code did.
enum Driven<O> {
    Returned(O),
    Panicked(String),
    /// The pool asked for the future to be dropped.
    Dropped,
}

/// Why a worker stops taking turns.
pub(super) enum Event<T> {
    /// Its task panicked.
    Restart,
    /// Its next task wants a thread.
    Thread(Start<T>),
    /// The one task it was to run is over.
    Done,
    Leave,
}

/// A worker's turns, one poll of which runs as many tasks as return at once.
///
/// One flat function and no chain of small async ones: the tasks' arguments would be moved at each
/// level, which costs more than all the rest.
pub(super) struct Turns<'a, T: Task, C: Completion<T::Output>> {
    shared: &'a Arc<Shared<T, C>>,
    cell: &'a Arc<Cell<T, C>>,
    pace: Pace,
    /// The running task has waited.
    parked: bool,
    /// Run the one task that was begun.
    once: bool,
    /// Tasks since the last event that did not panic.
    pub(super) successes: u64,
    /// The task panicked before there was a future to poll.
    unmade: Option<String>,
}

impl<'a, T: Task, C: Completion<T::Output>> Turns<'a, T, C> {
    pub(super) fn new(shared: &'a Arc<Shared<T, C>>, cell: &'a Arc<Cell<T, C>>, once: bool) -> Self {
        Self { shared, cell, pace: Pace::default(), parked: false, once, successes: 0, unmade: None }
    }

    pub(super) fn poll<F: Future<Output = T::Output>>(
        &mut self,
        mut future: Pin<&mut Option<F>>,
        make: impl Fn(T, TaskContext) -> F + Copy,
        cx: &mut Context<'_>,
    ) -> Poll<Event<T>> {
        loop {
            let driven = if let Some(message) = self.unmade.take() {
                Driven::Panicked(message)
            } else if let Some(running) = future.as_mut().as_pin_mut() {
                let driven = ready!(self.drive(running, cx));
                match catch_unwind(AssertUnwindSafe(|| future.set(None))) {
                    Ok(()) => driven,
                    Err(panic) => Driven::Panicked(panic_message(panic)),
                }
            } else {
                // Between batches others get the thread, were tasks never to wait for anything.
                let proceed = ready!(tokio::task::coop::poll_proceed(cx));
                match ready!(self.shared.next(self.cell, &mut self.pace, cx)) {
                    Next::Leave => return Poll::Ready(Event::Leave),
                    Next::Start(next) if next.placement == Placement::Threads => {
                        self.pace.forget();
                        return Poll::Ready(Event::Thread(next));
                    }
                    Next::Start(next) => self.begin(next, future.as_mut(), make),
                }
                proceed.made_progress();
                continue;
            };
            match self.ended(driven, future.as_mut(), make) {
                Event::Done if !self.once => {}
                event => return Poll::Ready(event),
            }
        }
    }

    /// Sets the task up to be polled.
    #[inline(always)]
    pub(super) fn begin<F>(
        &mut self,
        start: Start<T>,
        mut future: Pin<&mut Option<F>>,
        make: impl FnOnce(T, TaskContext) -> F,
    ) {
        let Start { task, cx, placement, waited } = start;
        if let Some(long) = &cx.long {
            self.shared.alarm.ring_by(long.deadline);
        }
        if let (Some(observer), Some(waited)) = (&self.shared.options.observer, waited) {
            observer.started(waited, placement);
        }
        match catch_unwind(AssertUnwindSafe(|| make(task, cx))) {
            Ok(made) => future.set(Some(made)),
            Err(panic) => self.unmade = Some(panic_message(panic)),
        }
    }

    /// Polls the task in place, catching its panics.
    fn drive<F: Future>(&mut self, running: Pin<&mut F>, cx: &mut Context<'_>) -> Poll<Driven<F::Output>> {
        let reach = &self.cell.reach;
        reach.polling.store(true, Ordering::Relaxed);
        let polled = catch_unwind(AssertUnwindSafe(|| running.poll(cx)));
        reach.polling.store(false, Ordering::Relaxed);
        match polled {
            Ok(Poll::Ready(output)) => Poll::Ready(Driven::Returned(output)),
            Err(panic) => Poll::Ready(Driven::Panicked(panic_message(panic))),
            Ok(Poll::Pending) => {
                if reach.give_up.is_set_or_wakes(cx.waker()) {
                    return Poll::Ready(Driven::Dropped);
                }
                if !self.once && !std::mem::replace(&mut self.parked, true) {
                    self.pace.forget();
                    self.shared.park(self.cell);
                }
                Poll::Pending
            }
        }
    }

    /// The task is over: its record comes out of the slot and its owner is told, unless somebody else
    /// already has. The next of the batch takes its place under the same lock.
    #[inline(always)]
    fn ended<F>(
        &mut self,
        driven: Driven<T::Output>,
        future: Pin<&mut Option<F>>,
        make: impl FnOnce(T, TaskContext) -> F,
    ) -> Event<T> {
        let (shared, reach) = (self.shared, &self.cell.reach);
        if std::mem::take(&mut self.parked) {
            shared.unpark(self.cell);
        }
        let panicked = matches!(driven, Driven::Panicked(_));
        // One reading is both the end of this task and the start of the next.
        let now = shared.options.observer.is_some().then(Instant::now);
        let mut slot = self.cell.lock();
        reach.give_up.reset();
        let Some(ended) = slot.finish() else {
            drop(slot);
            shared.came_back();
            return Event::Leave;
        };
        // A wide task ends later, and a thread's worker may end others meanwhile.
        let counted = !self.once && matches!(ended.entry.owner, Owner::One(_));
        slot.uncounted += u64::from(counted);
        let goes_on = !panicked && !self.once && !reach.leave.load(Ordering::Relaxed);
        if goes_on {
            shared.start(self.cell, slot, now, |next| self.begin(next, future, make));
        } else {
            drop(slot);
        }
        if panicked {
            self.pace.forget();
            shared.put_back(self.cell);
        } else {
            self.successes += 1;
        }
        let run = ended.entry.run;
        let ending = match driven {
            Driven::Returned(output) => Ending::Finished { output, told: ended.running.told(run) },
            Driven::Panicked(message) => Ending::Panicked { message },
            Driven::Dropped => {
                let cause = ended.running.limit.map_or(Cause::Stopped, |limit| limit.cause);
                // A short task was promised not to be interrupted, so it counts as abandoned.
                Ending::GaveUp { cause, stuck: matches!(run, Run::Short) }
            }
        };
        shared.end_current(ended, ending, now, counted);
        if panicked { Event::Restart } else { Event::Done }
    }
}

/// The text a panic was started with.
pub fn panic_message(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => match panic.downcast::<&'static str>() {
            Ok(text) => (*text).to_owned(),
            Err(_) => "a value that is no text".to_owned(),
        },
    }
}
