//! The writer task of one sink.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_common::backoff::Backoff;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    SinkItem,
    batch::{Batch, call_answer},
};
use crate::{
    catch_panic::caught,
    force_close::after_last_answers,
    sink::{Accepted, Finished, Sink, health::Health},
};

/// The maximum size of a batch, in results.
pub(super) const MAX_BATCH: usize = 512;
/// How often results that wait for an unavailable sink are searched for dead channels.
const DEAD_CHANNEL_CHECK: Duration = Duration::from_secs(1);
/// A write that takes longer counts as a failure in readiness and metrics. It is still waited for.
pub(super) const SLOW_WRITE: Duration = Duration::from_secs(30);

/// Writes the results of one sink's queue.
pub(super) struct SinkWriter {
    sink: Arc<dyn Sink>,
    items: mpsc::UnboundedReceiver<SinkItem>,
    /// Taken from `items` and not yet part of a batch.
    waiting: VecDeque<SinkItem>,
    health: Health,
    force_close: CancellationToken,
}

impl SinkWriter {
    pub(super) fn new(
        sink: Arc<dyn Sink>,
        items: mpsc::UnboundedReceiver<SinkItem>,
        health: Health,
        force_close: CancellationToken,
    ) -> Self {
        Self { sink, items, waiting: VecDeque::new(), health, force_close }
    }

    /// Writes batches until the buffer is dropped.
    pub(super) async fn run(&mut self) {
        let mut received = Vec::new();
        loop {
            if self.waiting.is_empty() {
                if self.items.recv_many(&mut received, MAX_BATCH).await == 0 {
                    return;
                }
                self.waiting.extend(received.drain(..));
            }
            self.fill_batch();
            if self.health.is_down() {
                self.drop_dead();
            }
            let batch = Batch::of(self.waiting.drain(..self.waiting.len().min(MAX_BATCH)));
            self.write(batch).await;
        }
    }

    /// Takes queued items without waiting, up to a full batch.
    fn fill_batch(&mut self) {
        while self.waiting.len() < MAX_BATCH
            && let Ok(item) = self.items.try_recv()
        {
            self.waiting.push_back(item);
        }
    }

    /// Offers a batch to the sink until it has answered.
    ///
    /// After a failed attempt, results whose channel has died are dropped from the batch: the broker redelivers
    /// their tasks.
    async fn write(&mut self, mut batch: Batch) {
        let (mut backoff, began) = (Backoff::default(), SystemTime::now());
        while !batch.finished.is_empty() {
            let problem = match self.write_once(&batch.finished).await {
                Some(Ok(answers)) => {
                    self.health.write_succeeded();
                    return batch.answer(answers, self.sink.name(), began);
                }
                Some(Err(problem)) => problem,
                // The sink may have stored the batch. The tasks go back, and storing their results again has no
                // effect.
                None => return batch.give_up(),
            };
            self.health.write_failed(&problem);
            let (retry_in, sink, results) = (backoff.next_wait(), self.sink.name(), batch.finished.len());
            tracing::warn!(sink, error = problem, ?retry_in, results, "sink unavailable, will be retried");
            let until = Instant::now() + retry_in;
            loop {
                batch.drop_dead();
                self.drop_dead();
                let next_check = until.min(Instant::now() + DEAD_CHANNEL_CHECK);
                tokio::select! {
                    () = sleep_until(next_check) => {}
                    () = self.force_close.cancelled() => return batch.give_up(),
                }
                if next_check == until {
                    break;
                }
            }
        }
    }

    /// Writes a batch once. [`None`] if the worker stopped waiting for the answer.
    async fn write_once(&mut self, batch: &[Finished]) -> Option<Result<Vec<Accepted>, String>> {
        let sink = Arc::clone(&self.sink);
        let force_close = self.force_close.clone();
        // `write` may panic before it returns a future.
        let mut written = std::pin::pin!(caught(async { sink.write(batch).await }));
        let mut given_up = std::pin::pin!(after_last_answers(&force_close));
        let slow_from = Instant::now() + SLOW_WRITE;
        let mut next_check = Instant::now() + DEAD_CHANNEL_CHECK;
        let written = loop {
            tokio::select! {
                written = &mut written => break written,
                () = &mut given_up => return None,
                () = sleep_until(next_check) => {}
            }
            self.drop_dead();
            if next_check >= slow_from {
                self.health.write_failed(&format!("it has not answered for {} s", SLOW_WRITE.as_secs()));
            }
            next_check += DEAD_CHANNEL_CHECK;
        };
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
        while let Ok(item) = self.items.try_recv() {
            self.waiting.push_back(item);
        }
        if self.waiting.iter().all(|item| item.generation.alive()) {
            return;
        }
        let (alive, dead): (VecDeque<_>, VecDeque<_>) =
            self.waiting.drain(..).partition(|item| item.generation.alive());
        self.waiting = alive;
        dead.into_iter().for_each(|item| call_answer(item.answer, None));
    }
}
