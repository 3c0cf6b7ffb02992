//! The records of a request that its sender may send, and their tasks.

use std::sync::Arc;

use garenne_protocol::{
    sensor::{KeyedValues, Reading, Record, Sifted, Timestamp},
    task::{Kind, NewTask, TaskId, TraceContext, reading_id, reading_task},
};

use crate::{
    auth::Caller,
    idempotency::{Fingerprint, UsedKey},
    left_out::LeftOut,
    refusal::Refusal,
};

/// The sender of a request, and what its tasks have of the request.
pub(super) struct RequestProperties {
    pub(super) caller: Arc<Caller>,
    /// The id that the sender gave the request, as an id of its own.
    pub(super) idempotency_key: Option<TaskId>,
    pub(super) trace: Option<TraceContext>,
    /// Whether a record that is refused takes the others with it.
    pub(super) atomic: bool,
}

impl RequestProperties {
    /// The key of its request at this time, with the content that it is used for.
    pub(super) fn keys(&self, kind: &str, body: &[u8], now: Timestamp) -> Vec<UsedKey> {
        let of_body = |key: &TaskId| UsedKey {
            id: key.clone(),
            content: Fingerprint::of(kind, body),
            now,
            event: None,
        };
        self.idempotency_key.iter().map(of_body).collect()
    }
}

/// Leaves out the records that the sender may not send. Fails if no record remains, or one is refused and the sender
/// wants all or none.
pub(super) fn allowed(
    sifted: Sifted,
    kind: &Kind,
    request: &RequestProperties,
) -> Result<(Vec<Option<Record>>, LeftOut), Refusal> {
    let (Sifted { mut slots, refused, notes }, caller) = (sifted, &request.caller);
    let mut refused: Vec<_> = refused.into_iter().map(Refusal::from).collect();
    let mut notes: Vec<_> = notes.into_iter().map(Refusal::from).collect();
    caller.check_scope(kind.as_str(), std::iter::empty())?;
    if caller.has_limited_devices() {
        for (position, slot) in slots.iter_mut().enumerate() {
            let device = slot.as_ref().map(|record| &*record.reading.device);
            if let Some(device) = device.filter(|device| !caller.allows_device(device)) {
                refused.push(Refusal::foreign_device(device, &caller.name).of_record(position));
                *slot = None;
            }
        }
    }
    refuse_duplicates(&mut slots, &mut refused);
    if request.atomic {
        refused.append(&mut notes);
    }
    refused.sort_by_key(|refusal| refusal.record);
    let accepted = slots.iter().flatten().count();
    if (accepted == 0 || request.atomic) && !refused.is_empty() {
        return Err(Refusal::nothing_remains(refused));
    }
    let stored = match accepted == slots.len() {
        true => Vec::new(),
        false => slots.iter().map(Option::is_some).collect(),
    };
    Ok((slots, LeftOut { stored, refused, notes }))
}

/// Refuses the records that have another value than an earlier one for the same device, metric and time. At a worker they
/// would be conflicts.
fn refuse_duplicates(slots: &mut [Option<Record>], refused: &mut Vec<Refusal>) {
    if slots.len() < 2 {
        return;
    }
    let mut values = KeyedValues::default();
    for (position, slot) in slots.iter_mut().enumerate() {
        if let Some(Err(error)) = slot.as_ref().map(|record| values.add(&record.reading)) {
            refused.push(error.in_record(position).into());
            *slot = None;
        }
    }
}

/// Leaves out the records of devices that the sender may not send, and tells each. Returns the first refusal.
pub(super) fn leave_out_foreign(
    records: &mut Vec<Record>,
    caller: &Caller,
    mut left_out: impl FnMut(&Reading, &Refusal),
) -> Option<Refusal> {
    let mut first = None;
    if caller.has_limited_devices() {
        records.retain(|Record { reading, .. }| {
            let is_allowed = caller.allows_device(&reading.device);
            if !is_allowed {
                let refusal = Refusal::foreign_device(&reading.device, &caller.name);
                left_out(reading, &refusal);
                first.get_or_insert(refusal);
            }
            is_allowed
        });
    }
    first
}

/// The task of the record at a position in its request. If `sharded`, its key is its device.
pub(super) fn record_task(
    kind: &Kind,
    (position, record): (usize, Record),
    request: &RequestProperties,
    sharded: bool,
) -> NewTask {
    let id = record_id(&record, request, position).unwrap_or_else(TaskId::random);
    NewTask { trace: request.trace.clone(), ..reading_task(id, kind, &record, sharded) }
}

pub(super) fn devices(records: &[Record]) -> impl ExactSizeIterator<Item = &str> {
    records.iter().map(|record| &*record.reading.device)
}

/// The id that a record has in every repetition: that of the sender's id of the record, else one derived from the
/// request's idempotency key and the record's position, else one derived from device, metric, time, value and unit. `None` for a
/// reading without a time of its own, which gets a random id.
fn record_id(record: &Record, request: &RequestProperties, position: usize) -> Option<TaskId> {
    if let Some(id) = &record.id {
        return TaskId::parse(id).ok().map(|id| request.caller.own_id(id));
    }
    if let Some(key) = &request.idempotency_key {
        return Some(TaskId::derived(key, &position.to_string()));
    }
    (!record.time_assumed).then(|| reading_id(&record.reading))
}
