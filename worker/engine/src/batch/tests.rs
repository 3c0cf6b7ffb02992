use std::time::SystemTime;

use garenne_common::telemetry::metrics::TaskOutcome;
use garenne_pool::{OnEnd, Pool, PoolConfig, Spec, Stop};
use garenne_protocol::task::{
    ContentType, DeadReason, Directive, Kind, NewTask, TaskId, batch_properties, write_batch,
};
use tokio::sync::{Semaphore, oneshot};

use super::*;
use crate::{
    TaskContext, TaskError, Worker, WorkerConfig,
    attempt::AttemptOutput,
    consumer::{ChannelGeneration, MessageHead},
    execution::Execution,
    fleet::Directives,
    handler::WorkerContext,
    json_payload,
};

#[derive(serde::Deserialize)]
struct Step {
    action: String,
}
json_payload!(Step, "test.step");

impl Batch {
    /// Says how its next record ended, without a run.
    pub(crate) fn record_ended(&self, end: AttemptEnd) {
        lock(&self.ends).push(end);
    }
}

fn closed_gate() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(0))
}

/// A batch whose records do these steps, with their indexes as ids. The step `hold` waits for a permit of the gate.
fn attempt(steps: &[&str], stopped: &[&str], gate: &Arc<Semaphore>) -> Execution {
    let gate = Arc::clone(gate);
    let step = move |cx: TaskContext, step: Step| {
        let gate = Arc::clone(&gate);
        async move {
            assert!(cx.deadline().is_none(), "a record of a batch is a short task");
            match step.action.as_str() {
                "succeed" => Ok(cx.id().to_string()),
                "hold" => {
                    gate.acquire().await.unwrap().forget();
                    Ok(cx.id().to_string())
                }
                "fail" => Err(TaskError::retry("it failed")),
                "reject" => Err(TaskError::reject("never")),
                "panic" => panic!("boom"),
                other => unreachable!("{other}"),
            }
        }
    };
    let registry = Worker::builder(WorkerConfig::default()).handle(step).build().unwrap().into_parts().0;
    let kind = Kind::parse("test.step").unwrap();
    let tasks: Vec<_> = steps
        .iter()
        .enumerate()
        .map(|(n, action)| NewTask {
            id: TaskId::parse(&format!("{n}")).unwrap(),
            ..NewTask::new(
                kind.clone(),
                ContentType::Json,
                format!(r#"{{"action":"{action}"}}"#).into_bytes(),
            )
        })
        .collect();
    let body = Bytes::from(write_batch(&tasks).unwrap());
    let now = SystemTime::now();
    let properties = batch_properties(&kind, None, now);
    let envelope = Arc::new(Envelope::read("test.step", &properties, None, |_| true, now).unwrap());
    let batch = Batch::read(&envelope, &body, &Arc::default()).unwrap();
    let directives = Directives::default();
    for task in stopped {
        directives.apply(&Directive::StopTask { task: (*task).to_owned(), at: 0 });
    }
    let worker = WorkerContext { directives: Arc::new(directives), ..WorkerContext::default() };
    let attempt = Attempt {
        entry: Arc::clone(registry.get("test.step").unwrap()),
        envelope,
        lane: Some("fast".into()),
        worker: Arc::new(worker),
        sharing: Sharing::Nothing,
        body,
        head: Arc::new(MessageHead {
            routing_key: "test.step".into(),
            exchange: "".into(),
            redelivered: false,
            received_at: now,
            properties,
            unreadable: None,
        }),
        generation: ChannelGeneration::mock(),
        span: AttemptSpan::default(),
    };
    Execution::new(attempt, Some(Arc::new(batch)))
}

/// A batch of two records that did not run.
fn batch_of_two() -> Arc<Batch> {
    attempt(&["succeed", "succeed"], &[], &closed_gate()).batch.unwrap()
}

type OnBatchEnd = Box<dyn FnOnce(Ending<Option<AttemptOutput>>) + Send>;
type Running = (Pool<Execution, OnEnd<OnBatchEnd>>, oneshot::Receiver<BatchEnd>);

fn start(execution: Execution, deadline: Duration) -> Running {
    let config = PoolConfig {
        name: "test".into(),
        queue: 1,
        workers: 1..=1,
        idle_timeout: Duration::from_secs(60),
        default_deadline: Duration::from_secs(60),
        grace: Duration::from_secs(2),
    };
    let pool = Pool::start(config, tokio::runtime::Handle::current()).unwrap();
    let (sender, ended) = oneshot::channel();
    let batch = execution.batch.clone().unwrap();
    let completion: OnBatchEnd = Box::new(move |ending| drop(sender.send(batch.end(ending.map(drop)))));
    let spec = Spec::long("batch").deadline(deadline);
    assert!(pool.submit_detached(spec, execution, OnEnd(completion)).is_ok());
    (pool, ended)
}

fn describe(end: &AttemptEnd) -> String {
    match &end.outcome {
        Outcome::Done { output, .. } => output.json.get().to_owned(),
        Outcome::Retry { error, .. } => format!("retry: {error}"),
        Outcome::Dead { reason, error } => format!("{reason}: {error}"),
        Outcome::Defer { .. } => "deferred".to_owned(),
        other => format!("{other:?}"),
    }
}

async fn ends_of(ended: oneshot::Receiver<BatchEnd>) -> Vec<String> {
    match ended.await.unwrap() {
        BatchEnd::Apart(ends) => ends.iter().map(describe).collect(),
        BatchEnd::HandBack { executed } => vec![format!("handed back after {executed}")],
        BatchEnd::Abandon => vec!["abandoned".to_owned()],
    }
}

const LONG: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn each_record_has_an_end_of_its_own() {
    let steps = ["succeed", "fail", "panic", "succeed", "reject", "succeed"];
    let (_pool, ended) = start(attempt(&steps, &["3"], &closed_gate()), LONG);
    let stopped = format!("{}: stopped by an operator", DeadReason::Stopped);
    let expected = [
        r#""0""#,
        "retry: it failed",
        "retry: the handler panicked: boom",
        stopped.as_str(),
        "rejected: never",
        r#""5""#,
    ];
    assert_eq!(ends_of(ended).await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_the_running_record_and_hands_the_batch_back() {
    let gate = closed_gate();
    let (pool, ended) = start(attempt(&["succeed", "hold", "succeed"], &[], &gate), LONG);
    tokio::task::yield_now().await;
    pool.begin_shutdown(Stop::Hard { grace: Duration::from_secs(2) });
    tokio::time::sleep(Duration::from_secs(1)).await;
    gate.add_permits(1);
    assert_eq!(ends_of(ended).await, ["handed back after 2"]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_whose_record_outlives_the_grace_period_is_abandoned() {
    let (pool, ended) = start(attempt(&["hold", "succeed"], &[], &closed_gate()), LONG);
    tokio::task::yield_now().await;
    pool.begin_shutdown(Stop::Hard { grace: Duration::from_secs(2) });
    assert_eq!(ends_of(ended).await, ["abandoned"]);
}

#[tokio::test(start_paused = true)]
async fn records_that_did_not_start_before_the_deadline_are_deferred() {
    let gate = closed_gate();
    let (_pool, ended) = start(attempt(&["succeed", "hold", "succeed", "succeed"], &[], &gate), LONG);
    tokio::time::sleep(LONG + Duration::from_secs(1)).await;
    gate.add_permits(1);
    assert_eq!(ends_of(ended).await, [r#""0""#, r#""1""#, "deferred", "deferred"]);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_hangs_spends_an_attempt_and_the_others_keep_their_ends() {
    let (_pool, ended) = start(attempt(&["succeed", "fail", "hold", "succeed"], &[], &closed_gate()), LONG);
    assert_eq!(
        ends_of(ended).await,
        [r#""0""#, "retry: it failed", "retry: the deadline passed", "deferred"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_record_that_hangs_is_counted_as_a_timeout() {
    let (_pool, ended) = start(attempt(&["hold"], &[], &closed_gate()), LONG);
    let BatchEnd::Apart(ends) = ended.await.unwrap() else { panic!("each record has an end") };
    assert_eq!(ends.iter().map(|end| end.counted_as).collect::<Vec<_>>(), [Some(TaskOutcome::Timeout)]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_of_the_batch_keeps_the_ends_of_records_that_ran() {
    let (pool, ended) = start(attempt(&["succeed", "hold", "succeed"], &[], &closed_gate()), LONG);
    tokio::task::yield_now().await;
    assert!(pool.stop(&"batch".into()));
    let stopped = format!("{}: stopped by an operator", DeadReason::Stopped);
    assert_eq!(ends_of(ended).await, [r#""0""#, stopped.as_str(), stopped.as_str()]);
}

#[test]
fn the_end_of_a_batch_that_did_not_start_depends_on_the_cause() {
    let of = |cause| batch_of_two().end(Ending::NotStarted { cause });
    assert!(matches!(of(Cause::Shutdown), BatchEnd::HandBack { executed: 0 }));
    let BatchEnd::Apart(ends) = of(Cause::Stopped) else { panic!("each record is stopped") };
    assert!(ends.iter().all(|end| matches!(end.outcome, Outcome::Dead { reason: DeadReason::Stopped, .. })));
    let BatchEnd::Apart(ends) = of(Cause::Deadline) else { panic!("each record is deferred") };
    assert_eq!(ends.iter().map(describe).collect::<Vec<_>>(), ["deferred"; 2]);
}

#[test]
fn a_panic_of_the_batch_counts_for_each_record_without_an_end() {
    let batch = batch_of_two();
    batch.record_ended(AttemptEnd::not_started(Outcome::Defer { wait: Duration::ZERO }));
    let ending = Ending::Panicked { message: "boom".into() };
    let BatchEnd::Apart(ends) = batch.end(ending) else { panic!("each record has an end") };
    assert_eq!(
        ends.iter().map(describe).collect::<Vec<_>>(),
        ["deferred", "retry: the handler panicked: boom"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_batch_whose_channel_dies_is_handed_back_between_two_records() {
    let gate = closed_gate();
    let execution = attempt(&["hold", "succeed"], &[], &gate);
    let generation = Arc::clone(&execution.attempt.generation);
    let (_pool, ended) = start(execution, LONG);
    tokio::task::yield_now().await;
    generation.end();
    gate.add_permits(1);
    assert_eq!(ends_of(ended).await, ["handed back after 1"]);
}

#[test]
fn a_record_is_found_while_its_batch_is_held() {
    let batches = RunningBatches::default();
    let execution = attempt(&["succeed"], &[], &closed_gate());
    batches.add(execution.batch.as_ref().unwrap());
    assert!(batches.contains_record("0") && !batches.contains_record("1"));
    drop(execution);
    assert!(!batches.contains_record("0"));
}

fn pause_kind() -> Directive {
    Directive::PauseKind { pause_kind: "test.step".into(), at: 0 }
}

fn pause_lane() -> Directive {
    Directive::PauseLane { pause_lane: "fast".into(), at: 0 }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_paused_before_it_starts_goes_back_as_a_whole() {
    for order in [pause_kind(), pause_lane()] {
        let execution = attempt(&["succeed", "succeed"], &[], &closed_gate());
        execution.attempt.worker.directives.apply(&order);
        let (_pool, ended) = start(execution, LONG);
        assert_eq!(ends_of(ended).await, ["handed back after 0"], "{order:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_runs_ends_in_a_paused_lane_and_defers_its_records_of_a_paused_kind() {
    for (order, last) in [(pause_lane(), r#""2""#), (pause_kind(), "deferred")] {
        let gate = closed_gate();
        let execution = attempt(&["succeed", "hold", "succeed"], &[], &gate);
        let directives = Arc::clone(&execution.attempt.worker.directives);
        let (_pool, ended) = start(execution, LONG);
        tokio::task::yield_now().await;
        directives.apply(&order);
        gate.add_permits(1);
        assert_eq!(ends_of(ended).await, [r#""0""#, r#""1""#, last], "{order:?}");
    }
}
