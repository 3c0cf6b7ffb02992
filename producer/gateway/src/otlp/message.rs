//! The messages of OTLP's metrics, with the fields that readings are made of. Other fields are skipped.
//!
//! Written by hand, so that the build needs no `protoc`, and decoding allocates nothing for the other fields.

use garenne_protocol::list::objects;
use serde::Deserialize;

use super::scalar::{
    boolean, flags, integer, nanoseconds, number, optional_boolean, optional_text, temporality, text,
};

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "objects")]
    pub(super) resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "objects")]
    pub(super) scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "objects")]
    pub(super) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub(super) struct ScopeMetrics {
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "objects")]
    pub(super) metrics: Vec<Metric>,
}

/// The kinds of data are boxed, because a metric has only one of them.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Metric {
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "text")]
    pub(super) name: String,
    #[prost(string, tag = "3")]
    #[serde(deserialize_with = "text")]
    pub(super) unit: String,
    #[prost(message, optional, boxed, tag = "5")]
    pub(super) gauge: Option<Box<Gauge>>,
    #[prost(message, optional, boxed, tag = "7")]
    pub(super) sum: Option<Box<Sum>>,
    #[prost(message, optional, boxed, tag = "9")]
    pub(super) histogram: Option<Box<Distribution>>,
    #[prost(message, optional, boxed, tag = "10")]
    pub(super) exponential_histogram: Option<Box<Distribution>>,
    #[prost(message, optional, boxed, tag = "11")]
    pub(super) summary: Option<Box<Distribution>>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Gauge {
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "objects")]
    pub(super) data_points: Vec<NumberPoint>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Sum {
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "objects")]
    pub(super) data_points: Vec<NumberPoint>,
    #[prost(int32, tag = "2")]
    #[serde(deserialize_with = "temporality")]
    pub(super) aggregation_temporality: i32,
    #[prost(bool, tag = "3")]
    #[serde(deserialize_with = "boolean")]
    pub(super) is_monotonic: bool,
}

/// Data whose points have no single value. They are only counted.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Distribution {
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "objects")]
    pub(super) data_points: Vec<SkippedPoint>,
}

#[derive(Clone, Copy, PartialEq, prost::Message, Deserialize)]
pub(super) struct SkippedPoint {}

/// The bit of `flags` that says that there was no measurement.
pub(super) const NO_RECORDED_VALUE: u32 = 1;

/// In JSON, a field of another type costs only its data point.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NumberPoint {
    #[prost(message, repeated, tag = "7")]
    #[serde(deserialize_with = "objects")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "2")]
    #[serde(deserialize_with = "nanoseconds")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    #[serde(deserialize_with = "nanoseconds")]
    pub(super) time_unix_nano: u64,
    #[prost(double, optional, tag = "4")]
    #[serde(deserialize_with = "number")]
    pub(super) as_double: Option<f64>,
    #[prost(sfixed64, optional, tag = "6")]
    #[serde(deserialize_with = "integer")]
    pub(super) as_int: Option<i64>,
    #[prost(uint32, tag = "8")]
    #[serde(deserialize_with = "flags")]
    pub(super) flags: u32,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "text")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(from = "JsonValue")]
pub(super) struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 2, 3, 4")]
    pub(super) value: Option<Value>,
}

/// Arrays, maps and bytes are skipped.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Double(f64),
}

/// The JSON form of [`AnyValue`].
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct JsonValue {
    #[serde(deserialize_with = "optional_text")]
    string_value: Option<String>,
    #[serde(deserialize_with = "optional_boolean")]
    bool_value: Option<bool>,
    #[serde(deserialize_with = "integer")]
    int_value: Option<i64>,
    #[serde(deserialize_with = "number")]
    double_value: Option<f64>,
}

impl From<JsonValue> for AnyValue {
    fn from(json: JsonValue) -> Self {
        let JsonValue { string_value, bool_value, int_value, double_value } = json;
        let value = string_value
            .map(Value::Text)
            .or(bool_value.map(Value::Bool))
            .or(int_value.map(Value::Int))
            .or(double_value.map(Value::Double));
        Self { value }
    }
}

impl KeyValue {
    /// The value as a text; `None` for an array, a map, bytes, or no value.
    pub(super) fn text(&self) -> Option<String> {
        Some(match self.value.as_ref()?.value.as_ref()? {
            Value::Text(text) => text.clone(),
            Value::Bool(flag) => flag.to_string(),
            Value::Int(number) => number.to_string(),
            Value::Double(number) => number.to_string(),
        })
    }
}

impl Metric {
    /// The points with a single value.
    fn number_points(&self) -> usize {
        let gauge = self.gauge.as_ref().map_or(0, |gauge| gauge.data_points.len());
        gauge + self.sum.as_ref().map_or(0, |sum| sum.data_points.len())
    }
}

impl ExportRequest {
    pub(super) fn number_points(&self) -> usize {
        let scopes = self.resource_metrics.iter().flat_map(|resource| &resource.scope_metrics);
        scopes.flat_map(|scope| &scope.metrics).map(Metric::number_points).sum()
    }
}
