//! A worker: takes a task, runs it in place, tells its end, until there is no more to do.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{Arc, mpsc},
    time::Duration,
};

use rand::Rng;
use tokio::sync::oneshot;

use super::{
    Cause, Completion, Ending, Task,
    cell::Cell,
    shared::Shared,
    turn::Start,
    turns::{Event, Turns},
};

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
