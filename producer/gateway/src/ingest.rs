//! Validates bodies, publishes their tasks and returns their ids, for HTTP and TCP.

use std::sync::Arc;

use futures_util::TryFutureExt;
use garenne_common::{supervise, telemetry::Metrics};
use garenne_map::{Map, Mapped, Source};
use garenne_protocol::{
    sensor::{
        Record, Timestamp,
        parse::{Form, Limits as RecordLimits, readings_in},
    },
    task::{ContentType, Kind, NewTask, TaskId, TraceContext, reading_body, reading_id},
};
use prometheus::IntCounter;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use tokio::runtime::Handle;

use crate::{
    auth::Caller,
    cloud_event::EventFormat,
    forward::{self, Forwarded},
    idempotency::{Fingerprint, UsedKeys},
    influx::{self, Precision},
    limits::Limits,
    line_batch::{LineParser, RefusedLine, count_pairs},
    offload::Offload,
    otlp::{OtlpEncoding, Rejected},
    payload::{Parsed, Payload, Prepared, Receipts, RecordCount, spool_footprint},
    refusal::Refusal,
    routes::{READING, Routes},
    task_devices::devices_of,
    task_publisher::{Durability, NotAccepted, SpoolingPublisher, TaskPublisher, shutting_down},
};

/// Validates bodies and publishes their tasks.
pub struct Ingest {
    publisher: Arc<SpoolingPublisher>,
    /// Publishes tasks of other gateways, which keep them until the broker has confirmed them.
    without_spool: Option<Arc<SpoolingPublisher>>,
    pub(super) routes: Routes,
    /// The kind of readings, if a lane takes it; parsed once because most tasks are readings.
    reading: Option<Kind>,
    records: RecordLimits,
    used_keys: UsedKeys,
    /// How often a map left out values because nothing was measured.
    unmeasured: IntCounter,
    offload: Offload,
    /// Where publishes continue whose sender disconnects.
    publish_runtime: Handle,
    limits: Limits,
}

/// The format of a body with readings.
pub(super) enum ReadingsFormat {
    /// JSON, by content type.
    Json(Form),
    /// InfluxDB's line protocol, with timestamps of this unit.
    LineProtocol(Precision),
    /// A payload of another project, that the rules of a map turn into readings. The path is that of the request.
    Mapped { map: Arc<Map>, path: Arc<str> },
}

/// The sender of readings or of a task, and the properties of its request.
pub(super) struct Sender {
    pub(super) caller: Arc<Caller>,
    /// The id that the sender gave the request, as an id of its own.
    pub(super) idempotency_key: Option<TaskId>,
    pub(super) trace: Option<TraceContext>,
}

impl Ingest {
    /// Publishes with `publisher`. A publish whose sender disconnects continues on the current runtime. Of `records` the
    /// bounds of times count.
    pub fn new(
        publisher: Arc<dyn TaskPublisher>,
        routes: Routes,
        limits: &Limits,
        records: RecordLimits,
    ) -> Arc<Self> {
        Self::with_spool(SpoolingPublisher::direct(publisher), routes, limits, records)
    }

    /// As [`Ingest::new`], with a publisher that may have a spool.
    pub fn with_spool(
        publisher: SpoolingPublisher,
        routes: Routes,
        limits: &Limits,
        records: RecordLimits,
    ) -> Arc<Self> {
        let without_spool = publisher.without_spool().map(Arc::new);
        let publisher = Arc::new(publisher);
        let records = RecordLimits { records: limits.max_records, ..records };
        let reading = routes.kind(READING).ok();
        let (offload, limits) = (Offload::new(limits.retry_after), limits.clone());
        let (used_keys, publish_runtime) = (UsedKeys::new(), Handle::current());
        let help = "Times that a map left out the values of a payload because nothing was measured.";
        let unmeasured =
            IntCounter::new("garenne_gateway_unmeasured_total", help).expect("the name is valid");
        Arc::new(Self {
            publisher,
            without_spool,
            routes,
            reading,
            records,
            used_keys,
            unmeasured,
            offload,
            publish_runtime,
            limits,
        })
    }

    /// Adds what is counted here to the metrics of the process.
    ///
    /// # Errors
    /// It was added already.
    pub(crate) fn register(&self, metrics: &Metrics) -> prometheus::Result<()> {
        metrics.registry().register(Box::new(self.unmeasured.clone()))
    }

    /// Publishes the readings of a body: one task per record, in the order of the records. As in InfluxDB, a body in its
    /// line protocol may hold no readings, and so may one that a map skips.
    ///
    /// # Errors
    /// A record is invalid or the caller may not send it, and nothing is published; or as
    /// [`Ingest::publish_and_confirm`].
    pub(super) fn ingest_readings(
        self: &Arc<Self>,
        format: ReadingsFormat,
        payload: Payload,
        sender: Sender,
    ) -> impl Future<Output = Result<Receipts, Refusal>> + use<> {
        let count = match &format {
            // Every record is an object.
            ReadingsFormat::Json(_) => RecordCount::Mark(b'{'),
            // Every reading is a field with a value.
            ReadingsFormat::LineProtocol(_) => RecordCount::Mark(b'='),
            // Values of JSON are separated.
            ReadingsFormat::Mapped { .. } => RecordCount::Mark(b','),
        };
        let ingest = Arc::clone(self);
        let parse = move |body: Vec<u8>| {
            let limits = &ingest.records;
            let records = match &format {
                ReadingsFormat::Json(form) => readings_in(*form, &body, now(), limits)?,
                ReadingsFormat::LineProtocol(unit) => influx::records(&body, *unit, now(), limits)?,
                ReadingsFormat::Mapped { map, path } => {
                    let mapped = map.apply(Source::Path(path), &body, now(), limits);
                    let Mapped { records, unmeasured, .. } = mapped.map_err(Refusal::unmapped)?;
                    ingest.unmeasured.inc_by(unmeasured as u64);
                    records
                }
            };
            // The same body gives other readings with another map.
            let content = if let ReadingsFormat::Mapped { path, .. } = &format { path } else { READING };
            let used = sender.idempotency_key.as_ref().map(|key| (key, Fingerprint::of(content, &body)));
            drop(body);
            let tasks = ingest.record_tasks(records, &sender)?;
            // After all other checks: a refused body may be corrected under the same key.
            used.map_or(Ok(()), |(key, body)| ingest.used_keys.check(key, body))?;
            Ok((tasks, ()))
        };
        self.receipts_of(payload.prepare(&self.offload, &self.limits, count, parse))
    }

    /// Publishes the readings of lines in InfluxDB's protocol. Lines that are invalid or that the caller may not send are
    /// returned, and the others are published.
    ///
    /// # Errors
    /// No line is published because of a limit, or as [`Ingest::publish_and_confirm`].
    pub(super) fn ingest_lines(
        self: &Arc<Self>,
        lines: LineParser,
        payload: Payload,
        sender: Sender,
    ) -> impl Future<Output = Result<(Receipts, Vec<RefusedLine>), Refusal>> + use<> {
        let ingest = Arc::clone(self);
        let parse = move |text: Vec<u8>| {
            let kind = ingest.reading_kind()?;
            let check = |records: &[Record]| {
                let allowed = sender.caller.check_scope(kind.as_str(), devices(records));
                allowed.map_err(|(_, refusal)| refusal)
            };
            let (records, refused) = lines.records(&text, &ingest.records, check);
            sender.caller.take(records.len())?;
            Ok((ingest.reading_tasks(&kind, records, &sender), refused))
        };
        let count = RecordCount::Weight(count_pairs);
        self.publish_and_confirm(payload.prepare(&self.offload, &self.limits, count, parse))
    }

    /// Publishes the gauges and sums of OpenTelemetry's metrics as readings. Data points that cannot be readings are
    /// returned, and the others are published.
    ///
    /// # Errors
    /// The body is invalid or the caller may not send one of its readings, and nothing is published; or as
    /// [`Ingest::publish_and_confirm`].
    pub(super) fn ingest_metrics(
        self: &Arc<Self>,
        encoding: OtlpEncoding,
        payload: Payload,
        sender: Sender,
    ) -> impl Future<Output = Result<(Receipts, Rejected), Refusal>> + use<> {
        let ingest = Arc::clone(self);
        let parse = move |body: Vec<u8>| {
            let (records, rejected) = encoding.records(&body, now(), &ingest.records)?;
            drop(body);
            Ok((ingest.record_tasks(records, &sender)?, rejected))
        };
        let count = RecordCount::Weight(encoding.weight());
        self.publish_and_confirm(payload.prepare(&self.offload, &self.limits, count, parse))
    }

    /// Publishes `task` with this body.
    ///
    /// # Errors
    /// The task is invalid or the caller may not send it, and nothing is published; or as
    /// [`Ingest::publish_and_confirm`].
    pub(super) fn ingest_task(
        self: &Arc<Self>,
        task: NewTask,
        payload: Payload,
        sender: Sender,
    ) -> impl Future<Output = Result<Receipts, Refusal>> + use<> {
        // Its readings are parsed to count them and to compare their devices.
        let has_readings = task.kind.as_str() == READING && sender.caller.is_limited();
        let count = if has_readings { RecordCount::Mark(b'{') } else { RecordCount::One };
        let ingest = Arc::clone(self);
        let parse = move |body: Vec<u8>| {
            // A body that no worker could parse is refused here, where the sender gets the error.
            serde_json::from_slice::<&RawValue>(&body).map_err(Refusal::not_json)?;
            let records = ingest.allow_task(&task, &body, &sender.caller)?;
            sender.caller.take(records)?;
            if let Some(key) = &sender.idempotency_key {
                ingest.used_keys.check(key, Fingerprint::of(task.kind.as_str(), &body))?;
            }
            Ok((vec![NewTask { body, ..task }], ()))
        };
        self.receipts_of(payload.prepare(&self.offload, &self.limits, count, parse))
    }

    /// Publishes one task for each event of a body.
    ///
    /// # Errors
    /// An event is invalid or the caller may not send it, and nothing is published; or as
    /// [`Ingest::publish_and_confirm`].
    pub(super) fn ingest_events(
        self: &Arc<Self>,
        format: EventFormat,
        payload: Payload,
        sender: Sender,
    ) -> impl Future<Output = Result<Receipts, Refusal>> + use<> {
        let count = match format {
            EventFormat::Binary(_) => RecordCount::One,
            EventFormat::Structured => RecordCount::Part,
            EventFormat::Batch => RecordCount::Objects,
        };
        let ingest = Arc::clone(self);
        let parse = move |body: Vec<u8>| {
            let mut tasks = format.tasks(body, &ingest.routes, &sender.caller, ingest.limits.max_records)?;
            let mut records = 0;
            for (index, task) in tasks.iter_mut().enumerate() {
                let allowed = ingest.allow_task(task, &task.body, &sender.caller);
                records += allowed.map_err(|refusal| refusal.of_record(index))?;
                task.trace.clone_from(&sender.trace);
            }
            // All events or none, as they are accepted.
            sender.caller.take(records)?;
            for task in &tasks {
                ingest.used_keys.check(&task.id, Fingerprint::of(task.kind.as_str(), &task.body))?;
            }
            Ok((tasks, ()))
        };
        self.receipts_of(payload.prepare(&self.offload, &self.limits, count, parse))
    }

    /// Publishes tasks of another gateway under the ids that they have, and waits for the broker's confirms. Each task is
    /// checked by itself, so that one that is refused for good does not stop the others.
    ///
    /// # Errors
    /// The body is refused, the sender's rate limit is used up, or at least one task is not confirmed.
    pub(super) fn ingest_forwarded(
        self: &Arc<Self>,
        payload: Payload,
        sender: Sender,
    ) -> impl Future<Output = Result<Forwarded, Refusal>> + use<> {
        let ingest = Arc::clone(self);
        let parse = move |body: Vec<u8>| {
            let mut records = 0;
            let (tasks, rejected) = forward::tasks(&body, ingest.limits.max_records, |task| {
                let task = task.task(&ingest.routes)?;
                records += ingest.allow_task(&task, &task.body, &sender.caller)?;
                Ok(task)
            })?;
            sender.caller.take(records)?;
            Ok((tasks, rejected))
        };
        let prepared = payload.prepare(&self.offload, &self.limits, RecordCount::Objects, parse);
        let publishing = self.without_spool.clone().map(|publisher| self.publish(prepared, publisher));
        async move {
            let (receipts, rejected) = publishing.ok_or_else(Refusal::no_broker)?.await?;
            Ok(Forwarded { accepted: receipts.ids.len(), rejected })
        }
    }

    /// Checks that the caller may send a task of this kind with this payload, whatever its rate. Returns how many records
    /// the task counts as: its readings, else one.
    fn allow_task(&self, task: &NewTask, body: &[u8], caller: &Caller) -> Result<usize, Refusal> {
        let is_counted = task.kind.as_str() == READING && caller.is_limited();
        let named = || devices_of(task, body, &caller.name, now(), &self.records);
        let devices = match caller.has_limited_devices() {
            true => named()?,
            // The worker refuses readings that are invalid.
            false if is_counted => named().unwrap_or_default(),
            false => Vec::new(),
        };
        let allowed = caller.check_scope(task.kind.as_str(), devices.iter().map(String::as_str));
        allowed.map_err(|(reading, refusal)| match reading {
            Some(reading) => refusal.of_record(reading),
            None => refusal,
        })?;
        Ok(devices.len().max(1))
    }

    /// Makes one task per record, after checking that the caller may send all of them now.
    fn record_tasks(&self, records: Vec<Record>, sender: &Sender) -> Result<Vec<NewTask>, Refusal> {
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let kind = self.reading_kind()?;
        sender.caller.admit(kind.as_str(), devices(&records))?;
        Ok(self.reading_tasks(&kind, records, sender))
    }

    fn reading_kind(&self) -> Result<Kind, Refusal> {
        self.reading.clone().map_or_else(|| self.routes.kind(READING), Ok)
    }

    fn reading_tasks(&self, kind: &Kind, records: Vec<Record>, sender: &Sender) -> Vec<NewTask> {
        let tasks = records.into_iter().enumerate().map(|(index, record)| {
            let body = reading_body(&record);
            let mut task = NewTask::new(kind.clone(), ContentType::Json, body);
            if let Some(id) = record_id(&record, sender, index) {
                task.id = id;
            }
            task.trace.clone_from(&sender.trace);
            task.key = self.routes.readings_are_sharded.then(|| record.reading.device.to_string());
            task
        });
        tasks.collect()
    }

    /// As [`Ingest::publish_and_confirm`], for a parser that tells nothing else.
    fn receipts_of(
        self: &Arc<Self>,
        prepared: Prepared<()>,
    ) -> impl Future<Output = Result<Receipts, Refusal>> + use<> {
        self.publish_and_confirm(prepared).map_ok(|(receipts, ())| receipts)
    }

    /// Publishes the tasks of a body and returns their ids, in order, and what else its parser told, after the broker has
    /// confirmed all of them or the spool has stored them.
    ///
    /// # Errors
    /// The body is refused, or at least one task is not stored.
    fn publish_and_confirm<T>(
        self: &Arc<Self>,
        prepared: Prepared<T>,
    ) -> impl Future<Output = Result<(Receipts, T), Refusal>> + use<T> {
        self.publish(prepared, Arc::clone(&self.publisher))
    }

    /// Publishes the tasks of a body. Their memory stays reserved until they are stored, also if the sender disconnects
    /// before.
    fn publish<T>(
        self: &Arc<Self>,
        prepared: Prepared<T>,
        publisher: Arc<SpoolingPublisher>,
    ) -> impl Future<Output = Result<(Receipts, T), Refusal>> + use<T> {
        let ingest = Arc::clone(self);
        async move {
            let Parsed { tasks, notes, mut memory } = prepared.await?;
            if publisher.keeps_tasks() {
                memory.grow(tasks.iter().map(spool_footprint).sum())?;
            }
            let ids: Vec<_> = tasks.iter().map(|task| task.id.clone()).collect();
            if tasks.is_empty() {
                return Ok((Receipts::new(ids, Durability::Confirmed, memory), notes));
            }
            let publish = async move { (publisher.publish(tasks).await, memory) };
            let retry_after = ingest.limits.retry_after;
            match supervise::isolated("publish", publish).continued_on(&ingest.publish_runtime).await {
                Ok((Ok(durability), memory)) => Ok((Receipts::new(ids, durability, memory), notes)),
                Ok((Err(NotAccepted::Broker(error)), _)) => Err(Refusal::broker(&error, retry_after)),
                Ok((Err(NotAccepted::Spool(error)), _)) => Err(Refusal::spool(&error, retry_after)),
                Err(_) => Err(Refusal::broker(&shutting_down(), retry_after)),
            }
        }
    }
}

fn devices(records: &[Record]) -> impl ExactSizeIterator<Item = &str> {
    records.iter().map(|record| &*record.reading.device)
}

/// The id that a record has in every repetition: that of the sender's id of the record, else one derived from the
/// request's idempotency key and the record's index, else one derived from device, metric, time and value. `None` for a
/// reading without a time of its own, which gets a random id.
fn record_id(record: &Record, sender: &Sender, index: usize) -> Option<TaskId> {
    if let Some(id) = &record.id {
        return TaskId::parse(id).ok().map(|id| sender.caller.own_id(id));
    }
    if let Some(request) = &sender.idempotency_key {
        return Some(TaskId::derived(request, &index.to_string()));
    }
    (!record.time_assumed).then(|| reading_id(&record.reading))
}

pub(super) fn now() -> Timestamp {
    OffsetDateTime::now_utc().into()
}
