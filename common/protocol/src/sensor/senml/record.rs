//! A SenML record, as sent and as resolved.

use std::borrow::Cow;

use serde::Serialize;

use crate::sensor::timestamp::Timestamp;

/// The fields of a record as sent, named by their labels in RFC 8428 §4.3.
#[derive(Debug, Clone, Default, PartialEq)]
#[expect(missing_docs, reason = "the labels are the RFC's own, listed with their meaning in its table 1")]
pub struct Fields<'a> {
    pub bn: Option<Cow<'a, str>>,
    pub bt: Option<f64>,
    pub bu: Option<Cow<'a, str>>,
    pub bv: Option<f64>,
    pub bs: Option<f64>,
    pub bver: Option<u64>,
    pub n: Option<Cow<'a, str>>,
    pub u: Option<Cow<'a, str>>,
    pub v: Option<f64>,
    pub vs: Option<Cow<'a, str>>,
    pub vb: Option<bool>,
    pub vd: Option<Cow<'a, str>>,
    pub s: Option<f64>,
    pub t: Option<f64>,
    pub ut: Option<f64>,
}

impl Fields<'_> {
    pub(crate) fn has_base(&self) -> bool {
        self.bn.is_some()
            || self.bt.is_some()
            || self.bu.is_some()
            || self.bv.is_some()
            || self.bs.is_some()
            || self.bver.is_some()
    }

    pub(crate) fn has_regular(&self) -> bool {
        self.n.is_some()
            || self.u.is_some()
            || self.v.is_some()
            || self.vs.is_some()
            || self.vb.is_some()
            || self.vd.is_some()
            || self.s.is_some()
            || self.t.is_some()
            || self.ut.is_some()
    }
}

/// The value of a record.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// `v` with the base value added.
    Number(f64),
    /// `vb`.
    Bool(bool),
    /// `vs`.
    Text(Cow<'a, str>),
    /// `vd`: base64url without padding, validated but not decoded.
    Data(Cow<'a, str>),
}

/// A resolved record (RFC 8428 §4.6): full name, absolute time, no base fields.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved<'a> {
    /// The full name: base name and name, concatenated and validated.
    pub name: Cow<'a, str>,
    /// The record's unit, else the base unit. Not looked up in the registry.
    pub unit: Option<Cow<'a, str>>,
    /// The value; absent if the record has only a sum.
    pub value: Option<Value<'a>>,
    /// `s` with the base sum added.
    pub sum: Option<f64>,
    /// The time of the measurement.
    pub time: Timestamp,
    /// Whether the time was given relative to now.
    pub relative: bool,
    /// `ut`: the maximum time until the sensor's next record, in seconds.
    pub update_time: Option<f64>,
}

impl Resolved<'_> {
    /// The record with owned texts.
    pub fn into_owned(self) -> Resolved<'static> {
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        Resolved {
            name: owned(self.name),
            unit: self.unit.map(owned),
            value: self.value.map(|value| match value {
                Value::Number(number) => Value::Number(number),
                Value::Bool(flag) => Value::Bool(flag),
                Value::Text(text) => Value::Text(owned(text)),
                Value::Data(data) => Value::Data(owned(data)),
            }),
            ..self
        }
    }
}

/// Serializes to the JSON form of RFC 8428.
impl Serialize for Resolved<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("n", &self.name)?;
        if let Some(unit) = &self.unit {
            map.serialize_entry("u", unit)?;
        }
        map.serialize_entry("t", &self.time.as_unix_seconds())?;
        match &self.value {
            Some(Value::Number(number)) => map.serialize_entry("v", number)?,
            Some(Value::Bool(flag)) => map.serialize_entry("vb", flag)?,
            Some(Value::Text(text)) => map.serialize_entry("vs", text)?,
            Some(Value::Data(data)) => map.serialize_entry("vd", data)?,
            None => {}
        }
        if let Some(sum) = self.sum {
            map.serialize_entry("s", &sum)?;
        }
        if let Some(seconds) = self.update_time {
            map.serialize_entry("ut", &seconds)?;
        }
        map.end()
    }
}
