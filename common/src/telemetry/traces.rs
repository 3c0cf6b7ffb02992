//! Traces: spans of tasks across processes, exported to an OpenTelemetry collector.
//!
//! Spans are made explicitly, in the few places where a task passes from one part to the next, and only if they are
//! recorded: with traces off, or in an unsampled trace, [`Traces::begin`] checks one flag. Export runs in the
//! background and delays no task: spans that cannot be exported are dropped and counted.

mod collector_client;
mod export;
mod recorded;
mod span;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_protocol::task::TraceContext;
use opentelemetry::{
    Context, KeyValue,
    trace::{
        Span as _, SpanBuilder, SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState,
        Tracer, TracerProvider,
    },
};
use opentelemetry_sdk::{
    Resource,
    trace::{Sampler, SdkTracer, SdkTracerProvider, SpanProcessor},
};
use tokio::runtime::Handle;

use super::Metrics;
use crate::{
    config::{Invalid, Otlp, OtlpSampler},
    supervise,
};

pub use super::service::{LAST_EXPORT, Service};
pub use opentelemetry::trace::SpanKind;
pub use recorded::{Recorded, Recorder};
pub use span::Span;

/// Starts spans. Clones share the exporter. The default is off.
#[derive(Clone, Default)]
pub struct Traces(Option<Arc<Inner>>);

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "Traces(on)" } else { "Traces(off)" })
    }
}

struct Inner {
    tracer: SdkTracer,
    provider: SdkTracerProvider,
    /// Whether the sampler follows the parent's sampling decision.
    parent_based: bool,
}

/// The result of [`Traces::begin`].
#[derive(Debug)]
pub struct Begun {
    /// The trace context to pass on: the new span's, or the parent's if traces are off. `None` without both.
    pub context: Option<TraceContext>,
    /// The span, if it is recorded.
    pub span: Option<Span>,
}

impl Traces {
    /// Starts the export that `otlp` configures; without an endpoint, traces are off. Call it inside a tokio runtime
    /// that lives until [`close`](Self::close).
    ///
    /// # Errors
    /// The exporter cannot be built for the endpoint.
    pub fn start(otlp: &Otlp, service: &Service, metrics: &Metrics) -> Result<Self, Invalid> {
        let Some(url) = otlp.traces_url() else { return Ok(Self::default()) };
        let masked = otlp.endpoint.as_ref().map(|endpoint| endpoint.masked().to_owned()).unwrap_or_default();
        let refused = |why: String| Invalid::new("otlp.endpoint", format_args!("{masked:?}"), why);
        let processor = export::start(url, otlp.timeout, metrics, Handle::current()).map_err(refused)?;
        let name = otlp.service_name.as_deref();
        tracing::info!(collector = masked, ratio = otlp.ratio, "exporting spans");
        Ok(Self::built(processor, otlp, resource(name, service)))
    }

    /// Records every span in the returned recorder, for tests.
    pub fn recorded() -> (Self, Recorder) {
        Self::recorded_as(&Otlp::default())
    }

    /// As [`Traces::recorded`], with the sampler and ratio of `otlp`.
    pub fn recorded_as(otlp: &Otlp) -> (Self, Recorder) {
        let recorder = Recorder::default();
        (Self::built(recorder.clone(), otlp, Resource::builder_empty().build()), recorder)
    }

    fn built(processor: impl SpanProcessor + 'static, otlp: &Otlp, resource: Resource) -> Self {
        let ratio = Sampler::TraceIdRatioBased(otlp.ratio);
        let (sampler, parent_based) = match otlp.sampler {
            OtlpSampler::ParentBasedRatio => (Sampler::ParentBased(ratio.into()), true),
            OtlpSampler::ParentBasedAlways => (Sampler::ParentBased(Sampler::AlwaysOn.into()), true),
            OtlpSampler::ParentBasedNever => (Sampler::ParentBased(Sampler::AlwaysOff.into()), true),
            OtlpSampler::Ratio => (ratio, false),
            OtlpSampler::Always => (Sampler::AlwaysOn, false),
            OtlpSampler::Never => (Sampler::AlwaysOff, false),
        };
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_sampler(sampler)
            .with_resource(resource)
            .build();
        let tracer = provider.tracer("garenne");
        Self(Some(Arc::new(Inner { tracer, provider, parent_based })))
    }

    /// Whether traces are on.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Whether a span under `parent` may be recorded; if not, callers can skip preparing its attributes.
    pub fn may_keep(&self, parent: Option<&TraceContext>) -> bool {
        let Some(inner) = &self.0 else { return false };
        !inner.parent_based || parent.is_none_or(TraceContext::is_sampled)
    }

    /// Starts a span under `parent`, or in a new trace if there is none. `describe` sets its name and attributes;
    /// it is called only if the span is recorded.
    pub fn begin(
        &self,
        parent: Option<&TraceContext>,
        kind: SpanKind,
        describe: impl FnOnce(&mut Span),
    ) -> Begun {
        self.begin_at(None, parent, kind, describe)
    }

    /// As [`Traces::begin`], for a span that began at `since`, if it is set.
    pub fn begin_at(
        &self,
        since: impl Into<Option<SystemTime>>,
        parent: Option<&TraceContext>,
        kind: SpanKind,
        describe: impl FnOnce(&mut Span),
    ) -> Begun {
        let Some(inner) = &self.0 else { return Begun { context: parent.cloned(), span: None } };
        if !self.may_keep(parent) {
            return Begun { context: parent.cloned(), span: None };
        }
        let under = parent.map_or_else(Context::new, |parent| {
            Context::new().with_remote_span_context(to_span_context(parent))
        });
        let mut builder = SpanBuilder::from_name("").with_kind(kind);
        builder.start_time = since.into();
        let span = inner.tracer.build_with_context(builder, &under);
        let context = from_span_context(span.span_context()).or_else(|| parent.cloned());
        if !span.is_recording() {
            return Begun { context, span: None };
        }
        let mut span = Span::new(span);
        describe(&mut span);
        Begun { context, span: Some(span) }
    }

    /// Exports the remaining spans within `limit`, and turns traces off.
    pub async fn close(&self, limit: Duration) {
        let Some(inner) = self.0.clone() else { return };
        let close = move || inner.provider.shutdown_with_timeout(limit);
        let closing = supervise::spawn_blocking("last span export", close);
        if !matches!(closing.await, Ok(Ok(()))) {
            tracing::warn!(?limit, "last spans lost: the collector did not accept them in time");
        }
    }
}

/// The resource attributes of all spans, those of `OTEL_RESOURCE_ATTRIBUTES` included.
fn resource(name: Option<&str>, service: &Service) -> Resource {
    let found = Resource::builder().build();
    let from_environment = found.get(&"service.name".into()).map(|name| name.to_string());
    let from_environment = from_environment.filter(|name| !name.starts_with("unknown_service"));
    let name = name.map(str::to_owned).or(from_environment).unwrap_or_else(|| service.name.to_owned());
    Resource::builder()
        .with_attribute(KeyValue::new("service.version", service.version))
        .with_attribute(KeyValue::new("service.instance.id", service.instance.clone()))
        .with_service_name(name)
        .build()
}

fn to_span_context(context: &TraceContext) -> SpanContext {
    let ids = (TraceId::from_hex(context.trace_id()), SpanId::from_hex(context.span_id()));
    let (trace, span) = (ids.0.unwrap_or(TraceId::INVALID), ids.1.unwrap_or(SpanId::INVALID));
    let state = context.state().and_then(|state| state.parse::<TraceState>().ok()).unwrap_or_default();
    SpanContext::new(trace, span, TraceFlags::new(context.flags()), true, state)
}

fn from_span_context(context: &SpanContext) -> Option<TraceContext> {
    let (trace, span, flags) = (context.trace_id(), context.span_id(), context.trace_flags());
    let state = context.trace_state().header();
    TraceContext::parse(&format!("00-{trace}-{span}-{:02x}", flags.to_u8()), Some(&state))
}

#[cfg(test)]
mod tests;
