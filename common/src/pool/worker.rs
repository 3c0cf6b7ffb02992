//! A worker: takes a task, runs it in place, tells its end, until there is no more to do.

use std::{
    any::Any,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering, mpsc},
    task::{Context, Poll, ready},
    time::Duration,
};

use rand::Rng;
use tokio::{sync::oneshot, time::Instant};

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
enum Event<T> {
    /// Its task panicked.
    Restart,
    /// Its next task wants a thread.
    Thread(Start<T>),
    /// The one task it was to run is over.
    Done,
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
    let mut turns = Turns::new(shared, cell, false);
    let mut future = pin!(None);
    loop {
        let mut event = poll_fn(|cx| turns.poll(future.as_mut(), T::run, cx)).await;
        if let Event::Thread(start) = event {
            event = run_on_thread(shared, cell, start, &mut thread).await;
        }
        if std::mem::take(&mut turns.successes) > 0 {
            panics_in_a_row = 0;
        }
        match event {
            Event::Restart => {
                panics_in_a_row += 1;
                let pause = shared.options.restart.pause(panics_in_a_row, rand::rng().random());
                shared.restart(pause).await;
            }
            Event::Thread(_) | Event::Done => panics_in_a_row = 0,
            Event::Leave => return,
        }
    }
}

/// A worker's turns, one poll of which runs as many tasks as return at once.
///
/// One flat function and no chain of small async ones: the tasks' arguments would be moved at each
/// level, which costs more than all the rest.
struct Turns<'a, T: Task, C: Completion<T::Output>> {
    shared: &'a Arc<Shared<T, C>>,
    cell: &'a Arc<Cell<T, C>>,
    pace: Pace,
    /// The running task has waited.
    parked: bool,
    /// Run the one task that was begun.
    once: bool,
    /// Tasks since the last event that did not panic.
    successes: u64,
    /// The task panicked before there was a future to poll.
    unmade: Option<String>,
}

impl<'a, T: Task, C: Completion<T::Output>> Turns<'a, T, C> {
    fn new(shared: &'a Arc<Shared<T, C>>, cell: &'a Arc<Cell<T, C>>, once: bool) -> Self {
        Self { shared, cell, pace: Pace::default(), parked: false, once, successes: 0, unmade: None }
    }

    fn poll<F: Future<Output = T::Output>>(
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
                    Err(panic) => Driven::Panicked(message(panic)),
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
    fn begin<F>(
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
            Err(panic) => self.unmade = Some(message(panic)),
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
            Err(panic) => Poll::Ready(Driven::Panicked(message(panic))),
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
        let next = if goes_on { shared.start(self.cell, &mut slot, now) } else { None };
        drop(slot);
        if let Some(next) = next {
            self.begin(next, future, make);
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

/// Runs a task on the worker's own thread. A thread that is stuck is left to itself with its worker.
async fn run_on_thread<T: Task, C: Completion<T::Output>>(
    shared: &Arc<Shared<T, C>>,
    cell: &Arc<Cell<T, C>>,
    start: Start<T>,
    thread: &mut Option<mpsc::Sender<Errand>>,
) -> Event<T> {
    let (tell, told) = oneshot::channel();
    shared.park(cell);
    let errand: Errand = {
        let (shared, cell) = (Arc::clone(shared), Arc::clone(cell));
        Box::new(move || {
            let event = shared.runtime.block_on(run_one(&shared, &cell, start));
            // The worker may be gone with its runtime; then nobody needs to know.
            let _ = tell.send(event);
        })
    };
    let sender = thread.get_or_insert_with(|| spawn_thread(&shared.config.name, cell.name));
    let event = if sender.send(errand).is_ok() {
        tokio::select! {
            event = told => event.unwrap_or(Event::Leave),
            () = cell.reach.abandoned.notified() => Event::Leave,
        }
    } else {
        // No thread could be had. Dropping the errand dropped the task; its owner still waits.
        *thread = None;
        let ended = cell.lock().finish();
        if let Some(ended) = ended {
            let message = "no thread could be started for the task".to_owned();
            shared.end_current(ended, Ending::Panicked { message }, None, false);
        }
        Event::Restart
    };
    shared.unpark(cell);
    event
}

async fn run_one<T: Task, C: Completion<T::Output>>(
    shared: &Arc<Shared<T, C>>,
    cell: &Arc<Cell<T, C>>,
    start: Start<T>,
) -> Event<T> {
    let mut turns = Turns::new(shared, cell, true);
    let mut future = pin!(None);
    turns.begin(start, future.as_mut(), T::run);
    poll_fn(|cx| turns.poll(future.as_mut(), T::run, cx)).await
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
        let ended = self.cell.lock().finish();
        if let Some(ended) = ended {
            let ending = Ending::GaveUp { cause: Cause::Shutdown, stuck: false };
            self.shared.end_current(ended, ending, None, false);
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
