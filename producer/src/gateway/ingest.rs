//! From a body to tasks to receipts: what HTTP and TCP share.

use std::{sync::Arc, time::Duration};

use garenne_common::{
    sensor::{Record, Timestamp, parse::Limits as RecordLimits, parse::readings_within},
    task::{ContentType, Kind, NewTask, TaskId, TraceContext, matches_binding},
};
use serde_json::value::RawValue;
use time::OffsetDateTime;

use super::{auth::Caller, refusal::Refusal};
use crate::outlet::Outlet;

/// The kind of a reading's task.
pub(crate) const READING: &str = "reading.process";

/// Which kinds some lane takes.
#[derive(Clone, Debug)]
pub struct Routes {
    bindings: Vec<String>,
    /// Whether several queues share the readings.
    spread: bool,
}

impl Routes {
    /// Routes by the bindings of all lanes.
    pub fn new(bindings: impl IntoIterator<Item = String>) -> Self {
        Self { bindings: bindings.into_iter().collect(), spread: false }
    }

    /// The same where several queues share the readings: each then carries its device as its key, for which
    /// readings of one queue have no use.
    #[must_use]
    pub fn spreading(self, spread: bool) -> Self {
        Self { spread, ..self }
    }

    /// The kind, when some lane takes it. The alternate exchange would confirm it otherwise, and
    /// nobody would ever work on it.
    ///
    /// # Errors
    /// [`Refusal::Kind`] or [`Refusal::NoLane`].
    pub fn kind(&self, text: &str) -> Result<Kind, Refusal> {
        let kind = Kind::parse(text)?;
        if self.bindings.iter().any(|binding| matches_binding(binding, text)) {
            Ok(kind)
        } else {
            Err(Refusal::NoLane { kind: text.to_owned(), bindings: self.bindings.join(", ") })
        }
    }
}

/// Turns what senders write into tasks, delivers them, and answers with their ids.
pub struct Ingest {
    outlet: Arc<dyn Outlet>,
    routes: Routes,
    /// A reading's, where some lane takes it: most tasks are readings.
    reading: Option<Kind>,
    records: RecordLimits,
    retry_after: Duration,
}

/// What a sender says of a task beside its body.
#[derive(Clone, Debug, Default)]
pub(super) struct TaskOptions {
    pub(super) id: Option<String>,
    pub(super) content_type: ContentType,
    pub(super) group: Option<String>,
    pub(super) key: Option<String>,
    pub(super) delay: Option<Duration>,
    pub(super) timeout: Option<Duration>,
    pub(super) trace: Option<TraceContext>,
}

impl Ingest {
    /// Delivers to `outlet` what `routes` take.
    pub fn new(
        outlet: Arc<dyn Outlet>,
        routes: Routes,
        max_records: usize,
        retry_after: Duration,
    ) -> Arc<Self> {
        let records = RecordLimits { records: max_records, ..RecordLimits::default() };
        let reading = routes.kind(READING).ok();
        Arc::new(Self { outlet, routes, reading, records, retry_after })
    }

    /// The bindings of all lanes.
    pub(super) fn bindings(&self) -> &[String] {
        &self.routes.bindings
    }

    /// A task of its own for each reading in a body, in the order of the records, if the caller may send all of
    /// them now. Nothing is delivered yet.
    ///
    /// # Errors
    /// The record at fault, or why the caller may not.
    pub(super) fn reading_tasks(
        &self,
        content_type: &str,
        body: &[u8],
        caller: &Caller,
        idempotency_key: Option<&str>,
        trace: Option<TraceContext>,
    ) -> Result<Vec<NewTask>, Refusal> {
        let records = readings_within(content_type, body, now(), &self.records)?;
        self.record_tasks(&records, caller, idempotency_key, trace)
    }

    /// A task for each record, if the caller may send all of them now.
    pub(super) fn record_tasks(
        &self,
        records: &[Record],
        caller: &Caller,
        idempotency_key: Option<&str>,
        trace: Option<TraceContext>,
    ) -> Result<Vec<NewTask>, Refusal> {
        let kind = self.reading.clone().map_or_else(|| self.routes.kind(READING), Ok)?;
        caller.admit(records.iter().map(|record| &*record.reading.device))?;
        let request = idempotency_key
            .map(|key| TaskId::parse(key).map_err(|error| Refusal::Id { field: "Idempotency-Key", error }))
            .transpose()?;
        let tasks = records.iter().enumerate().map(|(index, record)| {
            let body = serde_json::to_vec(&record.reading).expect("a reading is plain JSON");
            let mut task = NewTask::new(kind.clone(), ContentType::Json, body);
            if let Some(id) = record_id(record, request.as_ref(), index) {
                task.id = id;
            }
            task.trace.clone_from(&trace);
            task.key = self.routes.spread.then(|| record.reading.device.to_string());
            task
        });
        Ok(tasks.collect())
    }

    /// Takes one task of any kind that some lane takes.
    ///
    /// # Errors
    /// What is wrong with it, or why the caller may not, and nothing was delivered; or as [`Ingest::deliver`].
    pub(super) async fn task(
        &self,
        kind: &str,
        body: &[u8],
        caller: &Caller,
        options: TaskOptions,
    ) -> Result<Vec<TaskId>, Refusal> {
        let kind = self.routes.kind(kind)?;
        caller.admit_task(kind.as_str())?;
        // Parsed and not only passed on: a body that no worker can read is refused where its sender
        // still listens.
        serde_json::from_slice::<&RawValue>(body).map_err(|error| Refusal::NotJson(error.to_string()))?;
        let mut task = NewTask::new(kind, options.content_type, body.to_vec());
        if let Some(id) = options.id {
            task.id = TaskId::parse(&id).map_err(|error| Refusal::Id { field: "Idempotency-Key", error })?;
        }
        task.group = options.group;
        task.key = options.key;
        task.delay = options.delay;
        task.timeout = options.timeout;
        task.trace = options.trace;
        self.deliver(vec![task]).await
    }

    /// Delivers all of them or promises none: answers their ids, in order, once all are safe.
    ///
    /// # Errors
    /// The broker, and nothing is promised.
    pub(super) async fn deliver(&self, tasks: Vec<NewTask>) -> Result<Vec<TaskId>, Refusal> {
        let ids = tasks.iter().map(|task| task.id.clone()).collect();
        match self.outlet.deliver(tasks).await {
            Ok(()) => Ok(ids),
            Err(error) => Err(Refusal::Broker { error, retry_after: self.retry_after }),
        }
    }
}

/// What a record is known by wherever it is repeated: the sender's own id, else its place in a
/// request that has a key, else its own device, metric, time and value. A reading whose time was
/// assumed has no identity and gets a new id.
fn record_id(record: &Record, request: Option<&TaskId>, index: usize) -> Option<TaskId> {
    if let Some(id) = &record.id {
        return TaskId::parse(id).ok();
    }
    if let Some(request) = request {
        return Some(TaskId::derived(request, &index.to_string()));
    }
    (!record.time_assumed).then(|| crate::identity::of(&record.reading))
}

pub(super) fn now() -> Timestamp {
    OffsetDateTime::now_utc().into()
}
