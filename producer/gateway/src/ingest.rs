//! Validates bodies, publishes their tasks and returns their ids, for HTTP and TCP.

use std::sync::Arc;

use futures_util::TryFutureExt;
use garenne_common::{config::Size, supervise, telemetry::Metrics};
use garenne_protocol::{
    sensor::{Record, Timestamp, parse::Limits as RecordLimits},
    task::{Kind, NewTask},
};
use prometheus::IntCounter;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use tokio::runtime::Handle;

use crate::{
    auth::Caller,
    cloud_event::EventFormat,
    dropped_lines::DroppedLines,
    forward::{self, Forwarded},
    idempotency::{Fingerprint, UsedKeys},
    influx::Precision,
    left_out::{LeftOut, Notes},
    limits::Limits,
    line_batch::{LineParser, RefusedLine, count_pairs},
    offload::Offload,
    otlp::{OtlpEncoding, Rejected},
    payload::{Parsed, Payload, Prepared, Receipts, RecordCount, spool_footprint},
    readings_format::ReadingsFormat,
    record_tasks::{Sender, admitted, devices, leave_out_foreign, reading_task},
    refusal::Refusal,
    routes::{READING, Routes},
    task_devices::devices_of,
    task_publisher::{Durability, NotAccepted, SpoolingPublisher, shutting_down},
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

impl Ingest {
    /// Publishes with `publisher`. A publish whose sender disconnects continues on the current runtime. Of `records` the
    /// bounds of times count.
    pub fn new(
        publisher: SpoolingPublisher,
        routes: Routes,
        limits: &Limits,
        records: RecordLimits,
    ) -> Arc<Self> {
        let help = "Times that a map left out the values of a payload because nothing was measured.";
        let unmeasured = IntCounter::new("garenne_gateway_unmeasured_total", help);
        Arc::new(Self {
            without_spool: publisher.without_spool().map(Arc::new),
            publisher: Arc::new(publisher),
            reading: routes.kind(READING).ok(),
            routes,
            records: RecordLimits { records: limits.max_records, ..records },
            used_keys: UsedKeys::new(),
            unmeasured: unmeasured.expect("the name is valid"),
            offload: Offload::new(limits.retry_after),
            publish_runtime: Handle::current(),
            limits: limits.clone(),
        })
    }

    /// Adds what is counted here to the metrics of the process.
    ///
    /// # Errors
    /// It was added already.
    pub(crate) fn register(&self, metrics: &Metrics) -> prometheus::Result<()> {
        metrics.registry().register(Box::new(self.unmeasured.clone()))
    }

    /// Publishes the readings of a body: one task per record, in the order of the records. A record that is invalid or
    /// that the caller may not send is left out. A body that a map skips has no readings.
    ///
    /// # Errors
    /// Nothing is published: the body is refused as a whole, or every record is, or one if the sender wants all or none;
    /// or as [`Ingest::publish_and_confirm`].
    pub(super) fn ingest_readings(
        self: &Arc<Self>,
        format: ReadingsFormat,
        payload: Payload,
        sender: Sender,
    ) -> impl Future<Output = Result<(Receipts, LeftOut), Refusal>> + use<> {
        let (ingest, count) = (Arc::clone(self), format.count());
        let parse = move |mut body: Vec<u8>| {
            // Before the body is changed.
            let print = |key| (key, Fingerprint::of(format.content(), &body));
            let used = sender.idempotency_key.as_ref().map(print);
            let sifted = format.sift(&mut body, now(), &ingest.records, &ingest.unmeasured)?;
            drop(body);
            if sifted.slots.is_empty() {
                return Ok((Vec::new(), LeftOut::default()));
            }
            let kind = ingest.reading_kind()?;
            let (slots, left_out) = admitted(sifted, &kind, &sender)?;
            let records = slots.into_iter().enumerate().filter_map(|(place, slot)| Some((place, slot?)));
            let tasks = ingest.reading_tasks(&kind, records, &sender);
            // After all other checks: a body of which nothing is accepted may be corrected under the same key.
            used.map_or(Ok(()), |(key, body)| ingest.used_keys.check(key, body))?;
            Ok((tasks, left_out))
        };
        self.publish_and_confirm(payload.prepare(&self.offload, &self.limits, count, parse))
    }

    /// Publishes the readings of a body in InfluxDB's line protocol, which may hold none. Lines that are invalid or that
    /// the caller may not send are dropped, and so are fields that cannot be readings.
    ///
    /// # Errors
    /// Nothing is published: the body is refused as a whole, or nothing of it remains, or something is dropped and the
    /// sender wants all or none; or as [`Ingest::publish_and_confirm`].
    pub(super) fn ingest_line_body(
        self: &Arc<Self>,
        precision: Precision,
        payload: Payload,
        sender: Sender,
    ) -> impl Future<Output = Result<(Receipts, DroppedLines), Refusal>> + use<> {
        let ingest = Arc::clone(self);
        let parse = move |body: Vec<u8>| {
            let (kind, caller) = (ingest.reading_kind()?, &sender.caller);
            caller.check_scope(kind.as_str(), std::iter::empty())?;
            let is_allowed = |device: &str| match caller.allows_device(device) {
                true => Ok(()),
                false => Err(Refusal::foreign_device(device, &caller.name)),
            };
            let (records, dropped) = DroppedLines::sort(body, precision, now(), &ingest.records, is_allowed)?;
            if !dropped.is_empty() && (records.is_empty() || sender.atomic) {
                return Err(dropped.refusal());
            }
            caller.take(records.len())?;
            Ok((ingest.reading_tasks(&kind, records.into_iter().enumerate(), &sender), dropped))
        };
        let count = RecordCount::Weight(count_pairs);
        self.publish_and_confirm(payload.prepare(&self.offload, &self.limits, count, parse))
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
            let check = |records: &[Record]| sender.caller.check_scope(kind.as_str(), devices(records));
            let (records, refused) = lines.records(&text, &ingest.records, check);
            sender.caller.take(records.len())?;
            Ok((ingest.reading_tasks(&kind, records.into_iter().enumerate(), &sender), refused))
        };
        let count = RecordCount::Weight(count_pairs);
        self.publish_and_confirm(payload.prepare(&self.offload, &self.limits, count, parse))
    }

    /// Publishes the gauges and sums of OpenTelemetry's metrics as readings. Data points that cannot be readings are
    /// returned, and the others are published.
    ///
    /// # Errors
    /// Nothing is published: the body is invalid, the caller may send none of its readings, or a point is rejected and the
    /// sender wants all or none; or as [`Ingest::publish_and_confirm`].
    pub(super) fn ingest_metrics(
        self: &Arc<Self>,
        encoding: OtlpEncoding,
        payload: Payload,
        sender: Sender,
    ) -> impl Future<Output = Result<(Receipts, Rejected), Refusal>> + use<> {
        let ingest = Arc::clone(self);
        let parse = move |body: Vec<u8>| {
            let (mut records, mut rejected) = encoding.records(&body, now(), &ingest.records)?;
            drop(body);
            let foreign = leave_out_foreign(&mut records, &sender.caller, |reading, refusal| {
                rejected.add(&reading.metric, 1, refusal.code, &refusal.message);
            });
            match foreign {
                Some(refusal) if records.is_empty() => Err(refusal),
                _ if sender.atomic && !rejected.is_empty() => {
                    Err(Refusal::rejected_points(rejected.message()))
                }
                _ if records.is_empty() => Ok((Vec::new(), rejected)),
                _ => {
                    let kind = ingest.reading_kind()?;
                    sender.caller.admit(kind.as_str(), devices(&records))?;
                    Ok((ingest.reading_tasks(&kind, records.into_iter().enumerate(), &sender), rejected))
                }
            }
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
        // The central gateway would refuse it always, after its sender has a receipt.
        let max_body = self.limits.max_body.bytes();
        let most = max_body - forward::WRAPPER.min(max_body / 2);
        if self.without_spool.is_none() && body.len() > most {
            return Err(Refusal::too_large("the payload of a task that is forwarded", Size(most as u64)));
        }
        let is_counted = task.kind.as_str() == READING && caller.is_limited();
        let named = || devices_of(task, body, &caller.name, now(), &self.records);
        let devices = match caller.has_limited_devices() {
            true => named()?,
            // The worker refuses readings that are invalid.
            false if is_counted => named().unwrap_or_default(),
            false => Vec::new(),
        };
        let allowed = caller.check_scope(task.kind.as_str(), devices.iter().map(String::as_str));
        allowed.map_err(|refusal| match refusal.record {
            Some(reading) => refusal.of_record(reading),
            None => refusal,
        })?;
        Ok(devices.len().max(1))
    }

    fn reading_kind(&self) -> Result<Kind, Refusal> {
        self.reading.clone().map_or_else(|| self.routes.kind(READING), Ok)
    }

    /// The tasks of records, each with its position in the request.
    fn reading_tasks(
        &self,
        kind: &Kind,
        records: impl Iterator<Item = (usize, Record)>,
        sender: &Sender,
    ) -> Vec<NewTask> {
        records.map(|record| reading_task(kind, record, sender, self.routes.readings_are_sharded)).collect()
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
    fn publish_and_confirm<T: Notes>(
        self: &Arc<Self>,
        prepared: Prepared<T>,
    ) -> impl Future<Output = Result<(Receipts, T), Refusal>> + use<T> {
        self.publish(prepared, Arc::clone(&self.publisher))
    }

    /// Publishes the tasks of a body. Their memory stays reserved until they are stored, also if the sender disconnects
    /// before.
    fn publish<T: Notes>(
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
                return Ok((Receipts::new(ids, Durability::Confirmed, notes.memory(), memory), notes));
            }
            let publish = async move { (publisher.publish(tasks).await, memory) };
            let retry_after = ingest.limits.retry_after;
            match supervise::isolated("publish", publish).continued_on(&ingest.publish_runtime).await {
                Ok((Ok(durability), memory)) => {
                    Ok((Receipts::new(ids, durability, notes.memory(), memory), notes))
                }
                Ok((Err(NotAccepted::Broker(error)), _)) => Err(Refusal::broker(&error, retry_after)),
                Ok((Err(NotAccepted::Spool(error)), _)) => Err(Refusal::spool(&error, retry_after)),
                Err(_) => Err(Refusal::broker(&shutting_down(), retry_after)),
            }
        }
    }
}

pub(super) fn now() -> Timestamp {
    OffsetDateTime::now_utc().into()
}
