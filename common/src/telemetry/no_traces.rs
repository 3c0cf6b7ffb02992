//! Traces of a program that is built without the feature `otlp`: they are always off, and spans are not made.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime},
};

use garenne_protocol::task::TraceContext;

use super::Metrics;
pub use super::service::{LAST_EXPORT, Service};
use crate::config::{Invalid, Otlp};

/// Starts no spans.
#[derive(Clone, Debug, Default)]
pub struct Traces(());

/// The result of [`Traces::begin`].
#[derive(Debug)]
pub struct Begun {
    /// The parent's trace context, to pass on.
    pub context: Option<TraceContext>,
    /// Always `None`.
    pub span: Option<Span>,
}

/// The kinds of spans, as OpenTelemetry defines them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum SpanKind {
    Client,
    Server,
    Producer,
    Consumer,
    Internal,
}

/// A span, of which there is none.
#[derive(Debug)]
pub enum Span {}

/// A span ends when it is dropped, and callers drop one at its end.
impl Drop for Span {
    fn drop(&mut self) {}
}

impl Traces {
    /// # Errors
    /// None. [`Common::validate`](crate::config::Common::validate) refuses an endpoint.
    pub fn start(_: &Otlp, _: &Service, _: &Metrics) -> Result<Self, Invalid> {
        Ok(Self::default())
    }

    /// Always false.
    pub fn is_on(&self) -> bool {
        self.may_keep(None)
    }

    /// Always false.
    pub fn may_keep(&self, _: Option<&TraceContext>) -> bool {
        let Self(()) = self;
        false
    }

    /// Passes on the context of `parent`.
    pub fn begin(
        &self,
        parent: Option<&TraceContext>,
        kind: SpanKind,
        describe: impl FnOnce(&mut Span),
    ) -> Begun {
        self.begin_at(None, parent, kind, describe)
    }

    /// Passes on the context of `parent`.
    pub fn begin_at(
        &self,
        _: impl Into<Option<SystemTime>>,
        parent: Option<&TraceContext>,
        _: SpanKind,
        _: impl FnOnce(&mut Span),
    ) -> Begun {
        let Self(()) = self;
        Begun { context: parent.cloned(), span: None }
    }

    /// Does nothing.
    pub async fn close(&self, _: Duration) {
        let Self(()) = self;
    }
}

impl Span {
    /// Sets its name.
    pub fn name(&mut self, _: impl Into<Cow<'static, str>>) {
        match *self {}
    }

    /// Sets an attribute.
    pub fn set<V>(&mut self, _: &'static str, _: V) {
        match *self {}
    }

    /// Links it to a span of another trace.
    pub fn link(&mut self, _: &TraceContext) {
        match *self {}
    }

    /// Sets its status to an error.
    pub fn failed(&mut self, _: impl Into<Cow<'static, str>>) {
        match *self {}
    }

    /// Ends it now.
    pub fn end(self) {
        match self {}
    }
}
