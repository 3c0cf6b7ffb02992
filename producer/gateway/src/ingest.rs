//! From a body to tasks to receipts: what HTTP and TCP share.

use std::{sync::Arc, time::Duration};

use garenne_protocol::{
    sensor::{
        Record, Timestamp,
        parse::{Form, Limits as RecordLimits, readings_in},
    },
    task::{ContentType, Kind, NewTask, TaskId, TraceContext},
};
use serde_json::value::RawValue;
use time::OffsetDateTime;

use crate::{
    auth::Caller,
    delivery::Deliveries,
    influx::{self, Precision},
    limits::Limits,
    offload::Offload,
    outlet::{Outlet, closing},
    payload::{Bounds, Payload, Prepared, Receipts, influx_records, json_records, one_record},
    refusal::Refusal,
    routes::{READING, Routes},
};

/// Turns what senders write into tasks, delivers them, and answers with their ids.
pub struct Ingest {
    outlet: Arc<dyn Outlet>,
    routes: Routes,
    /// A reading's, where some lane takes it: most tasks are readings.
    reading: Option<Kind>,
    records: RecordLimits,
    bounds: Bounds,
    offload: Offload,
    deliveries: Deliveries,
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

/// Who sends readings, and what they say of all of them.
pub(super) struct Sender {
    pub(super) caller: Caller,
    pub(super) idempotency_key: Option<String>,
    pub(super) trace: Option<TraceContext>,
}

impl Ingest {
    /// Delivers to `outlet` what `routes` take, on the runtime that calls this. A reading's time may be
    /// `max_clock_skew` ahead; 0 for any time.
    pub fn new(
        outlet: Arc<dyn Outlet>,
        routes: Routes,
        limits: &Limits,
        max_clock_skew: Duration,
    ) -> Arc<Self> {
        let max_ahead = Some(max_clock_skew).filter(|skew| !skew.is_zero());
        let records = RecordLimits { records: limits.max_records, max_ahead, ..RecordLimits::default() };
        let reading = routes.kind(READING).ok();
        let bounds = Bounds { body: limits.max_body, records: limits.max_records };
        let (offload, retry_after) = (Offload::new(limits.retry_after), limits.retry_after);
        let deliveries = Deliveries::here();
        Arc::new(Self { outlet, routes, reading, records, bounds, offload, deliveries, retry_after })
    }

    /// The bindings of all lanes.
    pub(super) fn bindings(&self) -> &[String] {
        self.routes.bindings()
    }

    /// Takes a body of readings, in the form that its content type says: a task of its own for each, in the order of
    /// the records, if the caller may send all of them now.
    ///
    /// # Errors
    /// The record at fault, or why the caller may not, and nothing was delivered; or as [`Ingest::deliver`].
    pub(super) async fn readings(
        self: &Arc<Self>,
        content_type: &str,
        payload: Payload,
        sender: Sender,
    ) -> Result<Receipts, Refusal> {
        let form = Form::of(content_type)?;
        let ingest = Arc::clone(self);
        let parse = move |body: Vec<u8>| {
            let records = readings_in(form, &body, now(), &ingest.records)?;
            drop(body);
            ingest.record_tasks(records, &sender)
        };
        self.deliver(payload.prepare(&self.offload, self.bounds, json_records, parse).await?).await
    }

    /// Takes readings in InfluxDB's line protocol; none of them is an error to InfluxDB, and so not here.
    ///
    /// # Errors
    /// As [`Ingest::readings`].
    pub(super) async fn lines(
        self: &Arc<Self>,
        precision: Precision,
        payload: Payload,
        sender: Sender,
    ) -> Result<Receipts, Refusal> {
        let ingest = Arc::clone(self);
        let parse = move |body: Vec<u8>| {
            let records = influx::records(&body, precision, now(), &ingest.records)?;
            drop(body);
            if records.is_empty() { Ok(Vec::new()) } else { ingest.record_tasks(records, &sender) }
        };
        self.deliver(payload.prepare(&self.offload, self.bounds, influx_records, parse).await?).await
    }

    /// Takes one task of any kind that some lane takes.
    ///
    /// # Errors
    /// What is wrong with it, or why the caller may not, and nothing was delivered; or as [`Ingest::deliver`].
    pub(super) async fn task(
        &self,
        kind: Kind,
        payload: Payload,
        caller: &Caller,
        options: TaskOptions,
    ) -> Result<Receipts, Refusal> {
        caller.admit_task(kind.as_str())?;
        let id = options
            .id
            .map(|id| TaskId::parse(&id).map_err(|error| Refusal::Id { field: "Idempotency-Key", error }))
            .transpose()?;
        let parse = move |body: Vec<u8>| {
            // Parsed and not only passed on: a body that no worker can read is refused where its sender
            // still listens.
            serde_json::from_slice::<&RawValue>(&body)
                .map_err(|error| Refusal::NotJson(error.to_string()))?;
            let mut task = NewTask::new(kind, options.content_type, body);
            if let Some(id) = id {
                task.id = id;
            }
            task.group = options.group;
            task.key = options.key;
            task.delay = options.delay;
            task.timeout = options.timeout;
            task.trace = options.trace;
            Ok(vec![task])
        };
        self.deliver(payload.prepare(&self.offload, self.bounds, one_record, parse).await?).await
    }

    /// The kind of a task, where some lane takes it.
    ///
    /// # Errors
    /// As [`Routes::kind`].
    pub(super) fn kind(&self, kind: &str) -> Result<Kind, Refusal> {
        self.routes.kind(kind)
    }

    /// A task for each record, if the caller may send all of them now.
    fn record_tasks(&self, records: Vec<Record>, sender: &Sender) -> Result<Vec<NewTask>, Refusal> {
        let kind = self.reading.clone().map_or_else(|| self.routes.kind(READING), Ok)?;
        sender.caller.admit(records.iter().map(|record| &*record.reading.device))?;
        let request = sender.idempotency_key.as_deref();
        let request = request
            .map(|key| TaskId::parse(key).map_err(|error| Refusal::Id { field: "Idempotency-Key", error }))
            .transpose()?;
        let tasks = records.into_iter().enumerate().map(|(index, record)| {
            let body = serde_json::to_vec(&record.reading).expect("a reading is plain JSON");
            let mut task = NewTask::new(kind.clone(), ContentType::Json, body);
            if let Some(id) = record_id(&record, request.as_ref(), index) {
                task.id = id;
            }
            task.trace.clone_from(&sender.trace);
            task.key = self.routes.readings_are_sharded().then(|| record.reading.device.to_string());
            task
        });
        Ok(tasks.collect())
    }

    /// Delivers all of them or promises none: answers their ids, in order, once all are safe. Their memory stays
    /// reserved until then, also when the sender is gone before.
    ///
    /// # Errors
    /// The broker, and nothing is promised.
    async fn deliver(&self, Prepared { tasks, memory }: Prepared) -> Result<Receipts, Refusal> {
        let ids: Vec<_> = tasks.iter().map(|task| task.id.clone()).collect();
        if tasks.is_empty() {
            return Ok(Receipts::new(ids, memory));
        }
        let outlet = Arc::clone(&self.outlet);
        let delivering = async move { (outlet.deliver(tasks).await, memory) };
        let error = match self.deliveries.run(delivering).await {
            Some((Ok(()), memory)) => return Ok(Receipts::new(ids, memory)),
            Some((Err(error), _)) => error,
            None => closing(),
        };
        Err(Refusal::Broker { error, retry_after: self.retry_after })
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
