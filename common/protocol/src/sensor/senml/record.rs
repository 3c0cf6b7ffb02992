//! A SenML record, as sent and as resolved.

use std::borrow::Cow;

use serde::{Serialize, Serializer};

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
    /// Whether the record has base fields and no others.
    pub(super) fn only_base(&self) -> bool {
        let is_given = |text: &&Option<Cow<'_, str>>| text.is_some();
        let has_base = [&self.bn, &self.bu].iter().any(is_given)
            || [self.bt, self.bv, self.bs].iter().any(Option::is_some)
            || self.bver.is_some();
        let has_regular = [&self.n, &self.u, &self.vs, &self.vd].iter().any(is_given)
            || [self.v, self.s, self.t, self.ut].iter().any(Option::is_some)
            || self.vb.is_some();
        has_base && !has_regular
    }
}

/// The value of a record.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Value<'a> {
    /// `v` with the base value added.
    #[serde(rename = "v")]
    Number(f64),
    /// `vb`.
    #[serde(rename = "vb")]
    Bool(bool),
    /// `vs`.
    #[serde(rename = "vs")]
    Text(Cow<'a, str>),
    /// `vd`: base64url without padding, validated but not decoded.
    #[serde(rename = "vd")]
    Data(Cow<'a, str>),
}

/// A resolved record (RFC 8428 §4.6): full name, absolute time, no base fields. Serializes to the RFC's JSON form.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Resolved<'a> {
    /// The full name: base name and name, concatenated and validated.
    #[serde(rename = "n")]
    pub name: Cow<'a, str>,
    /// The record's unit, else the base unit. Not looked up in the registry.
    #[serde(rename = "u", skip_serializing_if = "Option::is_none")]
    pub unit: Option<Cow<'a, str>>,
    /// The value; absent if the record has only a sum.
    #[serde(flatten)]
    pub value: Option<Value<'a>>,
    /// `s` with the base sum added.
    #[serde(rename = "s", skip_serializing_if = "Option::is_none")]
    pub sum: Option<f64>,
    /// The time of the measurement.
    #[serde(rename = "t", serialize_with = "unix_seconds")]
    pub time: Timestamp,
    /// Whether the time was given relative to now.
    #[serde(skip)]
    pub relative: bool,
    /// `ut`: the maximum time until the sensor's next record, in seconds.
    #[serde(rename = "ut", skip_serializing_if = "Option::is_none")]
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

fn unix_seconds<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_unix_seconds())
}
