//! A worker: takes a task, runs it in place, tells its end, until there is no more to do.

use std::{
    any::Any,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{Arc, atomic::Ordering, mpsc},
    task::Poll,
    time::Duration,
};

use rand::Rng;
use tokio::{sync::oneshot, time::Instant};

use super::{
    Cause, Completion, Ending, Placement, Run, Task, TaskContext,
    cell::Cell,
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

/// What the worker does next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Continue,
    Restart,
    Leave,
}

type Errand = Box<dyn FnOnce() + Send>;

/// Serves until the pool has no more use for this worker.
pub(super) async fn work<T: Task, C: Completion<T::Output>>(mut presence: Presence<T, C>) {
    serve(&presence.shared, &presence.cell).await;
    presence.cut_off = false;
}

async fn serve<T: Task, C: Completion<T::Output>>(shared: &Arc<Shared<T, C>>, cell: &Arc<Cell<T, C>>) {
    let mut thread: Option<mpsc::Sender<Errand>> = None;
    let mut panics_in_a_row = 0;
    let mut pace = Pace::default();
    let mut batched = None;
    loop {
        let start = match batched.take() {
            Some(start) => start,
            None => {
                // Between batches others get the thread, were tasks never to wait for anything.
                tokio::task::coop::consume_budget().await;
                match poll_fn(|cx| shared.next(cell, &mut pace, cx)).await {
                    Next::Start(start) => start,
                    Next::Leave => return,
                }
            }
        };
        let then = match start.placement {
            Placement::Runtime => run(shared, cell, start, &mut batched).await,
            Placement::Threads => {
                pace.forget();
                run_on_thread(shared, cell, start, &mut thread).await
            }
        };
        match then {
            Then::Continue => panics_in_a_row = 0,
            Then::Leave => return,
            Then::Restart => {
                pace.forget();
                panics_in_a_row += 1;
                let pause = shared.options.restart.pause(panics_in_a_row, rand::rng().random());
                shared.restart(pause).await;
            }
        }
    }
}

/// Runs one task and tells its owner the end, unless somebody else already has. The next of the batch
/// takes its place in the same step, under one lock.
async fn run<T: Task, C: Completion<T::Output>>(
    shared: &Arc<Shared<T, C>>,
    cell: &Cell<T, C>,
    start: Start<T>,
    next: &mut Option<Start<T>>,
) -> Then {
    let Start { task, cx, placement, waited } = start;
    if let Some(long) = &cx.long {
        shared.alarm.ring_by(long.deadline);
    }
    let observer = shared.options.observer.as_deref();
    if let (Some(observer), Some(waited)) = (observer, waited) {
        observer.started(waited, placement);
    }
    let driven = drive(shared, cell, task, cx, placement).await;
    if cell.reach.parked.load(Ordering::Relaxed) && placement == Placement::Runtime {
        shared.unpark(cell);
    }
    // One reading is both the end of this task and the start of the next.
    let now = observer.is_some().then(Instant::now);
    let current = if matches!(driven, Driven::Panicked(_)) {
        shared.last_turn(cell)
    } else {
        let (current, start) = shared.turn(cell, now);
        *next = start;
        current
    };
    let Some(current) = current else {
        shared.came_back();
        return Then::Leave;
    };
    let told = current.told();
    let (ending, then) = match driven {
        Driven::Returned(output) => (Ending::Finished { output, told }, Then::Continue),
        Driven::Panicked(message) => (Ending::Panicked { message }, Then::Restart),
        Driven::Dropped => {
            let cause = current.limit.map_or(Cause::Stopped, |limit| limit.cause);
            // A short task was promised not to be interrupted, so it counts as abandoned.
            (Ending::GaveUp { cause, stuck: matches!(current.run, Run::Short) }, Then::Continue)
        }
    };
    shared.end_current(current, ending, now);
    then
}

/// The same on the worker's own thread. A thread that is stuck is left to itself with its worker.
async fn run_on_thread<T: Task, C: Completion<T::Output>>(
    shared: &Arc<Shared<T, C>>,
    cell: &Arc<Cell<T, C>>,
    start: Start<T>,
    thread: &mut Option<mpsc::Sender<Errand>>,
) -> Then {
    let (tell, told) = oneshot::channel();
    shared.park(cell);
    let errand: Errand = {
        let (shared, cell) = (Arc::clone(shared), Arc::clone(cell));
        Box::new(move || {
            let runtime = shared.runtime.clone();
            let then = runtime.block_on(run(&shared, &cell, start, &mut None));
            // The worker may be gone with its runtime; then nobody needs to know.
            let _ = tell.send(then);
        })
    };
    let sender = thread.get_or_insert_with(|| spawn_thread(&shared.config.name, cell.name));
    if sender.send(errand).is_err() {
        // No thread could be had. Dropping the errand dropped the task; its owner still waits.
        *thread = None;
        let current = cell.lock().current.take();
        if let Some(current) = current {
            let message = "no thread could be started for the task".to_owned();
            shared.end_current(current, Ending::Panicked { message }, None);
        }
        shared.unpark(cell);
        return Then::Restart;
    }
    let then = tokio::select! {
        then = told => then.unwrap_or(Then::Leave),
        () = cell.reach.abandoned.notified() => Then::Leave,
    };
    shared.unpark(cell);
    then
}

fn spawn_thread(pool: &str, worker: u64) -> mpsc::Sender<Errand> {
    let (sender, errands) = mpsc::channel::<Errand>();
    let serve = move || {
        for errand in errands {
            // Task code is caught further in; this only keeps a broken runtime from ending the thread.
            let _ = catch_unwind(AssertUnwindSafe(errand));
        }
    };
    if let Err(error) = std::thread::Builder::new().name(format!("{pool}-{worker}")).spawn(serve) {
        tracing::error!(pool, worker, %error, "cannot start a thread for cpu-bound tasks");
    }
    sender
}

/// Polls the task in place, catching its panics, those of its destructors included.
async fn drive<T: Task, C: Completion<T::Output>>(
    shared: &Arc<Shared<T, C>>,
    cell: &Cell<T, C>,
    task: T,
    cx: TaskContext,
    placement: Placement,
) -> Driven<T::Output> {
    let reach = &cell.reach;
    let made = catch_unwind(AssertUnwindSafe(|| task.run(cx)));
    let future = match made {
        Ok(future) => future,
        Err(panic) => return Driven::Panicked(message(panic)),
    };
    let mut future = pin!(Some(future));
    // On a thread the worker has been parked from the start.
    let mut parked = placement == Placement::Threads;
    let driven = poll_fn(|cx| {
        let Some(running) = future.as_mut().as_pin_mut() else { return Poll::Ready(Driven::Dropped) };
        reach.polling.store(true, Ordering::Relaxed);
        let polled = catch_unwind(AssertUnwindSafe(|| running.poll(cx)));
        reach.polling.store(false, Ordering::Relaxed);
        match polled {
            Ok(Poll::Ready(output)) => Poll::Ready(Driven::Returned(output)),
            Err(panic) => Poll::Ready(Driven::Panicked(message(panic))),
            Ok(Poll::Pending) => {
                // Registered before the check, so that an order in between is not missed.
                reach.waker.register(cx.waker());
                if reach.give_up.load(Ordering::Acquire) {
                    return Poll::Ready(Driven::Dropped);
                }
                if !std::mem::replace(&mut parked, true) {
                    shared.park(cell);
                }
                Poll::Pending
            }
        }
    })
    .await;
    match catch_unwind(AssertUnwindSafe(|| future.set(None))) {
        Ok(()) => driven,
        Err(panic) => match driven {
            Driven::Panicked(first) => Driven::Panicked(first),
            Driven::Returned(_) | Driven::Dropped => Driven::Panicked(message(panic)),
        },
    }
}

fn message(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => match panic.downcast::<&'static str>() {
            Ok(text) => (*text).to_owned(),
            Err(_) => "a value that is no text".to_owned(),
        },
    }
}

/// Undoes a worker's presence however it ends, also when the runtime drops it in the middle of a task
/// or refuses to run it at all: no task may be left without an end.
pub(super) struct Presence<T: Task, C: Completion<T::Output>> {
    shared: Arc<Shared<T, C>>,
    cell: Arc<Cell<T, C>>,
    cut_off: bool,
}

impl<T: Task, C: Completion<T::Output>> Presence<T, C> {
    pub(super) fn new(shared: Arc<Shared<T, C>>, cell: Arc<Cell<T, C>>) -> Self {
        Self { shared, cell, cut_off: true }
    }
}

impl<T: Task, C: Completion<T::Output>> Drop for Presence<T, C> {
    fn drop(&mut self) {
        let current = self.cell.lock().current.take();
        if let Some(current) = current {
            self.shared.end_current(current, Ending::GaveUp { cause: Cause::Shutdown, stuck: false }, None);
        }
        self.shared.leave(&self.cell, self.cut_off);
    }
}

/// How long a worker waits after a panic: doubling, capped, with full jitter, so that a kind of task
/// that always panics does not turn the pool into a spinning one.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// After the first panic in a row.
    pub base: Duration,
    /// At most.
    pub cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_millis(1), cap: Duration::from_millis(100) }
    }
}

impl Backoff {
    fn pause(self, panics_in_a_row: u32, jitter: f64) -> Duration {
        let doubled = self.base.saturating_mul(1 << panics_in_a_row.saturating_sub(1).min(20));
        doubled.min(self.cap).mul_f64(jitter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_cap() {
        let backoff = Backoff { base: Duration::from_millis(1), cap: Duration::from_millis(5) };
        let pauses: Vec<_> = (1..=5).map(|n| backoff.pause(n, 1.0).as_millis()).collect();
        assert_eq!(pauses, [1, 2, 4, 5, 5]);
        assert_eq!(backoff.pause(u32::MAX, 0.5), Duration::from_micros(2500));
    }
}
