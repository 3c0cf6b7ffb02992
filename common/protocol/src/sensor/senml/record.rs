//! A SenML record, as sent and as resolved.

use std::borrow::Cow;

use crate::sensor::{fault::BadField, timestamp::Timestamp};

/// The fields of a record as sent, named by their labels in RFC 8428 §4.3.
#[derive(Debug, Clone, Default, PartialEq)]
#[expect(missing_docs, reason = "the labels are the RFC's own, listed with their meaning in its table 1")]
pub struct Fields<'a> {
    pub bn: Option<Cow<'a, str>>,
    pub bt: Option<f64>,
    pub bu: Option<Cow<'a, str>>,
    pub bv: Option<f64>,
    /// NaN if it is invalid.
    pub bs: Option<f64>,
    pub bver: Option<u64>,
    pub n: Option<Cow<'a, str>>,
    pub u: Option<Cow<'a, str>>,
    pub v: Option<f64>,
    pub vs: Option<Cow<'a, str>>,
    pub vb: Option<bool>,
    pub vd: Option<Cow<'a, str>>,
    /// NaN if it is not finite.
    pub s: Option<f64>,
    pub t: Option<f64>,
    pub ut: Option<f64>,
    /// Whether `v`, `vb`, `vs` or `vd` is null: then the base value does not take its place.
    pub null_value: bool,
    /// Whether `s` is null: then the record has no sum.
    pub null_sum: bool,
}

impl Fields<'_> {
    /// Whether the record has base fields and no others.
    pub(crate) fn only_base(&self) -> bool {
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
#[derive(Debug, Clone)]
pub struct Resolved<'a> {
    /// The full name: base name and name, concatenated and validated.
    pub name: Cow<'a, str>,
    /// The record's unit, else the base unit. Not looked up in the registry.
    pub unit: Option<Cow<'a, str>>,
    /// The value; absent if the record has only a sum.
    pub value: Option<Value<'a>>,
    /// `s` with the base sum added, or why there is no sum. It does not take the value with it.
    pub sum: Option<Result<f64, BadField>>,
    /// The time of the measurement.
    pub time: Timestamp,
    /// Whether the time was given relative to now.
    pub relative: bool,
    /// `ut`: the maximum time until the sensor's next record, in seconds.
    pub update_time: Option<f64>,
}
