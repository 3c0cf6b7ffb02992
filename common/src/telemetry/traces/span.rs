//! One recorded span.

use std::borrow::Cow;

use garenne_protocol::task::TraceContext;
use opentelemetry::{
    KeyValue, Value,
    trace::{Span as _, Status},
};
use opentelemetry_sdk::trace::Span as SdkSpan;

use super::to_span_context;

/// A running span. It ends when it is dropped.
#[derive(Debug)]
pub struct Span(SdkSpan);

impl Span {
    pub(super) fn new(span: SdkSpan) -> Self {
        Self(span)
    }

    /// Sets its name.
    pub fn name(&mut self, name: impl Into<Cow<'static, str>>) {
        self.0.update_name(name);
    }

    /// Sets an attribute; use the name of OpenTelemetry's semantic conventions if there is one.
    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        self.0.set_attribute(KeyValue::new(name, value));
    }

    /// Links it to a span of another trace.
    pub fn link(&mut self, context: &TraceContext) {
        self.0.add_link(to_span_context(context), Vec::new());
    }

    /// Sets its status to an error.
    pub fn failed(&mut self, why: impl Into<Cow<'static, str>>) {
        self.0.set_status(Status::error(why));
    }

    /// Ends it now.
    pub fn end(mut self) {
        self.0.end();
    }
}
