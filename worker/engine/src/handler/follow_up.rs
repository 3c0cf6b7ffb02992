//! Follow-ups: tasks that a task requests while it runs. The settler publishes them once it has succeeded.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use garenne_common::config::Lanes;
use garenne_protocol::task::{Envelope, Kind, NewTask, TaskId};
use serde::Serialize;

use super::TaskError;
use crate::panics::lock;

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
    count_by_kind: HashMap<String, usize>,
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
        let refused = |problem: String| TaskError::reject(format!("follow-up {kind:?}: {problem}"));
        let parsed = Kind::parse(kind).map_err(|error| refused(error.to_string()))?;
        if parent.depth >= Self::MAX_DEPTH {
            let (depth, max) = (parent.depth + 1, Self::MAX_DEPTH);
            return Err(refused(format!("its depth would be {depth}, the maximum is {max}")));
        }
        if self.routes.lanes.taking(kind).is_none() {
            return Err(refused("no lane takes this kind".into()));
        }
        let body = serde_json::to_vec(payload).map_err(|error| refused(error.to_string()))?;
        let max = self.routes.max_payload;
        if body.len() > max {
            return Err(refused(format!("the payload has {} bytes, max_payload allows {max}", body.len())));
        }
        let mut requested = lock(&self.requested);
        let Some(Requested { tasks, count_by_kind }) = requested.as_mut() else {
            return Err(refused("the task has ended".into()));
        };
        if tasks.len() >= Self::MAX_COUNT {
            return Err(refused(format!("a task may have at most {} follow-ups", Self::MAX_COUNT)));
        }
        let id = id.unwrap_or_else(|| {
            let index = count_by_kind.entry(kind.to_owned()).or_default();
            let id = TaskId::derived(&parent.id, &format!("{kind}/{index}"));
            *index += 1;
            id
        });
        tasks.push(NewTask::following(parent, id.clone(), parsed, body));
        Ok(id)
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

    #[tokio::test]
    async fn a_follow_up_requested_after_the_attempt_ended_is_rejected() {
        let follow_ups = FollowUps::new(Arc::default());
        follow_ups.take();
        let envelope = crate::testing::finished("t", "{}").envelope;
        let error = follow_ups.add(&envelope, "bench.noop", None, &()).unwrap_err();
        assert_eq!(error.message(), "follow-up \"bench.noop\": the task has ended");
    }
}
