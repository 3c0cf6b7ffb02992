//! Collects the readings of a payload.

use std::{collections::HashSet, sync::Arc};

use garenne_protocol::sensor::{BadField, Fault, Limits, Reading, Record, Timestamp, parse::check_unit};
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
pub(crate) struct Origin {
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
    limits: &'l Limits,
    pub(crate) now: Timestamp,
    /// Is told of each value that becomes no reading, and why.
    skipped: &'l mut dyn FnMut(&str, &str),
    /// How often values were left out because nothing was measured.
    pub(crate) unmeasured: usize,
}

impl<'l> Readings<'l> {
    pub(crate) fn new(limits: &'l Limits, now: Timestamp, skipped: &'l mut dyn FnMut(&str, &str)) -> Self {
        Self { records: Vec::new(), limits, now, skipped, unmeasured: 0 }
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
    ///
    /// # Errors
    /// [`Reason::Invalid`], which guesses the unit that was probably meant.
    pub(crate) fn check_time(&self, time: Timestamp, given: Option<i64>) -> Result<(), Reason> {
        let Err(error) = self.limits.check_time("time", time, self.now) else { return Ok(()) };
        let mut error = error.in_record(self.records.len());
        if let Some(number) = given
            && !error.message.ends_with('?')
        {
            error.message += &self.limits.hint_for(number, None, self.now, |unit| unit.to_string());
        }
        Err(Reason::Invalid(error))
    }

    /// Adds a reading of a number.
    ///
    /// # Errors
    /// The reading is not valid, or there are too many.
    pub(crate) fn push(
        &mut self,
        origin: &Origin,
        plan: &ReadingPlan,
        units: &Units,
        scope: &Scope<'_, '_>,
        number: f64,
    ) -> Result<(), Reason> {
        if self.records.len() >= self.limits.records {
            return Err(Reason::TooManyReadings(self.limits.records));
        }
        let metric = plan.metric.text("metric", scope)?;
        let unit = plan.unit.unit(units, scope)?;
        check_unit("unit", unit, &metric).map_err(|error| self.invalid(error))?;
        let value = number * plan.scale + plan.offset;
        if !value.is_finite() {
            let message = format!("{number} is not finite after scale and offset");
            return Err(self.invalid(Fault::OutOfRange.in_field("value", message)));
        }
        let Origin { device, time, time_assumed, id } = origin;
        let id = id.as_ref().map(|id| derived_id(id, device, &metric));
        let reading = Reading { device: Arc::clone(device), metric, value, unit, time: *time };
        self.records.push(Record { reading, id, time_assumed: *time_assumed });
        Ok(())
    }

    fn invalid(&self, error: BadField) -> Reason {
        Reason::Invalid(error.in_record(self.records.len()))
    }

    /// The readings.
    ///
    /// # Errors
    /// Two of them have the same key, so that one would replace the other; or there is none, and `allow_empty` is
    /// false.
    pub(crate) fn finish(self, allow_empty: bool) -> Result<Vec<Record>, Reason> {
        if let Some(Reading { device, metric, .. }) = duplicate(&self.records) {
            return Err(Reason::Duplicate { device: device.to_string(), metric: metric.to_string() });
        }
        if self.records.is_empty() && !allow_empty { Err(Reason::NoValue) } else { Ok(self.records) }
    }
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

fn duplicate(records: &[Record]) -> Option<&Reading> {
    fn key(record: &Record) -> (Timestamp, &str, &str) {
        (record.reading.time, &record.reading.metric, &record.reading.device)
    }
    if records.len() <= FEW {
        let is_repeated =
            |(at, record): &(usize, &Record)| records[..*at].iter().any(|one| key(one) == key(record));
        return records.iter().enumerate().find(is_repeated).map(|(_, record)| &record.reading);
    }
    let mut keys = HashSet::with_capacity(records.len());
    records.iter().find(|record| !keys.insert(key(record))).map(|record| &record.reading)
}
