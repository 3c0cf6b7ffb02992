//! The buffer in front of the sinks: gathers results into batches and returns an answer for each result.
//!
//! Each sink has a queue and a writer task of its own, so that one that is unavailable, hangs or panics does not
//! delay the others. While a writer writes one batch, the next one gathers in its queue. A result is answered for
//! once every sink has answered.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use futures_util::FutureExt;
use garenne_common::supervise;
use garenne_protocol::heartbeat::SinkBeat;
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
};
use tokio_util::sync::CancellationToken;

use super::{
    FinishedTask, Sink, SinkAnswer,
    background::{BackgroundWork, WorkerState},
    health::{Health, SinkMetrics},
};
use crate::{
    consumer::ChannelGeneration, in_flight::InFlight, spans::AttemptSpan, task_publisher::TaskPublisher,
};

#[cfg(test)]
mod tests;
mod writer;

use writer::SinkWriter;

/// A task that waits for a sink to store its result.
struct WaitingTask {
    span: AttemptSpan,
    /// The channel that the task was delivered on.
    generation: Arc<ChannelGeneration>,
    /// Dropped if the channel dies while the sink is unavailable, or if the worker stops waiting.
    answer: oneshot::Sender<SinkAnswer>,
}

/// A result on its way to a sink.
type SinkItem = (FinishedTask, WaitingTask);

/// The queues of all sinks of a worker. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SinkBuffer {
    queues: Arc<[SinkQueue]>,
    /// Runs the writers and the background work.
    runtime: Handle,
}

struct SinkQueue {
    sink: Arc<dyn Sink>,
    // Bounded by the prefetch: each item has an unsettled delivery. Items of dead channels are removed soon.
    items: mpsc::UnboundedSender<SinkItem>,
    health: Health,
}

impl SinkBuffer {
    /// Starts a writer task for each sink on `runtime`, which is not that of the broker's connections: a sink that blocks
    /// its thread must not delay heartbeats. After `force_close` is cancelled, results of unavailable sinks are no
    /// longer waited for.
    pub(crate) fn open(
        sinks: Vec<Arc<dyn Sink>>,
        force_close: &CancellationToken,
        metrics: &SinkMetrics,
        runtime: &Handle,
    ) -> Self {
        let open = |sink: Arc<dyn Sink>| {
            let (sender, items) = mpsc::unbounded_channel();
            let health = metrics.health(sink.name());
            let (waiting, force_close) = (VecDeque::new(), force_close.clone());
            let writer =
                SinkWriter { sink: Arc::clone(&sink), items, waiting, health: health.clone(), force_close };
            // A panic drops the batch in progress without answers. The task ends with the buffer.
            supervise::restarting("sink", writer, |writer| writer.run().boxed()).spawn_on(runtime).detach();
            SinkQueue { sink, items: sender, health }
        };
        Self { queues: sinks.into_iter().map(open).collect(), runtime: runtime.clone() }
    }

    /// Whether the worker has no sink.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    pub(crate) fn start_background(
        &self,
        publisher: &TaskPublisher,
        worker: &Arc<dyn WorkerState>,
        force_close: &CancellationToken,
    ) -> BackgroundWork {
        let sinks = self.queues.iter().map(|queue| (&queue.sink, &queue.health));
        BackgroundWork::start(sinks, publisher, worker, force_close, &self.runtime)
    }

    /// The failing parts of sinks.
    pub(crate) fn problems(&self) -> impl Iterator<Item = String> {
        self.queues.iter().flat_map(|queue| queue.health.problems())
    }

    /// The state of each sink, by name.
    pub(crate) fn beats(&self) -> BTreeMap<String, SinkBeat> {
        self.queues.iter().map(|queue| (queue.sink.name().to_owned(), queue.health.beat())).collect()
    }

    /// Tells every sink of a task without a result.
    pub(crate) fn ended_without_result(&self, kind: &str, task_id: &str, is_dead: bool) {
        self.queues.iter().for_each(|queue| queue.sink.ended_without_result(kind, task_id, is_dead));
    }

    /// Queues a result for every sink.
    pub(crate) fn offer(&self, task: &InFlight, finished: FinishedTask) -> SinkAnswers {
        let mut answers = Vec::with_capacity(self.queues.len());
        if let Some((last, others)) = self.queues.split_last() {
            answers.extend(others.iter().map(|queue| queue.push(task, finished.clone())));
            answers.push(last.push(task, finished));
        }
        SinkAnswers(answers)
    }
}

/// The answers of all sinks for a result.
#[derive(Default)]
pub(crate) struct SinkAnswers(Vec<oneshot::Receiver<SinkAnswer>>);

impl SinkAnswers {
    /// The common answer, once all sinks have answered. [`None`] if one gives none: the task's channel died while the sink
    /// was unavailable, or the worker stopped waiting.
    pub(crate) async fn common(self) -> Option<SinkAnswer> {
        let mut common = Some(SinkAnswer::Stored);
        for answer in self.0 {
            common = answer.await.ok().zip(common).map(|(one, all)| all.and(one));
        }
        common
    }
}

impl SinkQueue {
    /// Queues a result. The answer fails if the sink gives none.
    fn push(&self, task: &InFlight, finished: FinishedTask) -> oneshot::Receiver<SinkAnswer> {
        let (answer, answered) = oneshot::channel();
        let waiting = WaitingTask { span: task.span.clone(), generation: task.delivery.generation(), answer };
        // The writer task ends only with the runtime. Then there is no answer.
        let _ = self.items.send((finished, waiting));
        answered
    }
}
