//! Parses the field `counter` of a plain reading.

use serde::de::MapAccess;

use super::field_name::{FieldName, field_name};
use super::scalar::{ReadEntries, Refused, Scalar};
use crate::sensor::counter::{MAX_PER_HOUR, WRAPS_AT};
use crate::sensor::fault::{BadField, Fault};
use crate::sensor::{SentCounter, Timestamp};

/// The fields of a counter as they were sent.
#[derive(Default)]
pub(super) struct CounterFields {
    wraps_at: Option<f64>,
    max_per_hour: Option<f64>,
    start: Option<Timestamp>,
    /// The first field with an invalid value.
    problem: Option<BadField>,
}

impl CounterFields {
    /// What `value`, whose fields these are, says of a counter. `true` is a counter without fields; `false` and `null` are
    /// none.
    pub(super) fn counter(self, value: &Scalar<'_>) -> Result<Option<SentCounter>, BadField> {
        let Self { wraps_at, max_per_hour, start, problem } = self;
        match value {
            Scalar::Object => {}
            Scalar::Bool(true) => return Ok(Some(SentCounter::default())),
            Scalar::Bool(false) | Scalar::Null => return Ok(None),
            other => {
                let message = format!("{other} is not true, false or an object");
                return Err(Fault::WrongType.in_field("counter", message));
            }
        }
        problem.map_or(Ok(()), Err)?;
        let sent = SentCounter { wraps_at, max_per_hour, start };
        sent.counter().check().map(|()| Some(sent))
    }

    fn set(&mut self, name: &str, value: Scalar<'_>) -> Result<(), Refused> {
        match name {
            "wraps_at" => value.store(&mut self.wraps_at, Scalar::number),
            "max_per_hour" => value.store(&mut self.max_per_hour, Scalar::number),
            "start" => value.store(&mut self.start, Scalar::time),
            _ => {
                let message = "unknown field; a counter has only wraps_at, max_per_hour, start";
                Err((Fault::UnknownField, message.to_owned()))
            }
        }
    }
}

impl<'de> ReadEntries<'de> for &mut CounterFields {
    fn read<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some(FieldName(name)) = entries.next_key()? {
            let Err((code, message)) = self.set(&name, entries.next_value()?) else { continue };
            let field = match &*name {
                "wraps_at" => WRAPS_AT.to_owned(),
                "max_per_hour" => MAX_PER_HOUR.to_owned(),
                _ => field_name(&format!("counter.{name}")),
            };
            self.problem.get_or_insert_with(|| code.in_field(field, message));
        }
        Ok(())
    }
}
