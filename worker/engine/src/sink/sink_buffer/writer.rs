//! The writer task of one sink.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use garenne_common::{backoff::Backoff, clock, supervise::caught};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::SinkItem;
use crate::{
    dead_channel::take_closed,
    force_close::after_last_answers,
    sink::{FinishedTask, Sink, SinkAnswer, health::Health},
};

/// The maximum size of a batch, in results.
pub(super) const MAX_BATCH: usize = 512;
/// How often results that wait for a sink are searched for dead channels.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A write that takes longer is unusual.
const LATE_WRITE: Duration = Duration::from_secs(3);
/// A write that takes longer counts as a failure in readiness and metrics. It is still waited for.
pub(super) const SLOW_WRITE: Duration = Duration::from_secs(30);

/// Writes the results of one sink's queue.
pub(super) struct SinkWriter {
    pub(super) sink: Arc<dyn Sink>,
    pub(super) items: mpsc::UnboundedReceiver<SinkItem>,
    /// Taken from `items` and not answered yet, in order.
    pub(super) waiting: VecDeque<SinkItem>,
    pub(super) health: Health,
    pub(super) force_close: CancellationToken,
}

impl SinkWriter {
    /// Writes batches until the buffer is dropped.
    ///
    /// If the sink does not store a batch, its results are offered again after a pause, together with those that
    /// came meanwhile.
    pub(super) async fn run(&mut self) {
        let mut backoff = Backoff::default();
        loop {
            if self.waiting.is_empty() {
                let Some(item) = self.items.recv().await else { return };
                self.waiting.push_back(item);
            }
            if self.health.is_down() {
                self.drop_dead();
            }
            self.receive_up_to(MAX_BATCH);
            let size = self.waiting.len().min(MAX_BATCH);
            let (batch, tasks): (Vec<_>, Vec<_>) = self.waiting.drain(..size).unzip();
            if batch.is_empty() {
                continue;
            }
            let began = clock::now();
            match self.write(&batch).await {
                Some(Ok(answers)) => {
                    self.health.write_succeeded();
                    backoff.reset();
                    let (sink, attributes) = (self.sink.name(), self.sink.span_attributes());
                    for (task, answer) in tasks.into_iter().zip(answers) {
                        task.span.record_sink_write(sink, attributes, size, began, answer.error());
                        // Nothing waits any more if the settlement has panicked.
                        let _ = task.answer.send(answer);
                    }
                }
                Some(Err(problem)) => {
                    self.health.write_failed(&problem);
                    let (sink, retry_in) = (self.sink.name(), backoff.next_wait());
                    tracing::warn!(
                        sink,
                        error = problem,
                        ?retry_in,
                        results = size,
                        "sink unavailable, will be retried"
                    );
                    if self.force_close.is_cancelled() {
                        continue;
                    }
                    for item in batch.into_iter().zip(tasks).rev() {
                        self.waiting.push_front(item);
                    }
                    self.pause(retry_in).await;
                }
                // The sink may have stored the batch. The tasks go back, and storing their results again has no
                // effect.
                None => {}
            }
        }
    }

    /// Takes queued items without waiting, until so many wait for the sink.
    fn receive_up_to(&mut self, count: usize) {
        while self.waiting.len() < count
            && let Ok(item) = self.items.try_recv()
        {
            self.waiting.push_back(item);
        }
    }

    /// Waits before the next attempt, or until the worker stops waiting for the sink. Results whose channel dies
    /// meanwhile are dropped: the broker redelivers their tasks.
    async fn pause(&mut self, wait: Duration) {
        let until = Instant::now() + wait;
        while Instant::now() < until {
            self.drop_dead();
            tokio::select! {
                biased;
                () = sleep_until(until.min(Instant::now() + CHECK_INTERVAL)) => {}
                () = self.force_close.cancelled() => return,
            }
        }
    }

    /// Writes a batch once. [`None`] if the worker stopped waiting for the answer.
    async fn write(&mut self, batch: &[FinishedTask]) -> Option<Result<Vec<SinkAnswer>, String>> {
        let sink = Arc::clone(&self.sink);
        let force_close = self.force_close.clone();
        // `write` may panic before it returns a future.
        let mut written = std::pin::pin!(caught(async { sink.write(batch).await }));
        let mut given_up = std::pin::pin!(after_last_answers(&force_close));
        let began = Instant::now();
        let mut next_check = Instant::now() + CHECK_INTERVAL;
        let written = loop {
            tokio::select! {
                biased;
                written = &mut written => break written,
                () = &mut given_up => return None,
                () = sleep_until(next_check) => {}
            }
            self.drop_dead();
            if began.elapsed() >= LATE_WRITE {
                self.health.set_late(true);
            }
            if began.elapsed() >= SLOW_WRITE {
                self.health.write_failed(&format!("it has not answered for {} s", SLOW_WRITE.as_secs()));
            }
            next_check += CHECK_INTERVAL;
        };
        self.health.set_late(false);
        Some(match written {
            Ok(Ok(answers)) if answers.len() == batch.len() => Ok(answers),
            Ok(Ok(answers)) => Err(format!("it gave {} answers for {} results", answers.len(), batch.len())),
            Ok(Err(error)) => Err(error.to_string()),
            Err(panic) => {
                self.health.count_panic();
                Err(format!("it panicked: {panic}"))
            }
        })
    }

    /// Drops waiting results whose channel has died. Their tasks are redelivered, so without this each reconnect
    /// would add as many results as the prefetch to the queue of an unavailable sink.
    fn drop_dead(&mut self) {
        self.receive_up_to(usize::MAX);
        drop(take_closed(&mut self.waiting, |(_, task)| task.generation.is_open()));
    }
}
