//! Follow-ups: tasks that a task requests while it runs. The settler publishes them once it has succeeded.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use garenne_common::config::Lanes;
use garenne_protocol::task::{ContentType, Envelope, Kind, MOST_RECORDS, NewTask, TaskId, write_batch};
use serde::Serialize;

use super::TaskError;
use crate::{
    draft::{Draft, draft_options},
    panics::lock,
};

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

/// A task that a handler requests with [`TaskContext::follow_up_with`](super::TaskContext::follow_up_with). It has the group
/// of the handler's task, unless another one is set.
///
/// ```
/// # use std::time::Duration;
/// # use garenne::{TaskContext, TaskError, handler::FollowUp};
/// async fn invoice(cx: TaskContext, customer: String) -> Result<(), TaskError> {
///     let reminder = FollowUp::new("email.remind", &customer).delay(Duration::from_secs(7 * 24 * 3600));
///     cx.follow_up_with(reminder.key(customer).header("priority", 3))?;
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a follow-up is requested with `TaskContext::follow_up_with`"]
pub struct FollowUp {
    draft: Draft,
}

impl FollowUp {
    /// A follow-up of this kind. The payload is written as JSON; a [`RawValue`](serde_json::value::RawValue) is taken as it is.
    ///
    /// The first error of the payload, the kind or an option is returned when the follow-up is requested.
    pub fn new<P: Serialize + ?Sized>(kind: &str, payload: &P) -> Self {
        Self { draft: Draft::new(kind, payload) }
    }

    draft_options!();

    /// Sets the task's id, 1 to 128 bytes without control characters. By default it is derived from the id of the handler's
    /// task.
    ///
    /// For work that several tasks may request: the broker stores each of them, and effects that are stored under the id
    /// happen once.
    pub fn id(self, id: &str) -> Self {
        Self { draft: self.draft.id(id) }
    }
}

#[derive(Default)]
struct Requested {
    tasks: Vec<NewTask>,
    /// The size of all of them.
    bytes: usize,
    count_by_kind: BTreeMap<Kind, usize>,
}

impl Requested {
    /// The id of the next follow-up of this kind. It is the same in each run of the parent.
    fn next_id(&mut self, parent: &Envelope, kind: &Kind) -> TaskId {
        let index = match self.count_by_kind.get_mut(kind.as_str()) {
            Some(index) => index,
            None => self.count_by_kind.entry(kind.clone()).or_default(),
        };
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
    pub const MAX_COUNT: usize = 100_000;
    /// The maximum size of the follow-ups of one task together, in bytes: payloads, keys, groups and headers.
    pub const MAX_BYTES: usize = 64 << 20;
    /// The maximum [depth](super::TaskContext::depth) of a follow-up. Ends tasks that request each other in a
    /// cycle.
    pub const MAX_DEPTH: u32 = 8;

    pub(crate) fn new(routes: Arc<Routes>) -> Self {
        Self { routes, requested: Mutex::new(Some(Requested::default())) }
    }

    /// Adds a follow-up. Its id is its own, or derived from the parent's id, the kind and the number of earlier
    /// follow-ups of that kind.
    pub(crate) fn add(&self, parent: &Envelope, follow_up: FollowUp) -> Result<TaskId, TaskError> {
        let content = follow_up.draft.into_content();
        let mut content = content.map_err(|(kind, error)| refused(&kind, &error.to_string()))?;
        let (kind, bytes) = (content.kind.clone(), content.bytes());
        self.check(parent, kind.as_str(), content.body.len())?;
        self.push(kind.as_str(), bytes, |requested| {
            let id = content.id.take().unwrap_or_else(|| requested.next_id(parent, &kind));
            let body = std::mem::take(&mut content.body);
            requested.tasks.push(content.apply_to(NewTask::following(
                parent,
                id.clone(),
                kind.clone(),
                body,
            )));
            id
        })
    }

    /// Adds tasks of one kind, as few messages.
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
            self.push(kind.as_str(), body.len(), |requested| {
                let id = id.unwrap_or_else(|| requested.next_id(parent, &kind));
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
    fn push<T>(
        &self,
        kind: &str,
        bytes: usize,
        push: impl FnOnce(&mut Requested) -> T,
    ) -> Result<T, TaskError> {
        let mut requested = lock(&self.requested);
        let Some(requested) = requested.as_mut() else { return Err(refused(kind, "the task has ended")) };
        if requested.tasks.len() >= Self::MAX_COUNT {
            return Err(refused(kind, &format!("a task may have at most {} follow-ups", Self::MAX_COUNT)));
        }
        let (total, max) = (requested.bytes + bytes, Self::MAX_BYTES);
        if total > max {
            let problem = format!(
                "the follow-ups of a task may have at most {max} bytes together, with it they have {total}"
            );
            return Err(refused(kind, &problem));
        }
        requested.bytes = total;
        Ok(push(requested))
    }

    /// Whether a follow-up was requested.
    pub(super) fn are_requested(&self) -> bool {
        lock(&self.requested).as_ref().is_some_and(|requested| !requested.tasks.is_empty())
    }

    /// Takes the follow-ups and ends the attempt: later requests fail.
    pub(crate) fn take(&self) -> Vec<NewTask> {
        lock(&self.requested).take().map(|requested| requested.tasks).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
