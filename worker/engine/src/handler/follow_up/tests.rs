use std::time::Duration;

use garenne_common::config::{Lane, Size};
use garenne_protocol::task::{ContentType, DeadReason, HeaderValue, TraceContext};
use serde_json::{json, value::RawValue};

use super::*;
use crate::{
    TaskContext, TaskError, Worker, WorkerConfig, json_payload,
    testing::{TestOutcome, TestWorker},
};

/// Starts `count` follow-ups and then fails if `fail` is set.
#[derive(serde::Deserialize)]
struct Follow {
    kind: String,
    payload: serde_json::Value,
    #[serde(default = "one")]
    count: usize,
    #[serde(default)]
    fail: bool,
}
json_payload!(Follow, "bench.follow");

fn one() -> usize {
    1
}

async fn follow(cx: TaskContext, task: Follow) -> Result<(), TaskError> {
    for _ in 0..task.count {
        cx.follow_up(&task.kind, &task.payload)?;
    }
    if task.fail { Err(TaskError::retry("failed as asked")) } else { Ok(()) }
}

fn worker(max_payload: Size) -> TestWorker {
    // Without a catch-all lane.
    let lanes = [("fast".to_owned(), Lane::bound_to(["bench.#"]))].into_iter().collect();
    let config = WorkerConfig { max_payload, lanes, ..WorkerConfig::default() };
    TestWorker::new(Worker::builder(config).handle(follow)).unwrap()
}

fn task(id: &str, body: &serde_json::Value) -> NewTask {
    let kind = Kind::parse("bench.follow").unwrap();
    let task = NewTask::new(kind, ContentType::Json, body.to_string().into());
    NewTask { id: TaskId::parse(id).unwrap(), ..task }
}

async fn follow_ups_of(task: &NewTask) -> Vec<NewTask> {
    match worker(Size::mib(4)).run_task(task).await {
        TestOutcome::Done(output) => output.follow_ups,
        other => panic!("{other:?}"),
    }
}

async fn rejection_of(task: &NewTask) -> String {
    match worker(Size::mib(1)).run_task(task).await {
        TestOutcome::Dead { reason: DeadReason::Rejected, error } => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_task_that_runs_again_requests_the_same_follow_ups() {
    let mut parent = task("p", &json!({"kind": "bench.noop", "payload": {}, "count": 2}));
    parent.group = Some("g".into());
    parent.trace = TraceContext::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None);
    let first = follow_ups_of(&parent).await;
    let again = follow_ups_of(&parent).await;
    let ids = |tasks: &[NewTask]| tasks.iter().map(|task| task.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&first), ids(&again));
    assert_ne!(first[0].id, first[1].id);
    assert_eq!(first[0].parent, Some((parent.id.clone(), 1)));
    assert_eq!((first[0].group.as_deref(), &first[0].trace), (Some("g"), &parent.trace));
    let other = follow_ups_of(&task("q", &json!({"kind": "bench.noop", "payload": {}, "count": 2}))).await;
    assert!(ids(&other).iter().all(|id| !ids(&first).contains(id)));
}

#[tokio::test]
async fn a_failed_attempt_has_no_follow_ups() {
    let parent = task("p", &json!({"kind": "bench.noop", "payload": {}, "fail": true}));
    assert!(matches!(worker(Size::mib(4)).run_task(&parent).await, TestOutcome::Retry { .. }));
}

#[tokio::test]
async fn invalid_follow_ups_are_rejected_when_requested() {
    let follow = |kind: &str| task("p", &json!({"kind": kind, "payload": {}}));
    assert_eq!(rejection_of(&follow("odd.kind")).await, "follow-up \"odd.kind\": no lane takes this kind");
    assert_eq!(
        rejection_of(&follow("a b")).await,
        "follow-up \"a b\": kind \"a b\" may hold only letters, digits, '.', '_' and '-'"
    );
    let many = task("p", &json!({"kind": "bench.noop", "payload": {}, "count": 100_001}));
    assert_eq!(
        rejection_of(&many).await,
        "follow-up \"bench.noop\": a task may have at most 100000 follow-ups"
    );
    let large = task("p", &json!({"kind": "bench.noop", "payload": "x".repeat(1 << 20)}));
    assert_eq!(
        rejection_of(&large).await,
        "follow-up \"bench.noop\": the payload has 1048578 bytes, max_payload allows 1048576"
    );
    let mut deep = follow("bench.noop");
    deep.parent = Some((TaskId::parse("g").unwrap(), 8));
    assert_eq!(rejection_of(&deep).await, "follow-up \"bench.noop\": its depth would be 9, the maximum is 8");
}

#[test]
fn many_tasks_are_few_messages_with_the_tasks_own_ids() {
    let kind = Kind::parse("bench.noop").unwrap();
    let made = |count: usize| {
        let task = |n: usize| NewTask {
            id: TaskId::parse(&format!("t{n}")).unwrap(),
            key: Some("d".to_owned()),
            ..NewTask::new(kind.clone(), ContentType::Json, format!("{{\"n\":{n}}}").into_bytes())
        };
        (0..count).map(task).collect::<Vec<_>>()
    };
    let parent = crate::testing::finished("p", "{}").envelope;
    let published = |count: usize| {
        let follow_ups = FollowUps::new(Arc::default());
        follow_ups.add_tasks(&parent, made(count)).unwrap();
        follow_ups.take()
    };
    assert!(published(0).is_empty());
    let single = published(1);
    assert_eq!((single[0].id.as_str(), single[0].content_type), ("t0", ContentType::Json));
    let many = published(1_001);
    assert_eq!((many.len(), many[1].id.as_str()), (2, "t1000"));
    let batch = &many[0];
    assert_eq!((batch.content_type, batch.key.as_deref()), (ContentType::Batch, Some("d")));
    assert_eq!(batch.parent, Some((parent.id.clone(), 1)));
    assert_eq!(batch.id, published(1_001)[0].id, "the same in each run");
    let records = garenne_protocol::task::read_batch(&batch.body).unwrap();
    assert_eq!(
        (records.len(), records[7].id.as_str(), records[7].payload),
        (1_000, "t7", &br#"{"n":7}"#[..])
    );
}

#[test]
fn messages_of_many_tasks_stay_below_max_payload() {
    let routes = Routes { max_payload: 10_000, ..Routes::default() };
    let follow_ups = FollowUps::new(Arc::new(routes));
    let kind = Kind::parse("bench.noop").unwrap();
    let task = |size: usize| {
        NewTask::new(kind.clone(), ContentType::Json, format!("\"{}\"", "x".repeat(size)).into_bytes())
    };
    let parent = crate::testing::finished("p", "{}").envelope;
    follow_ups.add_tasks(&parent, (0..20).map(|_| task(2_000)).collect()).unwrap();
    let error = follow_ups.add_tasks(&parent, vec![task(10_001)]).unwrap_err();
    assert_eq!(
        error.message(),
        "follow-up \"bench.noop\": the payload has 10003 bytes, max_payload allows 10000"
    );
    let messages = follow_ups.take();
    assert_eq!(messages.len(), 7);
    assert!(messages.iter().all(|message| message.body.len() <= 10_000));
}

#[tokio::test]
async fn a_follow_up_requested_after_the_attempt_ended_is_rejected() {
    let follow_ups = FollowUps::new(Arc::default());
    follow_ups.take();
    let envelope = crate::testing::finished("t", "{}").envelope;
    let error = follow_ups.add(&envelope, FollowUp::new("bench.noop", &())).unwrap_err();
    assert_eq!(error.message(), "follow-up \"bench.noop\": the task has ended");
}

#[tokio::test]
async fn a_follow_up_has_the_options_that_its_handler_sets() {
    let parent = crate::testing::finished("p", "{}").envelope;
    let parent = Envelope { group: Some("import".into()), ..Envelope::clone(&parent) };
    let follow_ups = FollowUps::new(Arc::default());
    let payload = RawValue::from_string(r#"{ "n":  1.50 }"#.to_owned()).unwrap();
    let hour = Duration::from_secs(3600);
    let plain = FollowUp::new("bench.noop", &*payload);
    let full = plain.clone().delay(hour).timeout(hour / 2).key("acme").group("other").header("tenant", "a");
    let derived = follow_ups.add(&parent, plain).unwrap();
    follow_ups.add(&parent, full.id("mine")).unwrap();
    let [plain, full] = <[NewTask; 2]>::try_from(follow_ups.take()).unwrap();
    assert_eq!((plain.id.clone(), plain.group.as_deref()), (derived, Some("import")));
    assert_eq!(plain.body, br#"{ "n":  1.50 }"#, "raw JSON is not written anew");
    assert_eq!(
        (full.id.as_str(), full.group.as_deref(), full.key.as_deref()),
        ("mine", Some("other"), Some("acme"))
    );
    assert_eq!((full.delay, full.timeout), (Some(hour), Some(hour / 2)));
    assert_eq!(full.headers.get("tenant"), Some(HeaderValue::Text("a")));
    assert_eq!(full.parent, plain.parent);
}

#[test]
fn the_first_invalid_option_is_the_error_of_the_request() {
    let parent = crate::testing::finished("p", "{}").envelope;
    let follow_ups = FollowUps::new(Arc::default());
    let refused = |follow_up: FollowUp| follow_ups.add(&parent, follow_up).unwrap_err().message().to_owned();
    let noop = || FollowUp::new("bench.noop", &1);
    assert_eq!(
        refused(noop().key("").group("")),
        "follow-up \"bench.noop\": key is out of range: expected 1 to 255 bytes"
    );
    let month = Duration::from_secs(31 * 24 * 3600);
    assert_eq!(
        refused(noop().delay(month)),
        "follow-up \"bench.noop\": delay is out of range: expected at most 30days"
    );
    assert!(refused(noop().header("x-death", 1)).contains("header name \"x-death\" is refused"));
    assert!(refused(noop().id("")).starts_with("follow-up \"bench.noop\": message_id"));
    let map: std::collections::HashMap<_, _> = [((1, 2), 3)].into();
    assert!(
        refused(FollowUp::new("bench.noop", &map))
            .contains("the payload cannot be written as JSON: key must be a string")
    );
    assert!(follow_ups.take().is_empty());
}

#[test]
fn the_follow_ups_of_a_task_have_64_mib_together() {
    let parent = crate::testing::finished("p", "{}").envelope;
    let follow_ups = FollowUps::new(Arc::default());
    let quarter = RawValue::from_string(format!("\"{}\"", "x".repeat((16 << 20) - 2))).unwrap();
    for _ in 0..4 {
        follow_ups.add(&parent, FollowUp::new("bench.noop", &*quarter)).unwrap();
    }
    let error = follow_ups.add(&parent, FollowUp::new("bench.noop", &1)).unwrap_err();
    assert_eq!(
        error.message(),
        "follow-up \"bench.noop\": the follow-ups of a task may have at most 67108864 bytes together, with it they have 67108865"
    );
    assert_eq!(follow_ups.take().len(), 4);
}
