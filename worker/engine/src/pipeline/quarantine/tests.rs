use std::sync::atomic::Ordering;

use garenne_common::{config::Lane, telemetry::Traces};
use garenne_pool::{Cause, Completion, Ending, Pool, PoolConfig};
use garenne_protocol::{
    amqp::{BasicProperties, FieldTable},
    settlement::Settlement,
    task::{ContentType, Kind, NewTask, QuarantineRecord, UnhandledRecord, header},
    topology::Names,
};
use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore, watch},
    task::yield_now,
    time::{sleep, timeout},
};

use super::*;
use crate::{
    TaskError, TaskOptions, Worker, WorkerConfig,
    consumer::LaneQuiet,
    fleet::tests::{FakeFleet as Fleet, hello, member, run},
    handler::{Routes, WorkerContext, WorkerData},
    json_payload,
    pipeline::KeyLimits,
    registry::Registry,
    settlement::tests::{FakeBroker, TestSettler, test_settler},
    spans::Spans,
};

#[derive(serde::Deserialize)]
struct Anything {}
json_payload!(Anything, "any.thing");

fn task() -> Envelope {
    let task = NewTask::new(Kind::parse("k").unwrap(), ContentType::Json, Vec::new());
    let now = clock::now();
    Envelope::read("k", &task.properties(now), None, |_| true, now).unwrap()
}

fn recorded(task: Envelope, record: QuarantineRecord) -> Envelope {
    Envelope { quarantine: Some(record.into()), ..task }
}

fn waiting(task: Envelope, since: Option<i64>) -> Envelope {
    Envelope { unhandled: Some(UnhandledRecord { since, ..UnhandledRecord::default() }.into()), ..task }
}

#[test]
fn a_second_crash_makes_a_task_poison_only_if_the_first_stands() {
    assert_eq!(count_crashes(&task(), 1, false), 1);
    let with_runs = |runs| recorded(task(), QuarantineRecord { runs, ..QuarantineRecord::default() });
    let second = with_runs(1);
    assert_eq!(count_crashes(&second, 1, true), POISON_RUNS);
    assert_eq!(
        count_crashes(&task(), 2, false),
        POISON_RUNS,
        "two messages with its id were lost in two crashes"
    );
    assert_eq!(count_crashes(&second, 1, false), 1, "the first worker is alive");
    assert_eq!(count_crashes(&with_runs(u32::MAX), 1, true), u32::MAX, "a forged number");
}

/// Long enough for each step of a test on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The quarantine of one worker, its broker, and the lifecycle records of the fleet.
pub(crate) struct TestEnv {
    pub(crate) test: TestSettler,
    pub(crate) broker: FakeBroker,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) pipeline: Arc<LanePipeline>,
}

/// The lane `fast` of one worker.
pub(crate) async fn lane_env() -> TestEnv {
    let mut env = env().await;
    let pipeline = Arc::get_mut(&mut env.pipeline).unwrap();
    (pipeline.lane, pipeline.is_quarantine) = ("fast".into(), false);
    env
}

/// The handler of a worker whose kind `any.thing` is long.
pub(crate) fn long_kind() -> Arc<Registry> {
    let handler = async |_: Anything| Ok::<_, TaskError>(());
    let builder = Worker::builder(WorkerConfig::default()).handle_with(handler, TaskOptions::long());
    builder.build().unwrap().into_parts().0
}

pub(in crate::pipeline) async fn env() -> TestEnv {
    let broker = FakeBroker::start(131_072).await;
    let test = test_settler(Vec::new(), &broker.url(), Routes::default());
    test.metrics.register_kinds(["any.thing"]);
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
    let (settler, spans) = (Arc::clone(&test.settler), Arc::<Spans>::default());
    let worker_context = Arc::new(WorkerContext {
        name: Arc::clone(&settler.worker),
        routes: Arc::clone(&settler.routes),
        progress: Arc::default(),
        traces: Traces::default(),
        directives: Arc::clone(&member.directives),
        data: WorkerData::default(),
        checkpoints: Arc::default(),
    });
    let pool = Pool::start(config, Handle::current()).unwrap();
    let pipeline = Arc::new(LanePipeline {
        adapter: None,
        lane: Names::QUARANTINE.into(),
        default_kind: None,
        max_payload: 1000,
        worker: worker_context,
        registry: Arc::clone(&test.registry),
        key_limits: KeyLimits::new(&Lane::default(), pool.clone()),
        pool,
        settler,
        member,
        batches: Arc::default(),
        spans,
        batch_deadline: second,
        is_quarantine: true,
        quarantine_permit: Arc::new(Semaphore::new(1)),
        quiet: watch::Sender::new(LaneQuiet::default()).subscribe(),
        pool_space: Notify::new(),
        admission_panics: Default::default(),
    });
    TestEnv { test, broker, fleet, pipeline }
}

impl TestEnv {
    /// Processes a delivery or a redelivery of the task.
    fn run_alone(&self, redelivered: bool, task: Envelope, entry: Option<Arc<RegistryEntry>>) {
        let mut delivery = Delivery::mock(&self.test.generation, 1, b"{}");
        delivery.head_mut().redelivered = redelivered;
        let task = InFlight { envelope: Arc::new(task), ..self.test.task_of(delivery) };
        self.pipeline.admit_later(None, Arc::clone(&self.pipeline).run_alone(task, entry));
    }

    fn task(&self) -> Envelope {
        Envelope::clone(&self.test.envelope)
    }

    fn entry(&self) -> Option<Arc<RegistryEntry>> {
        Some(Arc::clone(&self.test.entry))
    }

    /// Records a crash of a worker during a run of the task: another incarnation has taken its name.
    fn crash(&self, worker: &str) -> WorkerIncarnation {
        let (before, after) = (format!("{worker}-1"), format!("{worker}-2"));
        let member = &self.pipeline.member;
        hello(member, worker, &before);
        run(member, worker, &before, self.test.envelope.id.as_str());
        hello(member, worker, &after);
        WorkerIncarnation::new(worker, before)
    }

    pub(in crate::pipeline) async fn settlement(&self) -> Settlement {
        let settling = async {
            while self.test.generation.requested_settlements().is_empty() {
                yield_now().await;
            }
        };
        timeout(TIMEOUT, settling).await.expect("the task is settled");
        self.test.generation.requested_settlements()[0].1
    }
}

/// One crash may have another cause, such as a machine that was turned off.
#[tokio::test]
async fn a_task_that_came_back_twice_runs_after_one_crash_and_is_quarantined_after_two() {
    for crashes in [1, 2] {
        let mut env = env().await;
        for worker in ["v", "w"].into_iter().take(crashes) {
            env.crash(worker);
            env.fleet.set_control_queue(worker, Some(true));
        }
        let (task, pipeline) =
            (env.test.task_of(Delivery::mock(&env.test.generation, 1, b"{}")), &env.pipeline);
        let entry = env.entry().unwrap();
        pipeline.admit_later(None, Arc::clone(pipeline).quarantine_or_dispatch(task, entry));
        if crashes == 2 {
            let copy = env.broker.next().await;
            assert_eq!(copy.key, "garenne.retry.quarantine.1s");
            copy.ack();
        }
        let expected = if crashes == 1 { Settlement::Acked } else { Settlement::Quarantined };
        assert_eq!(env.settlement().await, expected, "{crashes} crashes");
    }
}

#[tokio::test]
async fn a_run_is_recorded_at_its_start_and_at_its_end_before_it_is_settled() {
    let env = env().await;
    let (task, entry) = (env.task(), env.entry());
    env.run_alone(false, task, entry);
    assert_eq!(env.settlement().await, Settlement::Acked);
    assert_eq!((env.fleet.events("run-started"), env.fleet.events("run-ended")), (1, 1));
    assert_eq!(env.pipeline.quarantine_permit.available_permits(), 1, "the next run may start");
}

/// Otherwise a later crash of this worker would count against it.
#[tokio::test]
async fn a_task_goes_back_only_after_its_run_is_recorded_as_ended_or_a_second_has_passed() {
    let env = env().await;
    tokio::time::pause();
    let permit = Arc::clone(&env.pipeline.quarantine_permit).acquire_owned().await.unwrap();
    let run = QuarantineRun { task: env.test.envelope.id.clone(), _permit: permit };
    let task = env.test.task_of(Delivery::mock(&env.test.generation, 1, b"{}"));
    let (_, _, dispatched) = env.pipeline.prepare(task, env.entry().unwrap(), None, Some(run.into()));
    env.fleet.silent.store(true, Ordering::Relaxed);
    dispatched.complete(Ending::NotStarted { cause: Cause::Shutdown });
    sleep(RUN_ENDED_TIMEOUT / 2).await;
    assert_eq!(env.test.generation.requested_settlements(), []);
    sleep(RUN_ENDED_TIMEOUT).await;
    assert_eq!(env.settlement().await, Settlement::Requeued);
    assert_eq!(env.pipeline.quarantine_permit.available_permits(), 1);
}

#[tokio::test]
async fn a_task_is_quarantined_again_after_the_first_crash_and_poison_after_the_second() {
    let mut env = env().await;
    let crashed = env.crash("w");
    let (task, entry) = (env.task(), env.entry());
    env.run_alone(true, task, entry.clone());
    let copy = env.broker.next().await;
    assert_eq!(copy.key, "garenne.retry.quarantine.1s");
    assert_eq!(copy.number(header::QUARANTINE_RUNS), Some(1));
    copy.ack();
    assert_eq!(env.settlement().await, Settlement::Quarantined);

    let mut again = self::env().await;
    again.crash("w");
    again.crash("v");
    let record = QuarantineRecord { runs: 1, worker: Some(crashed) };
    let task = recorded(again.task(), record);
    again.run_alone(true, task, entry);
    let copy = again.broker.next().await;
    assert_eq!((copy.key.as_str(), copy.text(header::REASON).unwrap().as_str()), ("garenne.dead", "poison"));
    copy.ack();
    assert_eq!(again.settlement().await, Settlement::Dead);
    assert_eq!(again.fleet.events("run-started"), 0);
}

#[tokio::test]
async fn a_redelivered_task_without_a_crash_runs() {
    let env = env().await;
    let (task, entry) = (env.task(), env.entry());
    env.run_alone(true, task, entry);
    assert_eq!(env.settlement().await, Settlement::Acked);
}

/// The crash belongs to another delivery with the same id.
#[tokio::test]
async fn a_first_delivery_runs_whatever_crashes_are_on_record() {
    let env = env().await;
    env.crash("w");
    let (task, entry) = (env.task(), env.entry());
    env.run_alone(false, task, entry);
    assert_eq!(env.settlement().await, Settlement::Acked);
}

#[tokio::test]
async fn a_task_without_an_id_is_copied_with_one_before_it_runs() {
    let mut env = env().await;
    let (task, entry) = (Envelope { id_given: false, ..env.task() }, env.entry());
    env.run_alone(false, task, entry);
    let copy = env.broker.next().await;
    assert_eq!(copy.key, "garenne.retry.quarantine.1s");
    assert!(copy.properties.message_id().is_some());
    copy.ack();
    assert_eq!(env.settlement().await, Settlement::Quarantined);
}

#[tokio::test]
async fn a_task_without_a_handler_is_passed_on_and_finally_dead_lettered() {
    for (since, key) in [(None, "garenne.retry.quarantine.1s"), (Some(1), "garenne.dead")] {
        let mut env = env().await;
        let task = waiting(env.task(), since);
        env.run_alone(false, task, None);
        let copy = env.broker.next().await;
        assert_eq!(copy.key, key);
        assert_eq!(copy.text(header::REASON).is_some(), since.is_some());
    }
}

/// As many as in a lane with the default delays.
#[tokio::test]
async fn a_task_without_a_handler_gets_ten_copies_in_ten_minutes() {
    let (mut delays, mut waited) = (Vec::new(), 0);
    loop {
        let mut env = env().await;
        // The time that has passed is in the header, so that the test need not wait.
        let since = (waited > 0).then(|| epoch_ms(clock::now()) - waited);
        let task = waiting(env.task(), since);
        env.run_alone(false, task, None);
        let copy = env.broker.next().await;
        let Some(delay) = copy.key.strip_prefix("garenne.retry.quarantine.") else {
            assert_eq!(copy.key, "garenne.dead");
            break;
        };
        let delay = humantime::parse_duration(delay).unwrap();
        waited += i64::try_from(delay.as_millis()).unwrap();
        delays.push(delay.as_secs());
        assert!(delays.len() <= 10, "{delays:?}");
    }
    assert_eq!((delays.len(), waited), (10, 622_000), "{delays:?}");
}

#[tokio::test]
async fn a_task_whose_last_run_is_undecided_is_handed_back_when_its_channel_dies() {
    let env = env().await;
    hello(&env.pipeline.member, "w", "a");
    run(&env.pipeline.member, "w", "a", env.test.envelope.id.as_str());
    env.test.generation.end();
    let (task, entry) = (env.task(), env.entry());
    env.run_alone(true, task, entry);
    assert_eq!(env.settlement().await, Settlement::Requeued);
    assert_eq!(env.fleet.events("run-started"), 0);
}

/// Their deadlines would not apply in the batch, and a crash could not be told from those of the others.
#[tokio::test]
async fn a_batch_of_a_long_kind_is_divided_and_its_records_keep_their_lane() {
    let mut env = env().await;
    let batch = env.test.batch_of(&["a", "b"]);
    let envelope = Envelope { lane: Some("slow".into()), id_given: true, ..Envelope::clone(&batch.envelope) };
    let batch = InFlight { envelope: Arc::new(envelope), lane: Names::QUARANTINE.into(), ..batch };
    let (pipeline, entry) = (Arc::clone(&env.pipeline), long_kind().get("any.thing").cloned());
    env.pipeline.admit_later(None, pipeline.run_alone(batch, entry));
    let mut ids = Vec::new();
    for _ in 0..2 {
        let copy = env.broker.next().await;
        assert_eq!(copy.key, "garenne.retry.quarantine.1s");
        assert_eq!(copy.text(header::LANE).as_deref(), Some("slow"));
        ids.push(copy.properties.message_id().as_ref().unwrap().to_string());
        copy.ack();
    }
    ids.sort_unstable();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(env.settlement().await, Settlement::Quarantined);
    assert_eq!(env.fleet.events("run-started"), 0);
}

/// A task that came back twice takes a place as others do.
#[tokio::test]
async fn a_task_that_came_back_twice_counts_among_those_of_its_key() {
    let mut env = env().await;
    let lane = Lane { prefetch: 2, max_per_key: Some(1), ..Lane::default() };
    Arc::get_mut(&mut env.pipeline).unwrap().key_limits = KeyLimits::new(&lane, env.pipeline.pool.clone());
    let mut delivery = Delivery::mock(&env.test.generation, 1, b"{}");
    let mut headers = FieldTable::default();
    headers.insert(header::KEY.into(), header::long("pump"));
    delivery.set_properties(BasicProperties::default().with_headers(headers));
    let (pipeline, entry) = (Arc::clone(&env.pipeline), env.entry().unwrap());
    let taken = pipeline.key_limits.take(&delivery, &env.test.envelope, &entry.options).unwrap();
    assert!(taken.is_some());
    let task = env.test.task_of(delivery);
    pipeline.admit_later(None, Arc::clone(&pipeline).quarantine_or_dispatch(task, entry));
    let copy = env.broker.next().await;
    assert_eq!(copy.key, "garenne.retry.fast.1s");
    copy.ack();
    assert_eq!(env.settlement().await, Settlement::Retried);
}
