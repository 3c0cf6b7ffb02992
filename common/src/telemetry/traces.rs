//! Spans: what a task went through, over processes, for an OpenTelemetry collector.
//!
//! Made by hand in the few places where a task passes from one to the next, and only where somebody keeps
//! them: off, or in a trace that is not sampled, [`Traces::begin`] looks at one flag. Export is in the
//! background and never anybody's trouble: what cannot be exported is dropped and counted.

mod export;
mod post;
mod recorded;
mod span;

use std::{
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
use crate::config::{Invalid, Otlp, OtlpSampler};

pub use opentelemetry::trace::SpanKind;
pub use recorded::{Recorded, Recorder};
pub use span::Span;

/// What may be exported at a stop: by then everything else is done, and the rest of the spans is worth no more.
pub const LAST_EXPORT: Duration = Duration::from_secs(2);

/// Starts spans; a clone starts them in the same place. The default is off.
#[derive(Clone, Default)]
pub struct Traces(Option<Arc<Inner>>);

struct Inner {
    tracer: SdkTracer,
    provider: SdkTracerProvider,
    /// Whether a trace that is not sampled elsewhere is not sampled here.
    obeys: bool,
}

/// Who makes the spans.
#[derive(Clone, Debug)]
pub struct Service {
    /// Its name, where the settings and `OTEL_RESOURCE_ATTRIBUTES` give none.
    pub name: &'static str,
    /// Which of them it is, such as a worker's id.
    pub instance: String,
    /// Its version.
    pub version: &'static str,
}

/// Where things go on: under a new span, or, where none is kept, where they were.
#[derive(Debug)]
pub struct Begun {
    /// What whoever is asked next should be told; nothing where traces are off and none was begun before.
    pub context: Option<TraceContext>,
    /// The span, where it is kept.
    pub span: Option<Span>,
}

impl Traces {
    /// Starts exporting as the settings say; off where they name no collector. Inside a tokio runtime, which
    /// has to last until [`close`](Self::close).
    ///
    /// # Errors
    /// The endpoint is no address that can be posted to.
    pub fn start(otlp: &Otlp, service: &Service, metrics: &Metrics) -> Result<Self, Invalid> {
        let Some(url) = otlp.traces_url() else { return Ok(Self::default()) };
        let masked = otlp.endpoint.as_ref().map(|endpoint| endpoint.masked().to_owned()).unwrap_or_default();
        let refused = |why: String| Invalid::new("otlp.endpoint", format_args!("{masked:?}"), why);
        let processor = export::start(url, otlp.timeout, metrics, Handle::current()).map_err(refused)?;
        let name = otlp.service_name.as_deref();
        tracing::info!(collector = masked, ratio = otlp.ratio, "spans are exported");
        Ok(Self::built(processor, otlp, resource(name, service)))
    }

    /// Keeps every span of every trace where the recorder shows it: for tests.
    pub fn recorded() -> (Self, Recorder) {
        Self::recorded_as(&Otlp::default())
    }

    /// The same, sampled as the settings say.
    pub fn recorded_as(otlp: &Otlp) -> (Self, Recorder) {
        let recorder = Recorder::default();
        (Self::built(recorder.clone(), otlp, Resource::builder_empty().build()), recorder)
    }

    fn built(processor: impl SpanProcessor + 'static, otlp: &Otlp, resource: Resource) -> Self {
        let ratio = Sampler::TraceIdRatioBased(otlp.ratio);
        let (sampler, obeys) = match otlp.sampler {
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
        Self(Some(Arc::new(Inner { tracer, provider, obeys })))
    }

    /// Whether there are spans at all.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Whether a span under `parent` may be kept: for whoever has to make ready for it.
    pub fn may_keep(&self, parent: Option<&TraceContext>) -> bool {
        let Some(inner) = &self.0 else { return false };
        !inner.obeys || parent.is_none_or(TraceContext::is_sampled)
    }

    /// Starts a span under `parent`, in a new trace without one. `describe` names it and is asked only where
    /// the span is kept.
    pub fn begin(
        &self,
        parent: Option<&TraceContext>,
        kind: SpanKind,
        describe: impl FnOnce(&mut Span),
    ) -> Begun {
        self.begun(None, parent, kind, describe)
    }

    /// The same, of what began a while ago.
    pub fn begin_at(
        &self,
        since: SystemTime,
        parent: Option<&TraceContext>,
        kind: SpanKind,
        describe: impl FnOnce(&mut Span),
    ) -> Begun {
        self.begun(Some(since), parent, kind, describe)
    }

    fn begun(
        &self,
        since: Option<SystemTime>,
        parent: Option<&TraceContext>,
        kind: SpanKind,
        describe: impl FnOnce(&mut Span),
    ) -> Begun {
        let Some(inner) = &self.0 else { return Begun { context: parent.cloned(), span: None } };
        if !self.may_keep(parent) {
            return Begun { context: parent.cloned(), span: None };
        }
        let under =
            parent.map_or_else(Context::new, |parent| Context::new().with_remote_span_context(read(parent)));
        let mut builder = SpanBuilder::from_name("").with_kind(kind);
        builder.start_time = since;
        let span = inner.tracer.build_with_context(builder, &under);
        let context = written(span.span_context()).or_else(|| parent.cloned());
        if !span.is_recording() {
            return Begun { context, span: None };
        }
        let mut span = Span::new(span);
        describe(&mut span);
        Begun { context, span: Some(span) }
    }

    /// Exports what is still here, for as long as that may take, and turns spans off.
    pub async fn close(&self, patience: Duration) {
        let Some(inner) = self.0.clone() else { return };
        let closing = tokio::task::spawn_blocking(move || inner.provider.shutdown_with_timeout(patience));
        if !matches!(closing.await, Ok(Ok(()))) {
            tracing::warn!(?patience, "the last spans are lost: the collector did not take them in time");
        }
    }
}

impl std::fmt::Debug for Traces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_on() { "Traces(on)" } else { "Traces(off)" })
    }
}

/// What every span says of its program, `OTEL_RESOURCE_ATTRIBUTES` included.
fn resource(name: Option<&str>, service: &Service) -> Resource {
    let found = Resource::builder().build();
    let theirs = found.get(&"service.name".into()).map(|name| name.to_string());
    let theirs = theirs.filter(|name| !name.starts_with("unknown_service"));
    let name = name.map(str::to_owned).or(theirs).unwrap_or_else(|| service.name.to_owned());
    Resource::builder()
        .with_attribute(KeyValue::new("service.version", service.version))
        .with_attribute(KeyValue::new("service.instance.id", service.instance.clone()))
        .with_service_name(name)
        .build()
}

fn read(context: &TraceContext) -> SpanContext {
    let ids = (TraceId::from_hex(context.trace_id()), SpanId::from_hex(context.span_id()));
    let (trace, span) = (ids.0.unwrap_or(TraceId::INVALID), ids.1.unwrap_or(SpanId::INVALID));
    let state = context.state().and_then(|state| state.parse::<TraceState>().ok()).unwrap_or_default();
    SpanContext::new(trace, span, TraceFlags::new(context.flags()), true, state)
}

fn written(context: &SpanContext) -> Option<TraceContext> {
    let (trace, span, flags) = (context.trace_id(), context.span_id(), context.trace_flags());
    let state = context.trace_state().header();
    TraceContext::parse(&format!("00-{trace}-{span}-{:02x}", flags.to_u8()), Some(&state))
}

#[cfg(test)]
mod tests;
