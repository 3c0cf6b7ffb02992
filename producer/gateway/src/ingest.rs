//! What a gateway makes of bodies: the records and tasks that their senders may send, sent to the broker or spooled.

use std::sync::Arc;

use garenne_common::{config::Size, supervise, telemetry::Metrics};
use garenne_protocol::{
    sensor::{Record, Timestamp, parse::Limits as RecordLimits},
    task::{Kind, NewTask, TaskId},
};
use garenne_publish::{Durability, NotAccepted, READING_KIND, Routes, SpoolingSender, shutting_down};
use prometheus::IntCounter;
use time::OffsetDateTime;
use tokio::runtime::Handle;

use crate::{
    auth::Caller,
    idempotency::{UsedKey, UsedKeys},
    left_out::Notes,
    limits::Limits,
    offload::Offload,
    payload::{Converted, Receipts, RecordCount, spool_footprint},
    record_tasks::{RequestProperties, record_task},
    refusal::Refusal,
    task_devices::devices_of,
};

/// More than what a forwarded task has besides its payload, in bytes of JSON: id, kind, key, group, parent and trace, each
/// of bounded length and with every byte escaped.
const FORWARD_WRAPPER: usize = 8 * 1024;

/// The format of a body.
pub(super) trait Format: Send + 'static {
    /// What an answer tells besides the ids of tasks.
    type Notes: Notes;

    /// How an upper bound of the records is found before the body is parsed.
    fn count(&self, request: &RequestProperties) -> RecordCount;

    /// Whether only the confirm of the broker counts: the spool of another gateway has the tasks.
    fn needs_confirm(&self) -> bool {
        false
    }

    /// The records or tasks of a body that are valid and that the sender may send. Refuses a body of which nothing
    /// remains, or of which something is refused if the sender wants all or none.
    fn parse(
        self,
        body: Vec<u8>,
        request: &RequestProperties,
        ingest: &Ingest,
    ) -> Result<Parsed<Self::Notes>, Refusal>;
}

/// What is accepted of a body.
pub(super) struct Parsed<N> {
    pub(super) content: Content,
    /// The number of records that count against the rate of the sender.
    pub(super) counted: usize,
    /// Ids that the sender gave, each of which must not be used with another content.
    pub(super) keys: Vec<UsedKey>,
    pub(super) notes: N,
}

/// Records or tasks.
pub(super) enum Content {
    /// Readings, each with its position in the request.
    Readings(Kind, Vec<(usize, Record)>),
    Tasks(Vec<NewTask>),
}

/// The receipts of a request whose tasks are stored, and what else its answer tells.
pub(super) type Stored<N> = (Receipts, N);

impl<N> Parsed<N> {
    /// All of these readings, in their order.
    pub(super) fn readings(kind: Kind, records: Vec<Record>, notes: N) -> Self {
        Self::at_positions(kind, records.into_iter().enumerate().collect(), notes)
    }

    /// These readings, each with its position in the request.
    pub(super) fn at_positions(kind: Kind, records: Vec<(usize, Record)>, notes: N) -> Self {
        let (counted, keys) = (records.len(), Vec::new());
        Self { content: Content::Readings(kind, records), counted, keys, notes }
    }

    /// Tasks that count as so many records.
    pub(super) fn tasks(tasks: Vec<NewTask>, counted: usize, notes: N) -> Self {
        Self { content: Content::Tasks(tasks), counted, keys: Vec::new(), notes }
    }
}

/// Records what senders may send as tasks, and sends them.
pub struct Ingest {
    task_sender: Arc<SpoolingSender>,
    /// For tasks of other gateways, which keep them until the broker has confirmed them. `None` if there is no broker.
    without_spool: Option<Arc<SpoolingSender>>,
    pub(super) routes: Routes,
    /// The kind of readings, if a lane takes it; parsed once because most tasks are readings.
    reading: Option<Kind>,
    pub(super) records: RecordLimits,
    pub(super) used_keys: UsedKeys,
    /// How often a map left out values because nothing was measured.
    pub(super) unmeasured: IntCounter,
    pub(super) offload: Offload,
    /// Where sending continues if the sender of a request disconnects.
    runtime: Handle,
    pub(super) limits: Limits,
}

impl Ingest {
    /// Sends tasks with `task_sender`, also those of a sender that disconnects: then on the current runtime. Of `records` the
    /// bounds of times count.
    pub fn new(
        task_sender: SpoolingSender,
        routes: Routes,
        limits: &Limits,
        records: RecordLimits,
    ) -> Arc<Self> {
        let help = "Times that a map left out the values of a payload because nothing was measured.";
        Arc::new(Self {
            without_spool: task_sender.without_spool().map(Arc::new),
            task_sender: Arc::new(task_sender),
            reading: routes.kind(READING_KIND).ok(),
            routes,
            records: RecordLimits { records: limits.max_records, ..records },
            used_keys: UsedKeys::new(),
            unmeasured: IntCounter::new("garenne_gateway_unmeasured_total", help).expect("the name is valid"),
            offload: Offload::new(limits.retry_after),
            runtime: Handle::current(),
            limits: limits.clone(),
        })
    }

    /// Adds what is counted here to the metrics of the process.
    pub(crate) fn register(&self, metrics: &Metrics) -> prometheus::Result<()> {
        metrics.registry().register(Box::new(self.unmeasured.clone()))
    }

    /// Checks that the caller may send a task of this kind with this payload, whatever its rate, and that readings are valid.
    /// Returns how many records the task counts as: its readings, else one.
    pub(super) fn allow_task(&self, task: &NewTask, body: &[u8], caller: &Caller) -> Result<usize, Refusal> {
        // The central gateway would refuse it always, after its sender has a receipt.
        let max_body = self.limits.max_body.bytes();
        let most = max_body - FORWARD_WRAPPER.min(max_body / 2);
        if self.without_spool.is_none() && body.len() > most {
            return Err(Refusal::too_large("the payload of a task that is forwarded", Size(most as u64)));
        }
        // A worker would make a dead letter of readings that are invalid, after their sender has a receipt.
        let devices = match task.kind.as_str() == READING_KIND || caller.has_limited_devices() {
            true => devices_of(task, body, &caller.name, now(), &self.records)?,
            false => Vec::new(),
        };
        caller.check_records(task.kind.as_str(), devices.iter().map(String::as_str))?;
        Ok(devices.len().max(1))
    }

    /// The kind of readings. Refused if no lane takes it.
    pub(super) fn reading_kind(&self) -> Result<Kind, Refusal> {
        Ok(self.reading.clone().map_or_else(|| self.routes.kind(READING_KIND), Ok)?)
    }

    /// Records what is accepted of a body as tasks. Refuses them if the sender's rate limit is used up, or it has
    /// used an id with another content.
    pub(super) fn record<N>(
        &self,
        parsed: Parsed<N>,
        request: &RequestProperties,
    ) -> Result<(Vec<NewTask>, N), Refusal> {
        let Parsed { content, counted, keys, notes } = parsed;
        request.caller.take(counted)?;
        // After all other checks: a body of which nothing is accepted may be corrected under the same key.
        let mut waited = 0;
        let mut versions = Vec::with_capacity(keys.len());
        for key in keys {
            let now = key.now.as_micros();
            let first = self.used_keys.check(key)?;
            waited = now - first.now.as_micros();
            versions.push(first.version);
        }
        let tasks = match content {
            Content::Tasks(mut tasks) => {
                // A task or an event that is sent again has the version of the first time, and readings without a time its time.
                tasks.iter_mut().zip(versions).for_each(|(task, version)| task.version = version);
                tasks
            }
            Content::Readings(kind, records) => {
                let sharded = self.routes.readings_are_sharded;
                let task = |(position, mut record): (usize, Record)| {
                    self.repeat_time(&mut record, waited, request);
                    record_task(&kind, (position, record), request, sharded)
                };
                records.into_iter().map(task).collect()
            }
        };
        Ok((tasks, notes))
    }

    /// Gives a record without a time of its own the time that it had when it was first sent under its id, or in a request with
    /// the same key, the time since which is given in microseconds. At another time it would be another reading.
    fn repeat_time(&self, record: &mut Record, waited: i64, request: &RequestProperties) {
        if !record.time_assumed {
            return;
        }
        let time = &mut record.reading.time;
        *time = Timestamp::from_micros(time.as_micros() - waited).unwrap_or(*time);
        if let Some(id) = record.id.as_deref().and_then(|id| TaskId::parse(id).ok()) {
            record.reading.time = self.used_keys.first_time(request.caller.own_id(id), &record.reading);
        }
    }

    /// Where the tasks of this format go. Fails without a broker if the format needs its confirm.
    pub(super) fn task_sender_for(&self, format: &impl Format) -> Result<Arc<SpoolingSender>, Refusal> {
        match format.needs_confirm() {
            true => self.without_spool.clone().ok_or_else(Refusal::no_broker),
            false => Ok(Arc::clone(&self.task_sender)),
        }
    }

    /// Sends or spools the tasks of a body, and returns their ids in order. Their memory stays reserved until they are
    /// stored, also if the sender disconnects before. Fails if at least one task is not stored.
    pub(super) async fn send_or_spool<N: Notes>(
        &self,
        task_sender: Arc<SpoolingSender>,
        Converted { tasks, notes, mut memory }: Converted<N>,
    ) -> Result<Stored<N>, Refusal> {
        if task_sender.keeps_tasks() {
            memory.grow(tasks.iter().map(spool_footprint).sum())?;
        }
        let ids: Vec<_> = tasks.iter().map(|task| task.id.clone()).collect();
        if tasks.is_empty() {
            return Ok((Receipts::new(ids, Durability::Confirmed, notes.memory(), memory), notes));
        }
        let sending = async move { (task_sender.send(tasks).await, memory) };
        let retry_after = self.limits.retry_after;
        match supervise::isolated("publish", sending).continued_on(&self.runtime).await {
            Ok((Ok(durability), memory)) => {
                Ok((Receipts::new(ids, durability, notes.memory(), memory), notes))
            }
            Ok((Err(NotAccepted::Broker(error)), _)) => Err(Refusal::broker(&error, retry_after)),
            Ok((Err(NotAccepted::Spool(error)), _)) => Err(Refusal::spool(&error, retry_after)),
            Err(_) => Err(Refusal::broker(&shutting_down(), retry_after)),
        }
    }
}

pub(super) fn now() -> Timestamp {
    OffsetDateTime::now_utc().into()
}
