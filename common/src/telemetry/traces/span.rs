//! One span that is kept.

use std::{borrow::Cow, time::SystemTime};

use garenne_protocol::task::TraceContext;
use opentelemetry::{
    KeyValue, Value,
    trace::{Span as _, Status},
};
use opentelemetry_sdk::trace::Span as SdkSpan;

use super::read;

/// A span under way. Dropped, it ends.
#[derive(Debug)]
pub struct Span(SdkSpan);

impl Span {
    pub(super) fn new(span: SdkSpan) -> Self {
        Self(span)
    }

    /// Names it.
    pub fn name(&mut self, name: impl Into<Cow<'static, str>>) {
        self.0.update_name(name);
    }

    /// Says something of it, by a name of OpenTelemetry's semantic conventions where there is one.
    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        self.0.set_attribute(KeyValue::new(name, value));
    }

    /// Notes another trace that it works for.
    pub fn link(&mut self, context: &TraceContext) {
        self.0.add_link(read(context), Vec::new());
    }

    /// Marks it as failed.
    pub fn failed(&mut self, why: impl Into<Cow<'static, str>>) {
        self.0.set_status(Status::error(why));
    }

    /// Ends it now.
    pub fn end(mut self) {
        self.0.end();
    }

    /// Ends it at another time than now.
    pub fn end_at(mut self, at: SystemTime) {
        self.0.end_with_timestamp(at);
    }
}
