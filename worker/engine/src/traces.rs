//! Spans, as handlers record them beside those of the worker. They are exported with the feature `otlp` and the settings of
//! [`Otlp`](crate::config::Otlp); otherwise none is made.

pub use garenne_common::telemetry::{
    Traces,
    traces::{Begun, Span, SpanKind},
};
