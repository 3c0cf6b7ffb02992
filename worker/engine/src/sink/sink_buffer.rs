//! Gathers finished tasks for the sinks: while one batch is written the next one fills, so at low
//! load nothing waits and at high load batches are large.
//!
//! Each sink has a task and a queue of its own, so that one that is away, hangs or panics keeps no other from
//! its results. A task is answered for when every sink has its result.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use futures_util::FutureExt;
use garenne_amqp::Backoff;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    Accepted, Finished, Sink,
    health::{Health, SinkMetrics},
};
use crate::{
    consumer::ChannelGeneration,
    force_close::after_last_answers,
    spans::AttemptSpan,
    supervise::{Panics, caught, restarting},
};

#[cfg(test)]
mod tests;

/// The largest batch, results.
const BATCH: usize = 512;
/// Between two looks at what waits for a sink that takes nothing.
const TIDY: Duration = Duration::from_secs(1);
/// A write that takes longer is worth telling an operator of.
const SLOW: Duration = Duration::from_secs(30);

/// Told what the sinks said of a task; [`None`] when they never could.
pub(crate) type Answer = Box<dyn FnOnce(Option<Accepted>) + Send>;

/// A finished task and whoever wants to know what the sinks said.
pub(crate) struct SinkItem {
    pub(crate) finished: Finished,
    pub(crate) span: AttemptSpan,
    /// The channel that the task was delivered on.
    pub(crate) generation: Arc<ChannelGeneration>,
    pub(crate) answer: Answer,
}

/// Takes items to the sinks. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SinkBuffer(Arc<[SinkQueue]>);

/// One sink, seen from the sink_buffer.
struct SinkQueue {
    // Bounded by the prefetches: each item is an unsettled delivery, or goes soon after its channel died.
    items: mpsc::UnboundedSender<SinkItem>,
    health: Health,
}

impl SinkBuffer {
    /// A sink_buffer in front of these sinks. Once `force_close` is cancelled an absent sink is not waited for
    /// any longer.
    pub(crate) fn open(
        sinks: Vec<Arc<dyn Sink>>,
        force_close: &CancellationToken,
        metrics: &SinkMetrics,
        panics: &Panics,
    ) -> Self {
        let open = |sink: Arc<dyn Sink>| {
            let (sender, items) = mpsc::unbounded_channel();
            let health = metrics.health(sink.name());
            let (force_close, panics) = (force_close.clone(), panics.clone());
            let writer = SinkWriter {
                sink,
                items,
                waiting: VecDeque::new(),
                health: health.clone(),
                force_close,
                panics: panics.clone(),
            };
            tokio::spawn(async move {
                // What it was about is dropped and goes back.
                restarting("sink", panics, writer, |writer| writer.serve().boxed(), |_| {}).await;
            });
            SinkQueue { items: sender, health }
        };
        Self(sinks.into_iter().map(open).collect())
    }

    /// Whether there is any sink at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Which sinks take no results and why, for an operator.
    pub(crate) fn problems(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter_map(|counter| counter.health.problem())
    }

    pub(crate) fn hand_over(&self, item: SinkItem) {
        match &*self.0 {
            [] => (item.answer)(Some(Accepted::Stored)),
            [counter] => counter.take(item),
            counters => {
                let SinkItem { finished, span, generation, answer } = item;
                let (word, left) = (Some(Accepted::Stored), counters.len());
                let joint = Arc::new(Mutex::new(PendingResult { word, left, answer: Some(answer) }));
                for counter in counters {
                    let joint = Arc::clone(&joint);
                    let answer = Box::new(move |word| answered(&joint, word));
                    let (finished, span, generation) =
                        (finished.clone(), span.clone(), Arc::clone(&generation));
                    counter.take(SinkItem { finished, span, generation, answer });
                }
            }
        }
    }
}

impl SinkQueue {
    fn take(&self, item: SinkItem) {
        // Its task ends only with the runtime; then the item is dropped, which gives the delivery back.
        let _ = self.items.send(item);
    }
}

/// A result that several sinks answer for.
struct PendingResult {
    /// The word of those that have; nothing where one never will.
    word: Option<Accepted>,
    left: usize,
    answer: Option<Answer>,
}

/// A sink's word on a result; the last one passes on what all of them said.
fn answered(joint: &Mutex<PendingResult>, word: Option<Accepted>) {
    let mut joint = joint.lock().unwrap_or_else(PoisonError::into_inner);
    joint.word = joint.word.take().zip(word).map(|(all, word)| all.and(word));
    joint.left -= 1;
    if joint.left == 0
        && let Some(answer) = joint.answer.take()
    {
        let word = joint.word.take();
        drop(joint);
        answer(word);
    }
}

/// Writes to one sink.
struct SinkWriter {
    sink: Arc<dyn Sink>,
    items: mpsc::UnboundedReceiver<SinkItem>,
    /// Taken from there and not written yet.
    waiting: VecDeque<SinkItem>,
    health: Health,
    force_close: CancellationToken,
    panics: Panics,
}

impl SinkWriter {
    /// Writes batch after batch, until the sink_buffer is gone.
    async fn serve(&mut self) {
        let mut buffer = Vec::new();
        loop {
            if self.waiting.is_empty() {
                if self.items.recv_many(&mut buffer, BATCH).await == 0 {
                    return;
                }
                self.waiting.extend(buffer.drain(..));
            }
            self.fill();
            if self.health.is_down() {
                self.tidy();
            }
            let batch = Batch::of(self.waiting.drain(..self.waiting.len().min(BATCH)));
            self.write(batch).await;
        }
    }

    /// Takes what is there already, up to a batch.
    fn fill(&mut self) {
        while self.waiting.len() < BATCH
            && let Ok(item) = self.items.try_recv()
        {
            self.waiting.push_back(item);
        }
    }

    /// Offers a batch until the sink has taken it. What comes again with another delivery, because its channel
    /// died meanwhile, is offered no more once an attempt has failed.
    async fn write(&mut self, mut batch: Batch) {
        let (mut backoff, began) = (Backoff::default(), SystemTime::now());
        while !batch.finished.is_empty() {
            let problem = match self.attempt(&batch.finished).await {
                Some(Ok(words)) => {
                    self.health.took();
                    return batch.answer(words, self.sink.name(), began, &self.panics);
                }
                Some(Err(problem)) => problem,
                // Whether it was written is not known: the tasks go back, and sinks write them once.
                None => return batch.give_back(&self.panics),
            };
            self.health.failed(&problem);
            let (wait, sink, waiting) = (backoff.next_wait(), self.sink.name(), batch.finished.len());
            tracing::warn!(sink, problem, ?wait, waiting, "sink unavailable, will be tried again");
            let until = Instant::now() + wait;
            loop {
                batch.forget_dead(&self.panics);
                self.tidy();
                let tick = until.min(Instant::now() + TIDY);
                tokio::select! {
                    () = sleep_until(tick) => {}
                    () = self.force_close.cancelled() => return batch.give_back(&self.panics),
                }
                if tick == until {
                    break;
                }
            }
        }
    }

    /// One write. Nothing when it is not waited for any longer.
    async fn attempt(&mut self, batch: &[Finished]) -> Option<Result<Vec<Accepted>, String>> {
        let sink = Arc::clone(&self.sink);
        let force_close = self.force_close.clone();
        let given_up = after_last_answers(&force_close);
        // The call itself may panic as well as what it answers.
        let written = caught(async { sink.write(batch).await });
        let (mut written, mut given_up) = (std::pin::pin!(written), std::pin::pin!(given_up));
        let slow = Instant::now() + SLOW;
        let mut tick = Instant::now() + TIDY;
        let written = loop {
            tokio::select! {
                written = &mut written => break written,
                () = &mut given_up => return None,
                () = sleep_until(tick) => {}
            }
            self.tidy();
            if tick >= slow {
                self.health.failed("it has not answered for 30 s");
            }
            tick += TIDY;
        };
        Some(match written {
            Ok(Ok(words)) if words.len() == batch.len() => Ok(words),
            Ok(Ok(words)) => Err(format!("it answered for {} results of {}", words.len(), batch.len())),
            Ok(Err(error)) => Err(error.to_string()),
            Err(panic) => {
                self.health.panicked();
                Err(format!("it panicked: {panic}"))
            }
        })
    }

    /// Gives up what waits for a sink that takes nothing and comes again anyway: without that each reconnect
    /// would add a prefetch to it.
    fn tidy(&mut self) {
        while let Ok(item) = self.items.try_recv() {
            self.waiting.push_back(item);
        }
        if self.waiting.iter().all(|item| item.generation.alive()) {
            return;
        }
        let (alive, dead): (VecDeque<_>, VecDeque<_>) =
            self.waiting.drain(..).partition(|item| item.generation.alive());
        self.waiting = alive;
        dead.into_iter().for_each(|item| tell(item.answer, None, &self.panics));
    }
}

/// Answers in the name of a sink. A panic in what follows is none of the sink's and does not end its task.
fn tell(answer: Answer, word: Option<Accepted>, panics: &Panics) {
    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| answer(word)));
    if told.is_err() {
        // The hook has logged it; the delivery was dropped on the way, which gives it back.
        panics.count("settlement");
    }
}

/// What is offered to the sink together.
struct Batch {
    finished: Vec<Finished>,
    /// Of the same places.
    rest: Vec<Rest>,
}

struct Rest {
    span: AttemptSpan,
    generation: Arc<ChannelGeneration>,
    answer: Answer,
}

impl Batch {
    fn of(items: impl Iterator<Item = SinkItem>) -> Self {
        let apart =
            |SinkItem { finished, span, generation, answer }| (finished, Rest { span, generation, answer });
        let (finished, rest) = items.map(apart).unzip();
        Self { finished, rest }
    }

    fn answer(self, words: Vec<Accepted>, sink: &'static str, began: SystemTime, panics: &Panics) {
        let size = self.rest.len();
        for (Rest { span, answer, .. }, word) in self.rest.into_iter().zip(words) {
            if span.is_kept() {
                span.record_sink_write(sink, size, began, &word);
            }
            tell(answer, Some(word), panics);
        }
    }

    fn give_back(self, panics: &Panics) {
        self.rest.into_iter().for_each(|rest| tell(rest.answer, None, panics));
    }

    /// Gives up what comes again anyway.
    fn forget_dead(&mut self, panics: &Panics) {
        if self.rest.iter().all(|rest| rest.generation.alive()) {
            return;
        }
        let both = std::mem::take(&mut self.finished).into_iter().zip(std::mem::take(&mut self.rest));
        for (finished, rest) in both {
            if rest.generation.alive() {
                self.finished.push(finished);
                self.rest.push(rest);
            } else {
                tell(rest.answer, None, panics);
            }
        }
    }
}
