use std::sync::Mutex;

use futures_util::{FutureExt, future::BoxFuture};
use garenne_amqp::{Broker, PublisherConfig};
use garenne_protocol::task::{ContentType, Kind};
use prometheus::Registry as Prometheus;
use serde::Deserialize;
use tokio::time::sleep;

use super::*;
use crate::{
    Output, Worker, WorkerConfig,
    consumer::{ChannelGeneration, ConsumerConnection, SettlementCounters},
    json_payload,
    sink::{Sink, SinkError, SinkMetrics},
    supervise::Panics,
};

mod copies;
mod fake_broker;
mod follow_ups;

pub(crate) use fake_broker::FakeBroker;

#[derive(Deserialize)]
struct Anything {}
json_payload!(Anything, "any.thing");

/// Says the same of each result; nothing while it has no word.
struct Says(Mutex<Option<Accepted>>);

impl Sink for Says {
    fn name(&self) -> &'static str {
        "says"
    }

    fn write<'a>(&'a self, batch: &'a [Finished]) -> BoxFuture<'a, Result<Vec<Accepted>, SinkError>> {
        let word = self.0.lock().unwrap().clone();
        let away = SinkError { sink: "says", detail: "away".into() };
        std::future::ready(word.map(|word| vec![word; batch.len()]).ok_or(away)).boxed()
    }
}

/// A settler whose broker nobody can reach, and one delivery.
pub(crate) struct Bench {
    pub(crate) settler: Arc<Settler>,
    pub(crate) entry: Arc<Entry>,
    lane: Arc<str>,
    pub(crate) generation: Arc<ChannelGeneration>,
    pub(crate) envelope: Arc<Envelope>,
    pub(crate) metrics: Metrics,
}

fn says(word: Accepted) -> Vec<Arc<dyn Sink>> {
    vec![Arc::new(Says(Mutex::new(Some(word))))]
}

fn bench(sinks: Vec<Arc<dyn Sink>>) -> Bench {
    bench_with(sinks, "amqp://127.0.0.1:1/%2f", Routes::default())
}

/// The same for a broker that can be reached, and other lanes.
pub(crate) fn bench_with(sinks: Vec<Arc<dyn Sink>>, url: &str, routes: Routes) -> Bench {
    let broker = Broker::new(url, "test").unwrap();
    let (metrics, registry, force_close) =
        (Metrics::new("test"), Prometheus::new(), CancellationToken::new());
    let (panics, config) = (Panics::register(&registry), WorkerConfig::default());
    let settler = Arc::new(Settler {
        worker: "test".into(),
        names: Names::new("garenne"),
        ladder: config.retry.ladder().unwrap(),
        max_attempts: 3,
        routes: Arc::new(routes),
        replies: true,
        publisher: Publisher::new(broker.clone(), PublisherConfig::default()),
        missing: MissingQueues::new(ConsumerConnection::new(broker, metrics.clone()), &registry),
        sink_buffer: SinkBuffer::open(sinks, &force_close, &SinkMetrics::register(&registry), &panics),
        redeliveries: RedeliveryTracker::default(),
        metrics: metrics.clone(),
        traces: Traces::default(),
        runtime: Handle::current(),
        tracker: TaskTracker::new(),
        force_close,
        unroutable_replies: 0.into(),
    });
    let builder = Worker::builder(config).handle(async |_, _: Anything| Ok(serde_json::json!({})));
    let entry = Arc::clone(builder.build().unwrap().into_registry().get("any.thing").unwrap());
    let counters = SettlementCounters { tally: Arc::default(), lane: metrics.lane("test") };
    let task = NewTask::new(Kind::parse("any.thing").unwrap(), ContentType::Json, Vec::new());
    let now = SystemTime::now();
    let envelope = Envelope::read("any.thing", &task.properties(now), None, |_| true, now).unwrap();
    let generation = Arc::new(ChannelGeneration::new(counters, 1));
    Bench { settler, entry, lane: "fast".into(), generation, envelope: Arc::new(envelope), metrics }
}

fn success() -> Outcome {
    let output = Output::json(&serde_json::json!({})).unwrap();
    Outcome::Done { output, started_at: SystemTime::UNIX_EPOCH, took: Duration::ZERO }
}

impl Bench {
    fn settle(&self, outcome: Outcome) {
        self.settle_delivery(Delivery::mock(&self.generation, 1, b"{}"), outcome);
    }

    fn settle_delivery(&self, delivery: Delivery, outcome: Outcome) {
        let end = AttemptEnd { outcome, attempt: None, took: None };
        let envelope = Arc::clone(&self.envelope);
        self.settler.settle(&self.lane, delivery, envelope, &self.entry, end, AttemptSpan::default());
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
async fn without_a_sink_success_is_acked_at_once() {
    let bench = bench(Vec::new());
    bench.done();
    assert_eq!(bench.generation.requested_settlements(), [(1, Settlement::Acked)]);
    assert!(!bench.settler.redeliveries.has_succeeded(&bench.envelope.id), "the ack will be heard");
}

#[tokio::test(start_paused = true)]
async fn a_result_is_stored_before_its_task_is_acked() {
    let sink = Arc::new(Says(Mutex::default()));
    let bench = bench(vec![sink.clone()]);
    bench.done();
    assert_eq!(bench.settlement().await, [], "the sink is away");
    *sink.0.lock().unwrap() = Some(Accepted::Stored);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(bench.settlement().await, [(1, Settlement::Acked)]);
    bench.settler.idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_result_that_no_sink_took_in_time_goes_back() {
    let bench = bench(vec![Arc::new(Says(Mutex::default()))]);
    bench.done();
    bench.settler.force_close.cancel();
    assert_eq!(bench.settlement().await, [(1, Settlement::Requeued)]);
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_channel_died_before_its_ack_does_not_run_again() {
    let bench = bench(says(Accepted::Stored));
    bench.generation.end();
    bench.done();
    assert_eq!(bench.settlement().await, [(1, Settlement::Acked)]);
    assert!(bench.settler.redeliveries.has_succeeded(&bench.envelope.id));
}

/// The broker's consumer timeout can take a delivery away while its ack is on the way, and the channel stays open.
#[tokio::test(start_paused = true)]
async fn a_task_that_came_back_does_not_run_again_when_it_comes_back_once_more() {
    let bench = bench(says(Accepted::Stored));
    let mut delivery = Delivery::mock(&bench.generation, 1, b"{}");
    delivery.redelivered = true;
    bench.settle_delivery(delivery, success());
    assert_eq!(bench.settlement().await, [(1, Settlement::Acked)]);
    assert!(bench.settler.redeliveries.has_succeeded(&bench.envelope.id));
}

#[tokio::test(start_paused = true)]
async fn an_id_of_our_own_is_not_remembered() {
    let mut bench = bench(Vec::new());
    bench.envelope = Arc::new(Envelope { id_given: false, ..Envelope::clone(&bench.envelope) });
    bench.generation.end();
    bench.done();
    assert!(
        !bench.settler.redeliveries.has_succeeded(&bench.envelope.id),
        "the next delivery has another one"
    );
}

#[tokio::test(start_paused = true)]
async fn a_refused_or_contradicting_result_is_a_dead_letter_whose_copy_comes_first() {
    for word in [Accepted::Refused("never".into()), Accepted::Conflict("stored otherwise".into())] {
        let bench = bench(says(word));
        bench.metrics.register_kinds(["any.thing"]);
        bench.done();
        assert_eq!(bench.settlement().await, [], "no copy is confirmed");
        let dead = bench.metrics.kind_counts()["any.thing"].dead.clone();
        assert_eq!(dead.values().sum::<u64>(), 1, "{dead:?}");
        bench.settler.force_close.cancel();
        sleep(Duration::from_secs(2)).await;
        assert_eq!(bench.settlement().await, [(1, Settlement::Requeued)], "the original is still there");
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_is_given_up_when_the_deliverys_channel_dies() {
    let bench = bench(Vec::new());
    bench.settle(Outcome::PutOff { wait: Duration::from_secs(1) });
    assert_eq!(bench.settlement().await, []);
    bench.generation.end();
    sleep(Duration::from_secs(30)).await;
    assert_eq!(bench.settlement().await, [(1, Settlement::Requeued)]);
    bench.settler.idle().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_handed_back_or_left_is_decided_at_once() {
    for (outcome, settlement) in
        [(Outcome::HandBack, Settlement::Requeued), (Outcome::Abandon, Settlement::Abandoned)]
    {
        let bench = bench(Vec::new());
        bench.settle(outcome);
        assert_eq!(bench.generation.requested_settlements(), [(1, settlement)]);
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_that_are_spent_make_a_dead_letter_and_others_a_retry() {
    for (spent, dead) in [(1, 0), (2, 1)] {
        let mut bench = bench(Vec::new());
        bench.metrics.register_kinds(["any.thing"]);
        bench.envelope = Arc::new(Envelope { attempt: spent, ..Envelope::clone(&bench.envelope) });
        bench.settle(Outcome::Retry { error: "io".into(), after: None });
        assert_eq!(bench.settlement().await, [], "the copy comes first");
        let counts = bench.metrics.kind_counts();
        let counted = counts.get("any.thing").map_or(0, |kind| kind.dead.values().sum::<u64>());
        assert_eq!(counted, dead, "attempt {} of 3", spent + 1);
    }
}
