//! SenML in its JSON form (RFC 8428): records, base fields and their resolution.
//!
//! A pack is resolved record by record. [`Base`] holds the base fields that earlier records set, and resolves the
//! fields of a record into a [`Resolved`] one with full name, absolute time, and base value and sum added.
//! [`name::split`] splits its name into device and metric.
//!
//! Choices where the RFC leaves room:
//! - A record with only base fields (RFC 8428 §5.1.7) sets them and has no value.
//! - A record with regular fields but neither value nor sum has the current base value or base sum (§4.5.4: the
//!   missing one counts as zero). Without a base value or sum it is refused.
//! - All records of a pack must have the same version (§4.4), 10 by default. A higher one is refused.
//! - Upper-case `E` in a number is accepted, although §5 forbids writing it.

use std::borrow::Cow;

use super::fault::{BadField, Fault};
use super::timestamp::Timestamp;
use crate::{quoted, quoted::shown_number};

pub mod name;
mod record;
pub use record::{Fields, Resolved, Value};

/// The SenML version of RFC 8428, the highest that is supported.
pub const VERSION: u64 = 10;

/// The maximum size of a full name, in bytes. The RFC sets no limit. Each record copies and checks its full name,
/// so without a limit a long base name would cost its length once per record.
pub const LONGEST_NAME: usize = 1024;

/// Times below this value are relative to now (RFC 8428 §4.5.3): 2^28 seconds.
pub const RELATIVE_BELOW: f64 = 268_435_456.0;

/// The base fields that apply to the next record of a pack.
#[derive(Debug, Default)]
pub struct Base {
    name: String,
    unit: Option<String>,
    time: f64,
    value: Option<f64>,
    sum: Option<f64>,
    version: Option<u64>,
    /// The full name of the current record; a field to reuse its allocation.
    full_name: String,
}

impl Base {
    /// Applies the record's base fields, then resolves its regular fields. `None` if the record has only base
    /// fields.
    ///
    /// # Errors
    /// The first violation of RFC 8428 or of a limit, with the field.
    pub fn resolve<'a>(
        &'a mut self,
        mut fields: Fields<'a>,
        now: Timestamp,
    ) -> Result<Option<Resolved<'a>>, BadField> {
        self.set(&fields)?;
        if fields.only_base() {
            return Ok(None);
        }
        let length = self.name.len() + fields.n.as_ref().map_or(0, |name| name.len());
        if length > LONGEST_NAME {
            let field = if fields.bn.is_some() || fields.n.is_none() { "bn" } else { "n" };
            let message = format!("base name and name have {length} bytes; {LONGEST_NAME} are allowed");
            return Err(Fault::OutOfRange.in_field(field, message));
        }
        self.full_name.clear();
        self.full_name.push_str(&self.name);
        self.full_name.push_str(fields.n.as_deref().unwrap_or_default());
        name::check(&self.full_name).map_err(|error| {
            let field = if fields.n.is_some() { "n" } else { "bn" };
            Fault::BadName.in_field(field, format!("{}: {error}", quoted(&self.full_name)))
        })?;
        let value = self.value_of(&mut fields)?;
        let sum = self.sum_of(&fields);
        if value.is_none() && sum.is_none() {
            return Err(Fault::MissingField.in_field("v", "one of v, vb, vs, vd or s is required"));
        }
        let seconds = self.time + fields.t.unwrap_or(0.0);
        let relative = seconds < RELATIVE_BELOW;
        let start = if relative { now } else { Timestamp::UNIX_EPOCH };
        let time = start.plus_seconds(seconds).map_err(|error| {
            let field = if fields.t.is_some() { "t" } else { "bt" };
            Fault::BadTime.in_field(field, format!("{}: {error}", shown_number(seconds)))
        })?;
        Ok(Some(Resolved {
            name: Cow::Borrowed(&self.full_name),
            unit: fields.u.or(self.unit.as_deref().map(Cow::Borrowed)),
            value,
            sum,
            time,
            relative,
            update_time: fields.ut,
        }))
    }

    /// Applies the base fields of a record, also if its version is refused: later records have them too.
    pub(crate) fn set(&mut self, fields: &Fields<'_>) -> Result<(), BadField> {
        if let Some(name) = &fields.bn {
            self.name.clear();
            self.name.push_str(name);
        }
        if let Some(unit) = &fields.bu {
            self.unit = Some(unit.to_string());
        }
        self.time = fields.bt.unwrap_or(self.time);
        self.value = fields.bv.or(self.value);
        self.sum = fields.bs.or(self.sum);
        let version = fields.bver.or(self.version).unwrap_or(VERSION);
        if version > VERSION || version == 0 {
            let message = format!("{version} is not a version from 1 to {VERSION}");
            return Err(Fault::UnsupportedVersion.in_field("bver", message));
        }
        if let Some(first) = self.version.filter(|first| *first != version) {
            let message = format!("{version} differs from {first}, the version of earlier records");
            return Err(Fault::UnsupportedVersion.in_field("bver", message));
        }
        self.version = Some(version);
        Ok(())
    }

    fn value_of<'a>(&self, fields: &mut Fields<'a>) -> Result<Option<Value<'a>>, BadField> {
        let mut given = [
            fields.v.map(Value::Number),
            fields.vb.map(Value::Bool),
            fields.vs.take().map(Value::Text),
            fields.vd.take().map(Value::Data),
        ]
        .into_iter()
        .flatten();
        let value = given.next();
        if given.next().is_some() {
            return Err(Fault::Duplicate.in_field("v", "only one of v, vb, vs and vd may be given"));
        }
        Ok(match value {
            Some(Value::Number(number)) => {
                Some(Value::Number(finite(self.value.unwrap_or(0.0) + number, "v")?))
            }
            Some(Value::Data(data)) if !is_base64url(&data) => {
                let message = format!("{}: not base64url without padding", quoted(&data));
                return Err(Fault::WrongType.in_field("vd", message));
            }
            // A missing value is the base value, unless the record has a sum: then the value is optional, and the
            // base value is meant for records with a value.
            None if fields.s.is_none() && !fields.null_value => self.value.map(Value::Number),
            other => other,
        })
    }

    /// The sum of a record. It has none if a part of it is invalid: the valid part alone would be a wrong sum.
    fn sum_of(&self, fields: &Fields<'_>) -> Option<Result<f64, BadField>> {
        let (base, own) = match (self.sum, fields.s) {
            (None, None) => return None,
            (_, None) if fields.null_sum => return None,
            (base, own) => (base.unwrap_or(0.0), own.unwrap_or(0.0)),
        };
        let not_finite = |field: &'static str| Fault::NotFinite.in_field(field, "not a finite number");
        Some(if own.is_nan() {
            Err(not_finite("s"))
        } else if !base.is_nan() {
            finite(base + own, "s")
        } else if fields.bs.is_some() {
            Err(not_finite("bs"))
        } else {
            Err(earlier_is_invalid("bs"))
        })
    }
}

/// The error of a record to which an invalid base field of an earlier record applies.
pub(crate) fn earlier_is_invalid(field: &'static str) -> BadField {
    Fault::MissingField.in_field(field, "the base field of an earlier record is invalid")
}

fn finite(total: f64, field: &'static str) -> Result<f64, BadField> {
    if total.is_finite() {
        return Ok(total);
    }
    Err(Fault::OutOfRange.in_field(field, "exceeds the range of a double after adding its base field"))
}

fn is_base64url(text: &str) -> bool {
    text.len() % 4 != 1
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

#[cfg(test)]
mod tests;
