//! Tasks that a task starts: gathered while it runs, published by the settler when it succeeded.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use garenne_common::config::Lanes;
use garenne_protocol::task::{Envelope, Kind, NewTask, TaskId};
use serde::Serialize;

use super::TaskError;

/// What follow-ups are checked against before they are promised.
#[derive(Debug)]
pub(crate) struct Routes {
    pub(crate) lanes: Lanes,
    /// Bytes; what is larger would be a dead letter at its first worker.
    pub(crate) max_payload: usize,
}

impl Default for Routes {
    fn default() -> Self {
        Self { lanes: Lanes::default(), max_payload: usize::MAX }
    }
}

/// The follow-ups of one attempt.
pub struct FollowUps {
    routes: Arc<Routes>,
    /// None once they are on their way: what comes later would be lost.
    gathered: Mutex<Option<Gathered>>,
}

#[derive(Default)]
struct Gathered {
    tasks: Vec<NewTask>,
    of_kind: HashMap<String, usize>,
}

impl FollowUps {
    /// Most follow-ups of one task.
    pub const MOST: usize = 1000;
    /// Most generations after a task that somebody published: tasks that start each other in a circle
    /// come to an end.
    pub const DEEPEST: u32 = 8;

    pub(crate) fn new(routes: Arc<Routes>) -> Self {
        Self { routes, gathered: Mutex::new(Some(Gathered::default())) }
    }

    pub(crate) fn add(
        &self,
        parent: &Envelope,
        kind: &str,
        id: Option<TaskId>,
        payload: &impl Serialize,
    ) -> Result<TaskId, TaskError> {
        let refused = |why: String| TaskError::reject(format!("follow-up {kind:?}: {why}"));
        let parsed = Kind::parse(kind).map_err(|error| refused(error.to_string()))?;
        if parent.depth >= Self::DEEPEST {
            let why = format!("this task is {} follow-ups deep already, the limit", parent.depth);
            return Err(refused(why));
        }
        if self.routes.lanes.taking(kind).is_none() {
            return Err(refused("no lane takes this kind".into()));
        }
        let body = serde_json::to_vec(payload).map_err(|error| refused(error.to_string()))?;
        let max = self.routes.max_payload;
        if body.len() > max {
            return Err(refused(format!("the payload has {} bytes, max_payload allows {max}", body.len())));
        }
        let mut gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Gathered { tasks, of_kind }) = gathered.as_mut() else {
            return Err(refused("the task has ended".into()));
        };
        if tasks.len() >= Self::MOST {
            return Err(refused(format!("a task may start {} at most", Self::MOST)));
        }
        let id = id.unwrap_or_else(|| {
            let ordinal = of_kind.entry(kind.to_owned()).or_default();
            let id = TaskId::derived(&parent.id, &format!("{kind}/{ordinal}"));
            *ordinal += 1;
            id
        });
        tasks.push(NewTask::following(parent, id.clone(), parsed, body));
        Ok(id)
    }

    pub(crate) fn take(&self) -> Vec<NewTask> {
        let mut gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        gathered.take().map(|gathered| gathered.tasks).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use garenne_common::config::Size;
    use garenne_protocol::task::{ContentType, DeadReason, TraceContext};
    use serde_json::json;

    use super::*;
    use crate::{
        TaskContext, TaskError, Worker, WorkerConfig, json_payload,
        testing::{TestWorker, Verdict},
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
        let config = WorkerConfig { max_payload, ..WorkerConfig::default() };
        TestWorker::new(Worker::builder(config).handle(follow)).unwrap()
    }

    fn task(id: &str, body: &serde_json::Value) -> NewTask {
        let kind = Kind::parse("bench.follow").unwrap();
        let task = NewTask::new(kind, ContentType::Json, body.to_string().into());
        NewTask { id: TaskId::parse(id).unwrap(), ..task }
    }

    async fn started(task: &NewTask) -> Vec<NewTask> {
        match worker(Size::mib(4)).run_task(task).await {
            Verdict::Done(output) => output.follow_ups,
            other => panic!("{other:?}"),
        }
    }

    async fn refused(task: &NewTask) -> String {
        match worker(Size::mib(1)).run_task(task).await {
            Verdict::Dead(DeadReason::Rejected, error) => error,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_task_that_runs_again_starts_the_same_tasks() {
        let mut parent = task("p", &json!({"kind": "bench.noop", "payload": {}, "count": 2}));
        parent.group = Some("g".into());
        parent.trace = TraceContext::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None);
        let first = started(&parent).await;
        let again = started(&parent).await;
        let ids = |tasks: &[NewTask]| tasks.iter().map(|task| task.id.clone()).collect::<Vec<_>>();
        assert_eq!(ids(&first), ids(&again));
        assert_ne!(first[0].id, first[1].id);
        assert_eq!(first[0].parent, Some((parent.id.clone(), 1)));
        assert_eq!((first[0].group.as_deref(), &first[0].trace), (Some("g"), &parent.trace));
        let other = started(&task("q", &json!({"kind": "bench.noop", "payload": {}, "count": 2}))).await;
        assert!(ids(&other).iter().all(|id| !ids(&first).contains(id)));
    }

    #[tokio::test]
    async fn an_attempt_that_fails_starts_nothing() {
        let parent = task("p", &json!({"kind": "bench.noop", "payload": {}, "fail": true}));
        assert!(matches!(worker(Size::mib(4)).run_task(&parent).await, Verdict::Retry(_)));
    }

    #[tokio::test]
    async fn what_nobody_could_run_is_refused_at_once() {
        let follow = |kind: &str| task("p", &json!({"kind": kind, "payload": {}}));
        assert_eq!(refused(&follow("odd.kind")).await, "follow-up \"odd.kind\": no lane takes this kind");
        assert_eq!(
            refused(&follow("a b")).await,
            "follow-up \"a b\": kind \"a b\" may hold only letters, digits, '.', '_' and '-'"
        );
        let many = task("p", &json!({"kind": "bench.noop", "payload": {}, "count": 1001}));
        assert_eq!(refused(&many).await, "follow-up \"bench.noop\": a task may start 1000 at most");
        let large = task("p", &json!({"kind": "bench.noop", "payload": "x".repeat(1 << 20)}));
        assert_eq!(
            refused(&large).await,
            "follow-up \"bench.noop\": the payload has 1048578 bytes, max_payload allows 1048576"
        );
        let mut deep = follow("bench.noop");
        deep.parent = Some((TaskId::parse("g").unwrap(), 8));
        assert_eq!(
            refused(&deep).await,
            "follow-up \"bench.noop\": this task is 8 follow-ups deep already, the limit"
        );
    }

    #[tokio::test]
    async fn after_the_end_nothing_can_be_started() {
        let follow_ups = FollowUps::new(Arc::default());
        follow_ups.take();
        let envelope = crate::testing::finished("t", "{}").envelope;
        let error = follow_ups.add(&envelope, "bench.noop", None, &()).unwrap_err();
        assert_eq!(error.message(), "follow-up \"bench.noop\": the task has ended");
    }
}
