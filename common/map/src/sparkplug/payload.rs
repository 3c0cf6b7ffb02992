//! The messages of Sparkplug B, as far as readings come from them.
//!
//! From `sparkplug_b.proto`, version 3.0.0 of the specification. The fields that are left out are skipped.

use std::collections::HashSet;

use garenne_protocol::sensor::Timestamp;
use prost::{
    Message as _,
    encoding::{DecodeContext, decode_key, skip_field},
};

use crate::{document::Value, limits::MAX_VALUES, unmapped::Reason};

/// The number of the field `metrics`.
const METRICS: u32 = 2;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Payload {
    /// Milliseconds since 1970.
    #[prost(uint64, optional, tag = "1")]
    pub(super) timestamp: Option<u64>,
    #[prost(message, repeated, tag = "2")]
    pub(super) metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Metric {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(uint64, optional, tag = "2")]
    pub(super) alias: Option<u64>,
    /// Milliseconds since 1970.
    #[prost(uint64, optional, tag = "3")]
    pub(super) timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "4")]
    pub(super) datatype: Option<u32>,
    #[prost(bool, optional, tag = "7")]
    pub(super) is_null: Option<bool>,
    #[prost(oneof = "MetricValue", tags = "10, 11, 12, 13, 14, 15")]
    pub(super) value: Option<MetricValue>,
}

/// The values that can be numbers. Bytes, data sets and templates cannot.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum MetricValue {
    /// Int8 to Int32, in two's complement, and UInt8 to UInt32.
    #[prost(uint32, tag = "10")]
    Int(u32),
    /// Int64, in two's complement, UInt64, and DateTime.
    #[prost(uint64, tag = "11")]
    Long(u64),
    #[prost(float, tag = "12")]
    Float(f32),
    #[prost(double, tag = "13")]
    Double(f64),
    #[prost(bool, tag = "14")]
    Boolean(bool),
    #[prost(string, tag = "15")]
    Text(String),
}

/// The data types whose encoding depends on them.
mod datatype {
    pub(super) const INT8: u32 = 1;
    pub(super) const INT16: u32 = 2;
    pub(super) const INT32: u32 = 3;
    pub(super) const INT64: u32 = 4;
    pub(super) const DATE_TIME: u32 = 13;
}

impl Payload {
    /// Decodes a payload of at most [`MAX_VALUES`] metrics.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Reason> {
        let malformed = |error| Reason::Malformed(format!("not a Sparkplug B payload: {error}"));
        // Counted first, because a metric of two bytes needs a hundred in memory.
        if count_metrics(bytes).map_err(malformed)? > MAX_VALUES {
            return Err(Reason::TooManyValues);
        }
        Self::decode(bytes).map_err(malformed)
    }

    /// The time of sending.
    pub(super) fn sent_at(&self) -> Result<Option<Timestamp>, Reason> {
        time(self.timestamp)
    }
}

fn count_metrics(mut bytes: &[u8]) -> Result<usize, prost::DecodeError> {
    let mut count = 0;
    while !bytes.is_empty() {
        let (tag, wire_type) = decode_key(&mut bytes)?;
        skip_field(wire_type, tag, &mut bytes, DecodeContext::default())?;
        count += usize::from(tag == METRICS);
    }
    Ok(count)
}

/// The payload with null in place of the values of these metrics. Names and aliases remain, because a birth that is mapped
/// again announces them, and the number of the session, which a death is compared with.
pub(crate) fn remainder(payload: &[u8], taken: &[usize]) -> Vec<u8> {
    without_values(payload, taken).unwrap_or_else(|_| payload.to_vec())
}

fn without_values(mut payload: &[u8], taken: &[usize]) -> Result<Vec<u8>, prost::DecodeError> {
    let taken: HashSet<usize> = taken.iter().copied().collect();
    let (mut rest, mut number) = (Vec::with_capacity(payload.len()), 0);
    while !payload.is_empty() {
        let start = payload;
        let (tag, wire_type) = decode_key(&mut payload)?;
        skip_field(wire_type, tag, &mut payload, DecodeContext::default())?;
        let field = &start[..start.len() - payload.len()];
        if tag == METRICS && taken.contains(&number) {
            let mut only = Payload::decode(field)?;
            for metric in only.metrics.iter_mut().filter(|it| it.given_name() != Some(super::BD_SEQ)) {
                (metric.value, metric.is_null) = (None, Some(true));
            }
            only.encode(&mut rest).expect("a vector grows");
        } else {
            rest.extend_from_slice(field);
        }
        number += usize::from(tag == METRICS);
    }
    Ok(rest)
}

impl Metric {
    /// The name, unless it is empty.
    pub(super) fn given_name(&self) -> Option<&str> {
        self.name.as_deref().filter(|name| !name.is_empty())
    }

    /// The value. `None` if it is null, a time, not finite, or of a type that is no number.
    pub(super) fn number(&self, datatype: Option<u32>) -> Option<Value<'_>> {
        if self.is_null == Some(true) {
            return None;
        }
        let finite = |number: f64| number.is_finite().then_some(Value::Number(number));
        let datatype = datatype.unwrap_or_default();
        match self.value.as_ref()? {
            MetricValue::Int(bits) => Some(Value::Integer(match datatype {
                datatype::INT8 => i64::from(*bits as i8),
                datatype::INT16 => i64::from(*bits as i16),
                datatype::INT32 => i64::from(*bits as i32),
                _ => i64::from(*bits),
            })),
            MetricValue::Long(_) if datatype == datatype::DATE_TIME => None,
            MetricValue::Long(bits) if datatype == datatype::INT64 => Some(Value::Integer(*bits as i64)),
            MetricValue::Long(bits) => {
                Some(i64::try_from(*bits).map_or(Value::Number(*bits as f64), Value::Integer))
            }
            MetricValue::Float(number) => finite(f64::from(*number)),
            MetricValue::Double(number) => finite(*number),
            MetricValue::Boolean(flag) => Some(Value::Bool(*flag)),
            MetricValue::Text(text) => Some(Value::Text(text.as_str().into())),
        }
    }
}

/// A time in milliseconds since 1970, until the year 9999.
pub(super) fn time(millis: Option<u64>) -> Result<Option<Timestamp>, Reason> {
    let Some(millis) = millis else { return Ok(None) };
    let micros = i64::try_from(millis).ok().and_then(|millis| millis.checked_mul(1_000));
    let time = micros.and_then(|micros| Timestamp::from_micros(micros).ok());
    time.map(Some).ok_or_else(|| Reason::BadTime(format!("{millis} ms is after the year 9999")))
}
