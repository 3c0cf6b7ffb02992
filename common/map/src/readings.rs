//! Collects the readings of a payload.

use std::{collections::HashSet, sync::Arc};

use garenne_protocol::{
    sensor::{
        BadField, BadRecord, Counter, Fault, KeyedValues, Limits, Reading, Record, SentCounter, Timestamp,
        parse::check_unit,
    },
    shown_number,
};
use uuid::Uuid;

use crate::{
    plan::{ReadingPlan, Units},
    template::Scope,
    unmapped::Reason,
};

/// The namespace of ids that are derived from the id of a payload: the version 5 UUID of "garenne.map" under the nil
/// UUID. Stored ids depend on it, so it must never change.
const NAMESPACE: Uuid = Uuid::from_u128(0x05dc_d2b0_63b7_56b7_9c56_0c8b_7040_f17d);

/// So many readings are compared with each other; more are compared by their hashes.
const FEW: usize = 16;

/// Most readings that room is made for before they come.
const RESERVED: usize = 64;

/// Properties that all readings of an element share.
pub(crate) struct ElementProperties {
    pub(crate) device: Arc<str>,
    pub(crate) time: Timestamp,
    /// Whether the time is not from the payload.
    pub(crate) time_assumed: bool,
    /// The id of the payload or the element, if it has one.
    pub(crate) id: Option<String>,
}

/// The readings of a payload.
pub(crate) struct Readings<'l> {
    records: Vec<Record>,
    /// Values that are refused. Their positions and those of the records follow each other.
    refused: Vec<BadRecord>,
    /// The reason of the first of them.
    first: Option<Reason>,
    /// What the readings became of, if that is asked for: addresses of values, or numbers of metrics. One for each record.
    taken: Option<Vec<usize>>,
    limits: &'l Limits,
    pub(crate) now: Timestamp,
    /// Is told of each value that becomes no reading, and why.
    skipped: &'l mut dyn FnMut(&str, &str),
    /// How often values were left out because nothing was measured.
    pub(crate) unmeasured: usize,
}

impl<'l> Readings<'l> {
    pub(crate) fn new(limits: &'l Limits, now: Timestamp, skipped: &'l mut dyn FnMut(&str, &str)) -> Self {
        let (records, refused) = (Vec::new(), Vec::new());
        Self { records, refused, first: None, taken: None, limits, now, skipped, unmeasured: 0 }
    }

    /// Keeps which values become readings.
    pub(crate) fn tracking(self) -> Self {
        Self { taken: Some(Vec::new()), ..self }
    }

    /// Says what the last reading has become of.
    pub(crate) fn take(&mut self, origin: usize) {
        if let Some(taken) = &mut self.taken {
            taken.push(origin);
        }
    }

    /// Refuses the value of `field`, so that the others are kept. Fails with `reason` if it is one of the whole
    /// payload, or if there are too many values.
    pub(crate) fn refuse(&mut self, field: &str, reason: Reason) -> Result<(), Reason> {
        if reason.is_about_payload() {
            return Err(reason);
        }
        if self.position() >= self.limits.records {
            return Err(Reason::TooManyReadings(self.limits.records));
        }
        let refused = reason.in_record(self.position(), field);
        self.skip(field, &refused.message);
        self.refused.push(refused);
        self.first.get_or_insert(reason);
        Ok(())
    }

    /// The position of the next value.
    fn position(&self) -> usize {
        self.records.len() + self.refused.len()
    }

    /// Makes room for at most so many readings.
    pub(crate) fn reserve(&mut self, most: usize) {
        self.records.reserve(most.min(self.limits.records).min(RESERVED));
    }

    pub(crate) fn skip(&mut self, what: &str, why: &str) {
        (self.skipped)(what, why);
    }

    /// Counts values that are left out because what shows that they were measured is absent.
    pub(crate) fn unmeasured(&mut self, values: &str, absent: &str) {
        self.unmeasured += 1;
        match values == absent {
            true => self.skip(values, "missing or empty"),
            false => self.skip(values, &format!("nothing was measured: {absent} is missing or empty")),
        }
    }

    /// Refuses a time that is too far ahead or before the earliest one. `given` is the number that it was read from.
    /// The error guesses the unit that was probably meant.
    pub(crate) fn check_time(&self, time: Timestamp, given: Option<i64>) -> Result<(), Reason> {
        self.limits.check_read_time("time", (time, given), self.now).map_err(|error| self.invalid(error))
    }

    /// Adds a reading of a number.
    pub(crate) fn push(
        &mut self,
        properties: &ElementProperties,
        plan: &ReadingPlan,
        units: &Units,
        scope: &Scope<'_, '_>,
        number: f64,
    ) -> Result<(), Reason> {
        if self.position() >= self.limits.records {
            return Err(Reason::TooManyReadings(self.limits.records));
        }
        let metric = plan.metric.text("metric", scope)?;
        let unit = plan.unit.unit(units, scope)?;
        check_unit("unit", unit, &metric).map_err(|error| self.invalid(error))?;
        let value = number * plan.scale + plan.offset;
        if !value.is_finite() {
            let message = format!("{} is not finite after scale and offset", shown_number(number));
            return Err(self.invalid(Fault::OutOfRange.in_field("value", message)));
        }
        let ElementProperties { device, time, time_assumed, id } = properties;
        let id = id.as_ref().map(|id| derived_id(id, device, &metric));
        let counter = plan.counter.map(|Counter { wraps_at, max_per_hour }| {
            let wraps_at = wraps_at.map(|wraps_at| wraps_at * plan.scale).filter(|limit| limit.is_finite());
            Box::new(SentCounter { wraps_at, max_per_hour, start: None })
        });
        let reading = Reading { device: Arc::clone(device), metric, value, unit, counter, time: *time };
        self.records.push(Record { reading, id, time_assumed: *time_assumed });
        Ok(())
    }

    fn invalid(&self, error: BadField) -> Reason {
        Reason::Invalid(error.in_record(self.position()))
    }

    /// The readings, and the values that are refused. Of readings with the same key and different values the first is
    /// kept. Without a reading, fails with the reason of the first refusal; if none was refused, only unless
    /// `allow_empty`.
    pub(crate) fn finish(mut self, allow_empty: bool) -> Result<Finished, Reason> {
        if has_duplicate(&self.records) {
            self.refuse_duplicates();
        }
        let Self { records, refused, first, taken, unmeasured, .. } = self;
        match first {
            Some(first) if records.is_empty() => Err(first),
            None if records.is_empty() && !allow_empty => Err(Reason::NoValue),
            _ => Ok(Finished { records, refused, unmeasured, taken: taken.unwrap_or_default() }),
        }
    }

    fn refuse_duplicates(&mut self) {
        let mut taken_positions = self.refused.iter().map(|refused| refused.index).peekable();
        let (mut values, mut position) = (KeyedValues::default(), 0);
        let (mut kept, mut duplicates) = (Vec::with_capacity(self.records.len()), Vec::new());
        let mut taken = self.taken.take().map(Vec::into_iter);
        let mut kept_taken = taken.as_ref().map(|_| Vec::new());
        for record in std::mem::take(&mut self.records) {
            let origin = taken.as_mut().and_then(Iterator::next);
            while taken_positions.next_if_eq(&position).is_some() {
                position += 1;
            }
            if values.add(&record.reading).is_ok() {
                kept.push(record);
                if let Some(kept_taken) = &mut kept_taken {
                    kept_taken.extend(origin);
                }
            } else {
                let Reading { device, metric, .. } = &record.reading;
                let (device, metric) = (device.to_string(), metric.to_string());
                let reason = Reason::Duplicate { device, metric: metric.clone() };
                duplicates.push(reason.in_record(position, &metric));
            }
            position += 1;
        }
        self.records = kept;
        self.taken = kept_taken;
        self.refused.append(&mut duplicates);
        self.refused.sort_by_key(|refused| refused.index);
    }
}

/// What became of a payload's values.
pub(crate) struct Finished {
    pub(crate) records: Vec<Record>,
    pub(crate) refused: Vec<BadRecord>,
    pub(crate) unmeasured: usize,
    /// What the records became of, if that was asked for: addresses of values, or numbers of metrics.
    pub(crate) taken: Vec<usize>,
}

/// An id of one reading, so that the readings of a payload with one id have different ones.
fn derived_id(id: &str, device: &str, metric: &str) -> String {
    let mut name = Vec::with_capacity(id.len() + device.len() + metric.len() + 16);
    for part in [id, device, metric] {
        // The length makes the encoding unambiguous: ("ab", "c") differs from ("a", "bc").
        name.extend((part.len() as u64).to_be_bytes());
        name.extend(part.as_bytes());
    }
    Uuid::new_v5(&NAMESPACE, &name).to_string()
}

fn has_duplicate(records: &[Record]) -> bool {
    fn key(record: &Record) -> (Timestamp, &str, &str) {
        (record.reading.time, &record.reading.metric, &record.reading.device)
    }
    if records.len() <= FEW {
        return records
            .iter()
            .enumerate()
            .any(|(at, record)| records[..at].iter().any(|one| key(one) == key(record)));
    }
    let mut keys = HashSet::with_capacity(records.len());
    !records.iter().all(|record| keys.insert(key(record)))
}
