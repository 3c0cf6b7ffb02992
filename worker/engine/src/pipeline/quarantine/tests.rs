use garenne_common::{shutdown::Settlement, telemetry::Traces};
use garenne_pool::{Pool, PoolConfig};
use garenne_protocol::{
    task::{ContentType, Kind, NewTask, header},
    topology::Names,
};
use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore},
    task::yield_now,
    time::timeout,
};

use super::*;
use crate::{
    fleet::tests::{FakeFleet as Fleet, hello, member, run},
    handler::{Routes, WorkerContext},
    settlement::tests::{Bench, FakeBroker, bench_with},
    spans::Spans,
};

const GRACE: i64 = 600_000;

fn task() -> Envelope {
    let task = NewTask::new(Kind::parse("k").unwrap(), ContentType::Json, Vec::new());
    let now = SystemTime::now();
    Envelope::read("k", &task.properties(now), None, |_| true, now).unwrap()
}

#[test]
fn two_crashes_that_stand_make_a_poison() {
    let who = |life: &str| WorkerIncarnation::new("w", life);
    let first = task();
    assert_eq!(count(&first, who("a"), false), Judgement::Crashed(who("a"), 1));
    let second = Envelope { quarantine_runs: 1, quarantine_worker: Some(who("a")), ..task() };
    assert_eq!(count(&second, who("b"), true), Judgement::Crashed(who("b"), POISONOUS_RUNS));
    assert_eq!(count(&second, who("b"), false), Judgement::Crashed(who("b"), 1), "the first is alive");
    let forged = Envelope { quarantine_runs: u32::MAX, ..second };
    assert_eq!(count(&forged, who("b"), true), Judgement::Crashed(who("b"), u32::MAX));
}

#[test]
fn a_kind_that_another_worker_has_is_handed_on_for_as_long_as_it_takes() {
    let waiting = Envelope { quarantine_since: Some(1), ..task() };
    assert_eq!(Unhandled::of(&waiting, true, i64::MAX), Unhandled::HandOn { since: 1 });
}

#[test]
fn a_kind_that_no_worker_has_is_handed_on_for_a_bounded_time() {
    let now = 1_800_000_000_000;
    let fate = |since| Unhandled::of(&Envelope { quarantine_since: since, ..task() }, false, now);
    assert_eq!(fate(None), Unhandled::HandOn { since: now });
    assert_eq!(fate(Some(now - GRACE + 1)), Unhandled::HandOn { since: now - GRACE + 1 });
    assert_eq!(fate(Some(now - GRACE)), Unhandled::Unknown);
    assert_eq!(fate(Some(now + 1)), Unhandled::HandOn { since: now }, "no wait is longer than that");
}

/// Longer than anything here takes, on a busy machine too.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The quarantine of one worker, one delivery, the broker and what the fleet has on record.
struct Scene {
    bench: Bench,
    broker: FakeBroker,
    fleet: Arc<Fleet>,
    pipeline: Arc<LanePipeline>,
}

async fn scene() -> Scene {
    let broker = FakeBroker::start(131_072).await;
    let bench = bench_with(Vec::new(), &broker.url(), Routes::default());
    bench.metrics.register_kinds(["any.thing"]);
    let (member, fleet) = member();
    let second = Duration::from_secs(1);
    let config = PoolConfig {
        name: "quarantine".into(),
        queue: 4,
        workers: 1..=1,
        idle_timeout: 60 * second,
        default_deadline: 60 * second,
        grace: second,
    };
    let (settler, spans) = (Arc::clone(&bench.settler), Arc::<Spans>::default());
    let worker_context = WorkerContext {
        routes: Arc::clone(&settler.routes),
        progress: Arc::default(),
        traces: Traces::default(),
        batch: None,
    };
    let pipeline = Arc::new(LanePipeline {
        lane: Names::QUARANTINE.into(),
        default_kind: None,
        max_payload: 1000,
        worker: "me".into(),
        worker_context,
        registry: Arc::default(),
        pool: Pool::start(config, Handle::current()).unwrap(),
        settler,
        member,
        batches: Arc::default(),
        spans,
        pack_time: second,
        quarantine: true,
        alone: Arc::new(Semaphore::new(1)),
        room: Notify::new(),
    });
    Scene { bench, broker, fleet, pipeline }
}

impl Scene {
    /// Takes the task: for the first time, or after it came back.
    async fn take(&mut self, redelivered: bool, task: Envelope, entry: Option<Arc<Entry>>) {
        let mut delivery = Delivery::mock(&self.bench.generation, 1, b"{}");
        delivery.redelivered = redelivered;
        let suspect = Quarantined::Task(Arc::new(task));
        timeout(TIMEOUT, Arc::clone(&self.pipeline).quarantined(delivery, suspect, entry)).await.unwrap();
    }

    fn task(&self) -> Envelope {
        Envelope::clone(&self.bench.envelope)
    }

    fn entry(&self) -> Option<Arc<Entry>> {
        Some(Arc::clone(&self.bench.entry))
    }

    /// Records that a worker crashed while it ran the task: another incarnation has its queue.
    fn crash(&self, worker: &str) -> WorkerIncarnation {
        let (before, after) = (format!("{worker}-1"), format!("{worker}-2"));
        let member = &self.pipeline.member;
        hello(member, worker, &before);
        run(member, worker, &before, self.bench.envelope.id.as_str());
        hello(member, worker, &after);
        WorkerIncarnation::new(worker, before)
    }

    async fn settlement(&self) -> Settlement {
        let settling = async {
            while self.bench.generation.requested_settlements().is_empty() {
                yield_now().await;
            }
        };
        timeout(TIMEOUT, settling).await.expect("it is settled");
        self.bench.generation.requested_settlements()[0].1
    }
}

#[tokio::test]
async fn a_run_is_on_record_from_its_start_to_its_end_and_then_settled() {
    let mut scene = scene().await;
    let (task, entry) = (scene.task(), scene.entry());
    scene.take(false, task, entry).await;
    assert_eq!(scene.settlement().await, Settlement::Acked);
    assert_eq!((scene.fleet.events("run-started"), scene.fleet.events("run-ended")), (1, 1));
    assert_eq!(scene.pipeline.alone.available_permits(), 1, "the next run may start");
}

#[tokio::test]
async fn a_task_that_crashed_its_worker_waits_for_another_run_and_then_is_poison() {
    let mut scene = scene().await;
    let crashed = scene.crash("w");
    let (task, entry) = (scene.task(), scene.entry());
    scene.take(true, task, entry.clone()).await;
    let copy = scene.broker.next().await;
    assert_eq!(copy.key, "garenne.retry.quarantine.1s");
    assert_eq!(copy.number(header::QUARANTINE_RUNS), Some(1));
    copy.ack();
    assert_eq!(scene.settlement().await, Settlement::Quarantined);

    let mut again = self::scene().await;
    again.crash("w");
    again.crash("v");
    let task = Envelope { quarantine_runs: 1, quarantine_worker: Some(crashed), ..again.task() };
    again.take(true, task, entry).await;
    let copy = again.broker.next().await;
    assert_eq!((copy.key.as_str(), copy.text(header::REASON).unwrap().as_str()), ("garenne.dead", "poison"));
    copy.ack();
    assert_eq!(again.settlement().await, Settlement::Dead);
    assert_eq!(again.fleet.events("run-started"), 0);
}

#[tokio::test]
async fn a_task_that_came_back_without_a_crash_runs() {
    let mut scene = scene().await;
    let (task, entry) = (scene.task(), scene.entry());
    scene.take(true, task, entry).await;
    assert_eq!(scene.settlement().await, Settlement::Acked);
}

/// What another worker crashed over is another delivery's matter.
#[tokio::test]
async fn a_task_that_did_not_come_back_is_not_judged() {
    let mut scene = scene().await;
    scene.crash("w");
    let (task, entry) = (scene.task(), scene.entry());
    scene.take(false, task, entry).await;
    assert_eq!(scene.settlement().await, Settlement::Acked);
}

#[tokio::test]
async fn a_task_without_an_id_gets_one_before_it_runs() {
    let mut scene = scene().await;
    let (task, entry) = (Envelope { id_given: false, ..scene.task() }, scene.entry());
    scene.take(false, task, entry).await;
    let copy = scene.broker.next().await;
    assert_eq!(copy.key, "garenne.retry.quarantine.1s");
    assert!(copy.properties.message_id().is_some());
    copy.ack();
    assert_eq!(scene.settlement().await, Settlement::Quarantined);
}

#[tokio::test]
async fn a_task_of_a_kind_without_a_handler_is_handed_on_and_at_last_dead() {
    for (since, key) in [(None, "garenne.retry.quarantine.1s"), (Some(1), "garenne.dead")] {
        let mut scene = scene().await;
        let task = Envelope { quarantine_since: since, ..scene.task() };
        scene.take(false, task, None).await;
        let copy = scene.broker.next().await;
        assert_eq!(copy.key, key);
        assert_eq!(copy.text(header::REASON).is_some(), since.is_some());
    }
}

#[tokio::test]
async fn a_task_whose_last_run_is_not_decided_yet_goes_back_when_its_channel_dies() {
    let mut scene = scene().await;
    hello(&scene.pipeline.member, "w", "a");
    run(&scene.pipeline.member, "w", "a", scene.bench.envelope.id.as_str());
    scene.bench.generation.end();
    let (task, entry) = (scene.task(), scene.entry());
    scene.take(true, task, entry).await;
    assert_eq!(scene.settlement().await, Settlement::Requeued);
    assert_eq!(scene.fleet.events("run-started"), 0);
}
