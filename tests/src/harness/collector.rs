//! An OpenTelemetry collector that keeps the received spans, or one that never answers.

use std::{
    collections::BTreeMap,
    fmt,
    future::pending,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result, ensure};
use axum::{Router, body::Bytes, http::StatusCode, routing::post};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, KeyValue, any_value::Value},
    trace::v1::{span::SpanKind, status::StatusCode as Code},
};
use prost::Message;
use tokio::{net::TcpListener, task::JoinHandle};

use super::{
    port,
    wait::{Seen, eventually},
};

/// A collector on the loopback interface. It stops when the value is dropped.
#[derive(Debug)]
pub struct Collector {
    url: String,
    spans: Arc<Mutex<Vec<Span>>>,
    serving: JoinHandle<()>,
}

/// A received span.
#[derive(Clone, PartialEq)]
pub struct Span {
    /// The program that created it.
    pub service: String,
    /// Its name.
    pub name: String,
    /// Its side of a call, such as `SPAN_KIND_SERVER`.
    pub kind: &'static str,
    /// The trace's id, hexadecimal.
    pub trace_id: String,
    /// Its id, hexadecimal.
    pub id: String,
    /// Its parent's id; empty if it has none.
    pub parent: String,
    /// Its attributes, as text.
    pub attributes: BTreeMap<String, String>,
    /// The error message, if it failed.
    pub error: Option<String>,
}

/// A short form for failure messages: program, name and parent.
impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, name, id, parent, trace_id, .. } = self;
        write!(f, "{service}: {name} {id} under {parent:?} of {trace_id}")
    }
}

impl Span {
    /// The text of an attribute.
    ///
    /// # Panics
    /// If the span does not have the attribute.
    #[must_use]
    pub fn attribute(&self, name: &str) -> &str {
        self.attributes
            .get(name)
            .unwrap_or_else(|| panic!("{self:?} has no attribute {name}: {:?}", self.attributes))
    }
}

impl Collector {
    /// Starts a collector that accepts every request.
    pub async fn start() -> Result<Self> {
        let spans: Arc<Mutex<Vec<Span>>> = Arc::default();
        let kept = Arc::clone(&spans);
        let take = async move |body: Bytes| match ExportTraceServiceRequest::decode(body) {
            Ok(request) => {
                kept.lock().unwrap_or_else(PoisonError::into_inner).extend(read(request));
                StatusCode::OK
            }
            Err(_) => StatusCode::BAD_REQUEST,
        };
        Self::serving(Router::new().route("/v1/traces", post(take)), spans).await
    }

    /// Starts a collector that accepts connections and never answers.
    pub async fn silent() -> Result<Self> {
        let stall = async || pending::<StatusCode>().await;
        Self::serving(Router::new().route("/v1/traces", post(stall)), Arc::default()).await
    }

    /// A URL at which nothing listens.
    pub fn unused_url() -> Result<String> {
        Ok(format!("http://127.0.0.1:{}", port::free_port()?))
    }

    async fn serving(router: Router, spans: Arc<Mutex<Vec<Span>>>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let serving = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("the server ends with the test");
        });
        Ok(Self { url, spans, serving })
    }

    /// Its endpoint.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The spans received so far.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until a trace has `count` spans.
    ///
    /// # Errors
    /// If they are not received in time, or there are more.
    pub async fn until_trace(&self, trace_id: &str, count: usize) -> Result<Trace> {
        let mine = || self.spans().into_iter().filter(|span| span.trace_id == trace_id).collect::<Vec<_>>();
        eventually(format!("{count} spans of {trace_id}"), async || {
            Ok(Seen::when(mine().len() >= count, format_args!("{:#?}", self.spans())))
        })
        .await?;
        let spans = mine();
        ensure!(spans.len() == count, "{count} spans expected: {spans:#?}");
        Ok(Trace(spans))
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// The spans of one trace.
#[derive(Debug)]
pub struct Trace(Vec<Span>);

impl Trace {
    /// The only span with this name and parent.
    ///
    /// # Errors
    /// If there is none, or there are several.
    pub fn under(&self, parent: &str, name: &str) -> Result<&Span> {
        let found = self.all_under(parent, name);
        ensure!(found.len() == 1, "expected one {name:?} under {parent}: {self:#?}");
        found.first().copied().context("just counted")
    }

    /// All spans with this name and parent, in the order in which they were received.
    #[must_use]
    pub fn all_under(&self, parent: &str, name: &str) -> Vec<&Span> {
        self.0.iter().filter(|span| span.parent == parent && span.name == name).collect()
    }
}

fn read(request: ExportTraceServiceRequest) -> Vec<Span> {
    let mut spans = Vec::new();
    for of in request.resource_spans {
        let resource = of.resource.map(|resource| attributes(resource.attributes)).unwrap_or_default();
        let service = resource.get("service.name").cloned().unwrap_or_default();
        for span in of.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            let failed = span.status.filter(|status| status.code() == Code::Error);
            spans.push(Span {
                service: service.clone(),
                kind: SpanKind::try_from(span.kind).map_or("", |kind| kind.as_str_name()),
                trace_id: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                attributes: attributes(span.attributes),
                error: failed.map(|status| status.message),
                name: span.name,
            });
        }
    }
    spans
}

fn attributes(given: Vec<KeyValue>) -> BTreeMap<String, String> {
    given.into_iter().map(|it| (it.key, it.value.map(text).unwrap_or_default())).collect()
}

fn text(value: AnyValue) -> String {
    match value.value {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
