//! Parses one record: a plain reading or a SenML record. The two have no field name in common, so one pass can
//! parse either.

use std::borrow::Cow;

use serde::de::MapAccess;

use super::counter::CounterFields;
use super::field_name::{FieldName, field_name};
use super::scalar::{AnyValue, ReadEntries, Refused, Scalar};
use crate::sensor::fault::{BadField, Fault};
use crate::sensor::senml::Fields;
use crate::sensor::{SentCounter, Timestamp};

/// The fields of a plain reading as they were sent.
#[derive(Default)]
pub(super) struct Plain<'a> {
    pub(super) device: Option<Cow<'a, str>>,
    pub(super) metric: Option<Cow<'a, str>>,
    pub(super) value: Option<f64>,
    pub(super) unit: Option<Cow<'a, str>>,
    pub(super) counter: Option<SentCounter>,
    pub(super) time: Option<Timestamp>,
    pub(super) id: Option<Cow<'a, str>>,
}

/// All field names of a plain reading.
const PLAIN_FIELDS: [&str; 7] = ["device", "metric", "value", "unit", "counter", "time", "id"];

/// The fields of a record of either form.
#[derive(Default)]
pub(super) struct Object<'a> {
    pub(super) plain: Plain<'a>,
    pub(super) senml: Fields<'a>,
    /// The first field with an invalid value.
    pub(super) problem: Option<Box<BadField>>,
    /// Base fields with an invalid value.
    pub(super) broken_base: Vec<&'static str>,
    /// A field without a use for a reading that is not a finite number. It is left out.
    pub(super) note: Option<Box<BadField>>,
    /// The first field that neither form has. SenML ignores it, a plain reading is refused.
    unknown: Option<String>,
    has_plain: bool,
    has_senml: bool,
}

impl<'a> Object<'a> {
    /// `Some(true)` for a plain reading, `Some(false)` for SenML, `None` for neither.
    pub(super) fn is_plain(&self) -> Option<bool> {
        if self.has_plain { Some(true) } else { self.has_senml.then_some(false) }
    }

    /// Refuses fields other than those of a plain reading. If they were ignored, a misspelt `time` would silently
    /// become the current time.
    pub(super) fn only_plain(&self) -> Result<(), BadField> {
        let Some(unknown) = &self.unknown else {
            if !self.has_senml {
                return Ok(());
            }
            return Err(Fault::UnknownField.in_field("body", "mixes fields of a plain reading and of SenML"));
        };
        // The edit distance takes time in proportion to both lengths, and a name can be as long as the body.
        let is_close = |field: &&&str| unknown.len() <= 60 && strsim::osa_distance(unknown, field) <= 2;
        let hint = PLAIN_FIELDS.iter().find(is_close).map(|field| format!("; did you mean {field}?"));
        let (fields, hint) = (PLAIN_FIELDS.join(", "), hint.unwrap_or_default());
        let message = format!("unknown field; a plain reading has only {fields}{hint}");
        Err(Fault::UnknownField.in_field(field_name(unknown), message))
    }

    fn set(&mut self, name: &str, value: Scalar<'a>, senml_only: bool) -> Result<(), Refused> {
        let Self { plain, senml, .. } = self;
        let is_plain = !senml_only && PLAIN_FIELDS.contains(&name);
        let set = match name {
            "device" if is_plain => value.store(&mut plain.device, Scalar::text),
            "metric" if is_plain => value.store(&mut plain.metric, Scalar::text),
            "value" if is_plain => value.store(&mut plain.value, Scalar::number),
            "unit" if is_plain => value.store(&mut plain.unit, Scalar::text),
            "time" if is_plain => value.store(&mut plain.time, Scalar::time),
            "id" if is_plain => value.store(&mut plain.id, Scalar::text),
            "bn" => value.store(&mut senml.bn, Scalar::text),
            "bt" => value.store(&mut senml.bt, Scalar::number),
            "bu" => value.store(&mut senml.bu, Scalar::text),
            "bv" => value.store(&mut senml.bv, Scalar::number),
            "bs" => value.store(&mut senml.bs, Scalar::number),
            "bver" => value.store(&mut senml.bver, Scalar::whole_number),
            "n" => value.store(&mut senml.n, Scalar::text),
            "u" => value.store(&mut senml.u, Scalar::text),
            "v" => value.store(&mut senml.v, Scalar::number),
            "vs" => value.store(&mut senml.vs, Scalar::text),
            "vb" => value.store(&mut senml.vb, Scalar::bool),
            "vd" => value.store(&mut senml.vd, Scalar::text),
            "s" => value.store(&mut senml.s, Scalar::number),
            "t" => value.store(&mut senml.t, Scalar::number),
            "ut" => value.store(&mut senml.ut, Scalar::number),
            _ if name.ends_with('_') => {
                let message = "unknown field that must be understood (RFC 8428, 4.4)".to_owned();
                Err((Fault::UnknownField, message))
            }
            _ => {
                self.unknown.get_or_insert_with(|| name.to_owned());
                return Ok(());
            }
        };
        self.has_plain |= is_plain;
        self.has_senml |= !is_plain;
        set
    }

    /// Stores the field `counter`, or why it cannot be.
    fn store_counter(&mut self, value: &Scalar<'a>, fields: CounterFields) {
        self.has_plain = true;
        let counter = fields.counter(value).and_then(|counter| match counter {
            Some(_) if self.plain.counter.is_some() => {
                Err(Fault::Duplicate.in_field("counter", "given twice"))
            }
            counter => Ok(counter),
        });
        match counter {
            Ok(counter) => self.plain.counter = counter.or(self.plain.counter),
            Err(problem) => {
                self.problem.get_or_insert_with(|| Box::new(problem));
            }
        }
    }

    /// Stores a field, or why it cannot be. The fields after it are read, because base fields apply to later records too.
    fn store(&mut self, name: &str, value: Scalar<'a>, senml_only: bool) {
        if matches!(value, Scalar::Null) {
            self.senml.null_value |= matches!(name, "v" | "vb" | "vs" | "vd");
            self.senml.null_sum |= name == "s";
        }
        let Err((code, message)) = self.set(name, value, senml_only) else { return };
        let problem = Box::new(code.in_field(field_name(name), message));
        let is_not_finite = code == Fault::NotFinite;
        match name {
            "bs" => self.senml.bs = Some(f64::NAN),
            "s" if is_not_finite => self.senml.s = Some(f64::NAN),
            "ut" if is_not_finite => {
                self.note = Some(problem);
                return;
            }
            _ => {}
        }
        if is_not_finite && matches!(name, "s" | "bs") {
            return;
        }
        self.broken_base.extend(SPOILING.into_iter().find(|base| *base == name));
        self.problem.get_or_insert(problem);
    }
}

/// Base fields without which the values of later records would be those of another series, unit or time.
const SPOILING: [&str; 4] = ["bn", "bt", "bu", "bv"];

/// Parses a record into `object`.
pub(super) struct RecordReader<'o, 'de> {
    /// Whether fields of plain readings are ignored as unknown.
    pub(super) senml_only: bool,
    pub(super) object: &'o mut Object<'de>,
}

impl<'de> ReadEntries<'de> for RecordReader<'_, 'de> {
    fn read<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Self { senml_only, object } = self;
        while let Some(FieldName(name)) = entries.next_key()? {
            if name == "counter" && !senml_only {
                let mut fields = CounterFields::default();
                let value = entries.next_value_seed(AnyValue(&mut fields))?;
                object.store_counter(&value, fields);
            } else {
                object.store(&name, entries.next_value()?, senml_only);
            }
        }
        Ok(())
    }
}
