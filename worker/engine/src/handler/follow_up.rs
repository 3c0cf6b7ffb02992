//! Follow-ups: tasks that a task requests while it runs. The settler publishes them once it has succeeded.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use garenne_common::config::Lanes;
use garenne_protocol::task::{ContentType, Envelope, Kind, MOST_RECORDS, NewTask, TaskId, write_batch};
use serde::Serialize;

use super::TaskError;
use crate::panics::lock;

/// Most bytes of a record in a batch besides its payload: names, the id, and a trace with a state.
const RECORD_OVERHEAD: usize = 1_024;

/// The lanes and the size limit that follow-ups are checked against.
#[derive(Debug)]
pub(crate) struct Routes {
    pub(crate) lanes: Lanes,
    /// The maximum size of a payload, in bytes. A larger task would become a dead letter at its first worker.
    pub(crate) max_payload: usize,
}

impl Default for Routes {
    fn default() -> Self {
        Self { lanes: Lanes::default(), max_payload: usize::MAX }
    }
}

/// The follow-ups of one attempt, and their limits.
///
/// Handlers request follow-ups with [`TaskContext::follow_up`](super::TaskContext::follow_up).
pub struct FollowUps {
    routes: Arc<Routes>,
    /// [`None`] after the attempt has ended: a later request would be lost.
    requested: Mutex<Option<Requested>>,
}

#[derive(Default)]
struct Requested {
    tasks: Vec<NewTask>,
    count_by_kind: BTreeMap<String, usize>,
}

impl Requested {
    /// The id of the next follow-up of this kind. It is the same in each run of the parent.
    fn next_id(&mut self, parent: &Envelope, kind: &str) -> TaskId {
        let index = self.count_by_kind.entry(kind.to_owned()).or_default();
        let id = TaskId::derived(&parent.id, &format!("{kind}/{index}"));
        *index += 1;
        id
    }
}

fn refused(kind: &str, problem: &str) -> TaskError {
    TaskError::reject(format!("follow-up {kind:?}: {problem}"))
}

/// Divides tasks into messages of at most [`MOST_RECORDS`] tasks and about `max_bytes`.
fn in_messages(tasks: Vec<NewTask>, max_bytes: usize) -> Vec<Vec<NewTask>> {
    let mut messages: Vec<Vec<NewTask>> = Vec::new();
    let mut bytes = 0;
    for task in tasks {
        let size = task.body.len() + RECORD_OVERHEAD;
        match messages.last_mut() {
            Some(last) if last.len() < MOST_RECORDS && bytes + size <= max_bytes => {
                bytes += size;
                last.push(task);
            }
            _ => {
                bytes = size;
                messages.push(vec![task]);
            }
        }
    }
    messages
}

impl FollowUps {
    /// The maximum number of follow-ups of one task.
    pub const MAX_COUNT: usize = 1000;
    /// The maximum [depth](super::TaskContext::depth) of a follow-up. Ends tasks that request each other in a
    /// cycle.
    pub const MAX_DEPTH: u32 = 8;

    pub(crate) fn new(routes: Arc<Routes>) -> Self {
        Self { routes, requested: Mutex::new(Some(Requested::default())) }
    }

    /// Adds a follow-up. Its id is `id`, or derived from the parent's id, the kind and the number of earlier
    /// follow-ups of that kind.
    ///
    /// # Errors
    /// See [`TaskContext::follow_up`](super::TaskContext::follow_up).
    pub(crate) fn add(
        &self,
        parent: &Envelope,
        kind: &str,
        id: Option<TaskId>,
        payload: &impl Serialize,
    ) -> Result<TaskId, TaskError> {
        let refused = |problem: String| refused(kind, &problem);
        let parsed = Kind::parse(kind).map_err(|error| refused(error.to_string()))?;
        let body = serde_json::to_vec(payload).map_err(|error| refused(error.to_string()))?;
        self.check(parent, kind, body.len())?;
        self.push(kind, |requested| {
            let id = id.unwrap_or_else(|| requested.next_id(parent, kind));
            requested.tasks.push(NewTask::following(parent, id.clone(), parsed, body));
            id
        })
    }

    /// Adds tasks of one kind, as few messages.
    ///
    /// # Errors
    /// See [`TaskContext::follow_up_tasks`](super::TaskContext::follow_up_tasks).
    pub(crate) fn add_tasks(&self, parent: &Envelope, tasks: Vec<NewTask>) -> Result<(), TaskError> {
        let Some(kind) = tasks.first().map(|task| task.kind.clone()) else { return Ok(()) };
        for tasks in in_messages(tasks, self.routes.max_payload) {
            let key = tasks[0].key.clone().filter(|_| tasks.iter().all(|task| task.key == tasks[0].key));
            let version = tasks[0].version;
            let (id, content_type, body) = match <[NewTask; 1]>::try_from(tasks) {
                Ok([task]) => (Some(task.id), task.content_type, task.body),
                Err(tasks) => {
                    let body =
                        write_batch(&tasks).map_err(|error| refused(kind.as_str(), &error.to_string()))?;
                    (None, ContentType::Batch, body)
                }
            };
            self.check(parent, kind.as_str(), body.len())?;
            self.push(kind.as_str(), |requested| {
                let id = id.unwrap_or_else(|| requested.next_id(parent, kind.as_str()));
                let following = NewTask::following(parent, id, kind.clone(), body);
                requested.tasks.push(NewTask { content_type, key, version, ..following });
            })?;
        }
        Ok(())
    }

    /// Checks a follow-up of this kind whose body has this size.
    fn check(&self, parent: &Envelope, kind: &str, bytes: usize) -> Result<(), TaskError> {
        if parent.depth >= Self::MAX_DEPTH {
            let (depth, max) = (parent.depth + 1, Self::MAX_DEPTH);
            return Err(refused(kind, &format!("its depth would be {depth}, the maximum is {max}")));
        }
        if self.routes.lanes.taking(kind).is_none() {
            return Err(refused(kind, "no lane takes this kind"));
        }
        let max = self.routes.max_payload;
        if bytes > max {
            return Err(refused(kind, &format!("the payload has {bytes} bytes, max_payload allows {max}")));
        }
        Ok(())
    }

    /// Adds a follow-up of this kind, if the attempt has not ended and has room for another.
    fn push<T>(&self, kind: &str, push: impl FnOnce(&mut Requested) -> T) -> Result<T, TaskError> {
        let mut requested = lock(&self.requested);
        let Some(requested) = requested.as_mut() else { return Err(refused(kind, "the task has ended")) };
        if requested.tasks.len() >= Self::MAX_COUNT {
            return Err(refused(kind, &format!("a task may have at most {} follow-ups", Self::MAX_COUNT)));
        }
        Ok(push(requested))
    }

    /// Takes the follow-ups and ends the attempt: later requests fail.
    pub(crate) fn take(&self) -> Vec<NewTask> {
        lock(&self.requested).take().map(|requested| requested.tasks).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use garenne_common::config::{Lane, Size};
    use garenne_protocol::task::{ContentType, DeadReason, TraceContext};
    use serde_json::json;

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
        if task.fail { Err(std::io::Error::other("failed as asked").into()) } else { Ok(()) }
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
            TestOutcome::Dead(DeadReason::Rejected, error) => error,
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
        let other =
            follow_ups_of(&task("q", &json!({"kind": "bench.noop", "payload": {}, "count": 2}))).await;
        assert!(ids(&other).iter().all(|id| !ids(&first).contains(id)));
    }

    #[tokio::test]
    async fn a_failed_attempt_has_no_follow_ups() {
        let parent = task("p", &json!({"kind": "bench.noop", "payload": {}, "fail": true}));
        assert!(matches!(worker(Size::mib(4)).run_task(&parent).await, TestOutcome::Retry(_)));
    }

    #[tokio::test]
    async fn invalid_follow_ups_are_rejected_when_requested() {
        let follow = |kind: &str| task("p", &json!({"kind": kind, "payload": {}}));
        assert_eq!(
            rejection_of(&follow("odd.kind")).await,
            "follow-up \"odd.kind\": no lane takes this kind"
        );
        assert_eq!(
            rejection_of(&follow("a b")).await,
            "follow-up \"a b\": kind \"a b\" may hold only letters, digits, '.', '_' and '-'"
        );
        let many = task("p", &json!({"kind": "bench.noop", "payload": {}, "count": 1001}));
        assert_eq!(
            rejection_of(&many).await,
            "follow-up \"bench.noop\": a task may have at most 1000 follow-ups"
        );
        let large = task("p", &json!({"kind": "bench.noop", "payload": "x".repeat(1 << 20)}));
        assert_eq!(
            rejection_of(&large).await,
            "follow-up \"bench.noop\": the payload has 1048578 bytes, max_payload allows 1048576"
        );
        let mut deep = follow("bench.noop");
        deep.parent = Some((TaskId::parse("g").unwrap(), 8));
        assert_eq!(
            rejection_of(&deep).await,
            "follow-up \"bench.noop\": its depth would be 9, the maximum is 8"
        );
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
        let error = follow_ups.add(&envelope, "bench.noop", None, &()).unwrap_err();
        assert_eq!(error.message(), "follow-up \"bench.noop\": the task has ended");
    }
}
