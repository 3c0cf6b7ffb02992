//! Records spans in memory, for tests.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use opentelemetry::{
    Context,
    trace::{SpanKind, Status},
};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{Span, SpanData, SpanProcessor},
};

use crate::lock::lock;

/// The spans that have ended. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Arc<Mutex<Vec<Recorded>>>);

/// A span that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// The name of the span, such as `process fast`.
    pub name: String,
    /// Client, server, producer, consumer or internal.
    pub kind: SpanKind,
    /// The trace's id, hexadecimal.
    pub trace_id: String,
    /// Its id, hexadecimal.
    pub span_id: String,
    /// Its parent's id; zeros where it has none.
    pub parent_id: String,
    /// Its attributes, with values as text.
    pub attributes: BTreeMap<String, String>,
    /// The ids of the spans it is linked to.
    pub links: Vec<String>,
    /// The description of its error status, if it failed.
    pub error: Option<String>,
}

impl Recorder {
    /// The spans, in the order in which they ended.
    pub fn spans(&self) -> Vec<Recorded> {
        lock(&self.0).clone()
    }

    /// The only span of this name.
    ///
    /// # Panics
    /// When there is none, or several.
    pub fn only(&self, name: &str) -> Recorded {
        let spans = self.spans();
        let mut found = spans.iter().filter(|span| span.name == name);
        match (found.next(), found.next()) {
            (Some(span), None) => span.clone(),
            _ => panic!("not one span {name:?} among {spans:#?}"),
        }
    }
}

impl SpanProcessor for Recorder {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        let recorded = Recorded {
            trace_id: span.span_context.trace_id().to_string(),
            span_id: span.span_context.span_id().to_string(),
            parent_id: span.parent_span_id.to_string(),
            attributes: span.attributes.iter().map(|it| (it.key.to_string(), it.value.to_string())).collect(),
            links: span.links.iter().map(|link| link.span_context.span_id().to_string()).collect(),
            error: match span.status {
                Status::Error { description } => Some(description.into_owned()),
                Status::Unset | Status::Ok => None,
            },
            kind: span.span_kind,
            name: span.name.into_owned(),
        };
        lock(&self.0).push(recorded);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}
