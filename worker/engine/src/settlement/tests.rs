use std::sync::Mutex;

use futures_util::{FutureExt, future::BoxFuture};
use garenne_amqp::{Broker, PublisherConfig};
use garenne_protocol::task::{ContentType, Envelope, Kind, TaskId, batch_properties, write_batch};
use prometheus::Registry as Prometheus;
use serde::Deserialize;
use tokio::time::sleep;

use super::*;
use crate::{
    Output, RetryPolicy, TaskError, Worker, WorkerConfig,
    attempt::{AttemptEnd, Outcome},
    batch::Batch,
    consumer::{ChannelGeneration, ConsumerConnection, Delivery, SettlementCounters},
    json_payload,
    registry::{Registry, RegistryEntry},
    reply_queues::ReplyQueues,
    sink::{FinishedTask, Sink, SinkError, SinkMetrics},
    spans::AttemptSpan,
};

mod copies;
mod dead_letters;
mod follow_ups;
mod reclaim;
mod records;
mod replies;
mod told;

pub(crate) use garenne_amqp_kit::FakeBroker;

#[derive(Deserialize)]
struct Anything {}
json_payload!(Anything, "any.thing");

/// Gives the same answer for each result; unavailable while it has none.
struct FixedSink(Mutex<Option<SinkAnswer>>);

impl Sink for FixedSink {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn write<'a>(&'a self, batch: &'a [FinishedTask]) -> BoxFuture<'a, Result<Vec<SinkAnswer>, SinkError>> {
        let answer = self.0.lock().unwrap().clone();
        let unavailable = SinkError { sink: "fixed", detail: "unavailable".into() };
        std::future::ready(answer.map(|answer| vec![answer; batch.len()]).ok_or(unavailable)).boxed()
    }
}

/// A settler, and what a task of its lane `fast` consists of.
pub(crate) struct TestSettler {
    pub(crate) settler: Arc<Settler>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) entry: Arc<RegistryEntry>,
    lane: Arc<str>,
    pub(crate) generation: Arc<ChannelGeneration>,
    pub(crate) envelope: Arc<Envelope>,
    pub(crate) metrics: Metrics,
}

fn answering(answer: SinkAnswer) -> Vec<Arc<dyn Sink>> {
    vec![Arc::new(FixedSink(Mutex::new(Some(answer))))]
}

/// A settler whose broker is unreachable.
pub(crate) fn settler_of(sinks: Vec<Arc<dyn Sink>>) -> TestSettler {
    test_settler(sinks, "amqp://127.0.0.1:1/%2f", Routes::default())
}

pub(crate) fn test_settler(sinks: Vec<Arc<dyn Sink>>, url: &str, routes: Routes) -> TestSettler {
    let broker = Broker::new(url, "test").unwrap();
    let (metrics, registry, force_close) =
        (Metrics::new("test"), Prometheus::new(), CancellationToken::new());
    let config = WorkerConfig::default();
    let settler = Arc::new(Settler {
        worker: "test".into(),
        names: Names::new("garenne"),
        ladder: config.retry.ladder().unwrap(),
        max_attempts: 3,
        unknown_kind_wait: config.unknown_kind_wait,
        unhandled: Arc::default(),
        when_dead: BTreeMap::new(),
        routes: Arc::new(routes),
        replies: Some(Replies::new(
            ReplyQueues(vec!["answers".to_owned()]),
            Publisher::new(broker.clone(), PublisherConfig::default()),
        )),
        publisher: Publisher::observed(
            broker.clone(),
            PublisherConfig::default(),
            metrics.connection().clone(),
        ),
        record_places: record_places(),
        held_letter: Semaphore::const_new(1),
        letters: DeadLetters::new(
            Publisher::new(broker.clone(), PublisherConfig::default()),
            Names::new("garenne"),
        ),
        missing: MissingQueues::new(ConsumerConnection::new(broker, metrics.clone()), &registry),
        sink_buffer: SinkBuffer::open(
            sinks,
            &force_close,
            &SinkMetrics::register(&registry),
            &Handle::current(),
        ),
        redeliveries: RedeliveryTracker::default(),
        checkpoints: Arc::default(),
        metrics: metrics.clone(),
        dead_letter_log: LogLimit::default(),
        traces: Traces::default(),
        runtime: Handle::current(),
        tracker: TaskTracker::new(),
        force_close,
    });
    let builder =
        Worker::builder(config).handle(async |_: Anything| Ok::<_, TaskError>(serde_json::json!({})));
    let registry = builder.build().unwrap().into_parts().0;
    let entry = Arc::clone(registry.get("any.thing").unwrap());
    let counters = SettlementCounters { tally: Arc::default(), lane: metrics.lane("test") };
    let task = NewTask::new(Kind::parse("any.thing").unwrap(), ContentType::Json, Vec::new());
    let now = SystemTime::now();
    let envelope = Envelope::read("any.thing", &task.properties(now), None, |_| true, now).unwrap();
    let generation = Arc::new(ChannelGeneration::new(counters, 1));
    let (lane, envelope) = ("fast".into(), Arc::new(envelope));
    TestSettler { settler, registry, entry, lane, generation, envelope, metrics }
}

#[tokio::test(start_paused = true)]
async fn log_lines_of_dead_letters_are_limited_for_each_reason() {
    let settler = settler_of(Vec::new()).settler;
    let lines = |reason| (0..20_000).filter(|_| settler.logs_dead_letter(reason)).count();
    assert_eq!((lines(DeadReason::Malformed), lines(DeadReason::Rejected)), (10, 10));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(lines(DeadReason::Malformed), 10);
}

fn success() -> Outcome {
    let output = Output::json(&serde_json::json!({})).unwrap();
    Outcome::Done { output, started_at: SystemTime::UNIX_EPOCH, took: Duration::ZERO }
}

impl TestSettler {
    fn settle(&self, outcome: Outcome) {
        self.settle_delivery(Delivery::mock(&self.generation, 1, b"{}"), outcome);
    }

    fn settle_delivery(&self, delivery: Delivery, outcome: Outcome) {
        self.settler.settle(self.task_of(delivery), &self.entry, AttemptEnd::not_started(outcome));
    }

    /// The task of a delivery, with the settler's current lane and envelope.
    pub(crate) fn task_of(&self, delivery: Delivery) -> InFlight {
        let (lane, envelope) = (Arc::clone(&self.lane), Arc::clone(&self.envelope));
        InFlight { lane, delivery, envelope, span: AttemptSpan::default(), batch: None }
    }

    /// A batch of tasks with these ids, which are also their payloads.
    pub(crate) fn batch_of(&self, ids: &[&str]) -> InFlight {
        let (kind, now) = (&self.envelope.kind, SystemTime::now());
        let task = |id: &&str| {
            let (id, body) = (TaskId::parse(id).unwrap(), format!("{id:?}").into_bytes());
            NewTask::with_id(id, kind.clone(), ContentType::Json, body)
        };
        let body = write_batch(&ids.iter().map(task).collect::<Vec<_>>()).unwrap();
        let mut delivery = Delivery::mock(&self.generation, 1, &body);
        delivery.set_properties(batch_properties(kind, None, now));
        let envelope = Envelope::read("any.thing", &delivery.head.properties, None, |_| true, now).unwrap();
        let batch = Batch::read(&envelope, &delivery.body, &Arc::default()).unwrap();
        let (envelope, batch) = (Arc::new(envelope), Some(Arc::new(batch)));
        InFlight { envelope, batch, ..self.task_of(delivery) }
    }

    /// Begins a step of a settlement.
    fn begin<F: Future<Output = ()> + Send + 'static>(&self, step: impl FnOnce(Arc<Settler>) -> F) {
        self.settler.in_background("test", step(Arc::clone(&self.settler)));
    }

    fn done(&self) {
        self.settle(success());
    }

    async fn settlement(&self) -> Vec<(u64, Settlement)> {
        sleep(Duration::from_millis(500)).await;
        self.generation.requested_settlements()
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_sink_a_success_is_acked_immediately() {
    let test = settler_of(Vec::new());
    test.done();
    assert_eq!(test.generation.requested_settlements(), [(1, Settlement::Acked)]);
    assert!(test.settler.tracker.is_empty(), "nothing was spawned");
    assert!(!test.settler.redeliveries.has_succeeded(&test.envelope.id), "the ack will reach the broker");
}

#[tokio::test(start_paused = true)]
async fn a_result_is_stored_before_its_task_is_acked() {
    let sink = Arc::new(FixedSink(Mutex::default()));
    let test = settler_of(vec![sink.clone()]);
    test.done();
    assert_eq!(test.settlement().await, [], "the sink is unavailable");
    *sink.0.lock().unwrap() = Some(SinkAnswer::Stored);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(test.settlement().await, [(1, Settlement::Acked)]);
    test.settler.idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_not_stored_before_the_force_close_is_handed_back() {
    let test = settler_of(vec![Arc::new(FixedSink(Mutex::default()))]);
    test.done();
    test.settler.force_close.cancel();
    assert_eq!(test.settlement().await, [(1, Settlement::Requeued)]);
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_channel_died_before_its_ack_is_remembered_as_done() {
    let test = settler_of(answering(SinkAnswer::Stored));
    test.generation.end();
    test.done();
    assert_eq!(test.settlement().await, [(1, Settlement::Acked)]);
    assert!(test.settler.redeliveries.has_succeeded(&test.envelope.id));
}

/// The broker's consumer timeout can take a delivery away before its ack arrives, while the channel stays open.
#[tokio::test(start_paused = true)]
async fn a_redelivered_task_is_remembered_as_done() {
    let test = settler_of(answering(SinkAnswer::Stored));
    let mut delivery = Delivery::mock(&test.generation, 1, b"{}");
    delivery.head_mut().redelivered = true;
    test.settle_delivery(delivery, success());
    assert_eq!(test.settlement().await, [(1, Settlement::Acked)]);
    assert!(test.settler.redeliveries.has_succeeded(&test.envelope.id));
}

#[tokio::test(start_paused = true)]
async fn a_task_without_an_id_of_its_publisher_is_not_remembered() {
    let mut test = settler_of(Vec::new());
    test.envelope = Arc::new(Envelope { id_given: false, ..Envelope::clone(&test.envelope) });
    test.generation.end();
    test.done();
    assert!(!test.settler.redeliveries.has_succeeded(&test.envelope.id), "its next delivery gets another id");
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_result_is_refused_is_requeued_if_its_dead_letter_is_not_confirmed() {
    for answer in [SinkAnswer::Refused("never".into()), SinkAnswer::Conflict("stored otherwise".into())] {
        let test = settler_of(answering(answer));
        test.metrics.register_kinds(["any.thing"]);
        test.done();
        assert_eq!(test.settlement().await, [], "the dead letter is not confirmed");
        let dead = test.metrics.kind_counts()["any.thing"].dead.clone();
        assert_eq!(dead.values().sum::<u64>(), 1, "{dead:?}");
        test.settler.force_close.cancel();
        sleep(Duration::from_secs(2)).await;
        assert_eq!(test.settlement().await, [(1, Settlement::Requeued)], "the original is handed back");
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_is_given_up_when_the_channel_of_the_original_dies() {
    let test = settler_of(Vec::new());
    test.settle(Outcome::Defer { wait: Duration::from_secs(1) });
    assert_eq!(test.settlement().await, []);
    test.generation.end();
    sleep(Duration::from_secs(30)).await;
    assert_eq!(test.settlement().await, [(1, Settlement::Requeued)]);
    test.settler.idle().await;
}

#[tokio::test(start_paused = true)]
async fn handed_back_and_abandoned_tasks_are_settled_immediately() {
    for (outcome, settlement) in
        [(Outcome::HandBack, Settlement::Requeued), (Outcome::Abandon, Settlement::Abandoned)]
    {
        let test = settler_of(Vec::new());
        test.settle(outcome);
        assert_eq!(test.generation.requested_settlements(), [(1, settlement)]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_failed_attempt_makes_a_dead_letter_and_earlier_ones_a_retry() {
    for (spent, dead) in [(1, 0), (2, 1)] {
        let mut test = settler_of(Vec::new());
        test.metrics.register_kinds(["any.thing"]);
        test.envelope = Arc::new(Envelope { attempt: spent, ..Envelope::clone(&test.envelope) });
        test.settle(Outcome::Retry { error: "io".into(), after: None });
        assert_eq!(test.settlement().await, [], "the copy is not confirmed");
        let counts = test.metrics.kind_counts();
        let counted = counts.get("any.thing").map_or(0, |kind| kind.dead.values().sum::<u64>());
        assert_eq!(counted, dead, "attempt {} of 3", spent + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_attempts_of_a_kind_replace_those_of_the_worker() {
    for (attempts, spent, dead) in [(2, 0, 0), (2, 1, 1), (4, 2, 0), (4, 3, 1)] {
        let mut test = settler_of(Vec::new());
        test.metrics.register_kinds(["any.thing"]);
        // Only the test has the entry then.
        test.registry = Arc::default();
        let entry = Arc::get_mut(&mut test.entry).unwrap();
        entry.options.retry = RetryPolicy::default().attempts(attempts);
        test.envelope = Arc::new(Envelope { attempt: spent, ..Envelope::clone(&test.envelope) });
        test.settle(Outcome::Retry { error: "io".into(), after: None });
        let counts = test.metrics.kind_counts();
        let counted = counts.get("any.thing").map_or(0, |kind| kind.dead.values().sum::<u64>());
        assert_eq!(counted, dead, "attempt {} of {attempts}", spent + 1);
    }
}
