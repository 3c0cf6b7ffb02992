//! The buffer in front of the sinks: gathers results into batches and answers for each result.
//!
//! Each sink has a queue and a writer task of its own, so that one that is unavailable, hangs or panics does not
//! delay the others. While a writer writes one batch, the next one gathers in its queue. A result is answered for
//! once every sink has answered.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
};

use futures_util::FutureExt;
use garenne_common::supervise::{self, catch, count_panic};
use garenne_protocol::heartbeat::SinkBeat;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    FinishedTask, Sink, SinkAnswer,
    background::{BackgroundWork, IsConsuming, IsLanePaused},
    health::{Health, SinkMetrics},
};
use crate::{consumer::ChannelGeneration, panics::lock, spans::AttemptSpan, task_publisher::TaskPublisher};

#[cfg(test)]
mod tests;
mod writer;

use writer::SinkWriter;

/// Receives the sinks' common answer for a result. [`None`] means that a sink gave none: the result's channel died
/// while the sink was unavailable, or the worker stopped waiting.
pub(crate) type Answer = Box<dyn FnOnce(Option<SinkAnswer>) + Send>;

/// A task that waits for the sinks to store its result.
pub(crate) struct WaitingTask {
    pub(crate) span: AttemptSpan,
    /// The channel that the task was delivered on.
    pub(crate) generation: Arc<ChannelGeneration>,
    pub(crate) answer: Answer,
}

impl WaitingTask {
    /// Passes on the answer. A panic concerns the settlement of this task and must not end the writer.
    fn answer(self, accepted: Option<SinkAnswer>) {
        if catch(|| (self.answer)(accepted)).is_err() {
            // The panic hook has logged it. Unwinding dropped the delivery, which hands it back.
            count_panic("settlement");
        }
    }
}

/// A result on its way to a sink.
type SinkItem = (FinishedTask, WaitingTask);

/// The queues of all sinks of a worker. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SinkBuffer(Arc<[SinkQueue]>);

/// The queue of one sink.
struct SinkQueue {
    sink: Arc<dyn Sink>,
    // Bounded by the prefetch: each item has an unsettled delivery. Items of dead channels are removed soon.
    items: mpsc::UnboundedSender<SinkItem>,
    health: Health,
}

impl SinkBuffer {
    /// Starts a writer task for each sink. After `force_close` is cancelled, results of unavailable sinks are no
    /// longer waited for.
    pub(crate) fn open(
        sinks: Vec<Arc<dyn Sink>>,
        force_close: &CancellationToken,
        metrics: &SinkMetrics,
    ) -> Self {
        let open = |sink: Arc<dyn Sink>| {
            let (sender, items) = mpsc::unbounded_channel();
            let health = metrics.health(sink.name());
            let (waiting, force_close) = (VecDeque::new(), force_close.clone());
            let writer =
                SinkWriter { sink: Arc::clone(&sink), items, waiting, health: health.clone(), force_close };
            // A panic drops the batch in progress, which hands its deliveries back. The task ends with the buffer.
            supervise::restarting("sink", writer, |writer| writer.run().boxed()).spawn().detach();
            SinkQueue { sink, items: sender, health }
        };
        Self(sinks.into_iter().map(open).collect())
    }

    /// Whether the worker has no sink.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Starts the background work of all sinks.
    pub(crate) fn start_background(
        &self,
        publisher: &TaskPublisher,
        is_consuming: &IsConsuming,
        is_lane_paused: &IsLanePaused,
        force_close: &CancellationToken,
    ) -> BackgroundWork {
        let sinks = self.0.iter().map(|queue| (&queue.sink, &queue.health));
        BackgroundWork::start(sinks, publisher, is_consuming, is_lane_paused, force_close)
    }

    /// The failing parts of sinks.
    pub(crate) fn problems(&self) -> impl Iterator<Item = String> {
        self.0.iter().flat_map(|queue| queue.health.problems())
    }

    /// The state of each sink, by name.
    pub(crate) fn beats(&self) -> BTreeMap<String, SinkBeat> {
        self.0.iter().map(|queue| (queue.sink.name().to_owned(), queue.health.beat())).collect()
    }

    /// Tells every sink of a task without a result.
    pub(crate) fn has_no_result(&self, kind: &str, task_id: &str, is_dead: bool) {
        self.0.iter().for_each(|queue| queue.sink.has_no_result(kind, task_id, is_dead));
    }

    /// Queues a result for every sink. The task is answered once all of them have answered, at once if there is
    /// none.
    pub(crate) fn submit(&self, finished: FinishedTask, task: WaitingTask) {
        match &*self.0 {
            [] => (task.answer)(Some(SinkAnswer::Stored)),
            [queue] => queue.push((finished, task)),
            queues => {
                let WaitingTask { span, generation, answer } = task;
                let (accepted, remaining) = (Some(SinkAnswer::Stored), queues.len());
                let pending = PendingResult { accepted, remaining, answer: Some(answer) };
                let pending = Arc::new(Mutex::new(pending));
                for queue in queues {
                    let pending = Arc::clone(&pending);
                    let answer = Box::new(move |accepted| add_answer(&pending, accepted));
                    let (span, generation) = (span.clone(), Arc::clone(&generation));
                    queue.push((finished.clone(), WaitingTask { span, generation, answer }));
                }
            }
        }
    }
}

impl SinkQueue {
    fn push(&self, item: SinkItem) {
        // The writer task ends only with the runtime. The item is dropped then, which hands the delivery back.
        let _ = self.items.send(item);
    }
}

/// A result that several sinks answer for.
struct PendingResult {
    /// The combined answer of the sinks so far; [`None`] if one of them gave none.
    accepted: Option<SinkAnswer>,
    /// The number of sinks that have not answered.
    remaining: usize,
    answer: Option<Answer>,
}

/// Adds the answer of one sink. The last one calls the result's answer.
fn add_answer(pending: &Mutex<PendingResult>, accepted: Option<SinkAnswer>) {
    let mut pending = lock(pending);
    pending.accepted = pending.accepted.take().zip(accepted).map(|(all, one)| all.and(one));
    pending.remaining -= 1;
    if pending.remaining == 0
        && let Some(answer) = pending.answer.take()
    {
        let accepted = pending.accepted.take();
        drop(pending);
        answer(accepted);
    }
}
