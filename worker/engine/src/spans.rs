//! Trace spans of tasks: one per attempt, from its start to its settlement, with child spans for sink writes and
//! follow-ups. If a trace is not sampled, an attempt carries no span and checks one flag.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    time::SystemTime,
};

use garenne_common::telemetry::{
    Traces,
    metrics::TaskOutcome,
    traces::{Begun, Span, SpanKind},
};
use garenne_protocol::{
    settlement::Settlement,
    task::{DeadReason, Envelope, NewTask, TraceContext},
};

use crate::panics::lock;

/// Creates the spans of one lane's tasks.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    pub(crate) traces: Traces,
    pub(crate) lane: Arc<str>,
    pub(crate) queue: String,
}

impl Spans {
    /// Starts a trace for a task without one. The task's copies and follow-ups continue it.
    ///
    /// Its root span is the arrival of the task here, so that all attempts are siblings below it.
    pub(crate) fn ensure_trace(&self, envelope: &mut Envelope) {
        if !self.traces.is_on() || envelope.trace.is_some() {
            return;
        }
        let Begun { context, span } = self.traces.begin(None, SpanKind::Consumer, |span| {
            describe_operation(span, "receive", "receive", &self.queue);
            set_task_attributes(span, envelope);
        });
        envelope.trace = context;
        drop(span);
    }

    /// The span of an attempt that has not started.
    pub(crate) fn attempt(self: &Arc<Self>, envelope: &Arc<Envelope>) -> AttemptSpan {
        if !self.traces.may_keep(envelope.trace.as_ref()) {
            return AttemptSpan::default();
        }
        let (spans, envelope) = (Arc::clone(self), Arc::clone(envelope));
        AttemptSpan(Some(Arc::new(SharedSpan { spans, envelope, started: OnceLock::new() })))
    }
}

/// The span of one attempt, shared by its handler, sinks and settlement. Empty if the trace is not sampled.
#[derive(Clone, Default)]
pub(crate) struct AttemptSpan(Option<Arc<SharedSpan>>);

struct SharedSpan {
    spans: Arc<Spans>,
    envelope: Arc<Envelope>,
    /// Set when the attempt starts.
    started: OnceLock<StartedSpan>,
}

struct StartedSpan {
    context: Option<TraceContext>,
    /// [`None`] if the sampler dropped the span, and once it has ended.
    span: Mutex<Option<Span>>,
}

impl AttemptSpan {
    /// Starts the span, when the attempt starts.
    pub(crate) fn start(&self) {
        if let Some(shared) = &self.0 {
            shared.started.get_or_init(|| shared.begin());
        }
    }

    /// The parent context for child spans: this span if it has started, otherwise the task's own context.
    pub(crate) fn context(&self, envelope: &Envelope) -> Option<TraceContext> {
        let started = self.0.as_ref().and_then(|shared| shared.started.get());
        started.and_then(|started| started.context.clone()).or_else(|| envelope.trace.clone())
    }

    pub(crate) fn set_outcome(&self, outcome: TaskOutcome) {
        self.set("garenne.outcome", outcome.as_str());
    }

    /// Ends the span of a dead-lettered task. It starts the span first if there was no attempt.
    pub(crate) fn end_dead(&self, reason: DeadReason, error: &str) {
        self.start();
        self.set("garenne.reason", reason.as_str());
        self.end(Settlement::Dead, Some(error));
    }

    /// Ends the span with the task's settlement, and with an error if there was one.
    pub(crate) fn end(&self, settlement: Settlement, error: Option<&str>) {
        let Some(mut span) = self.started_span().and_then(|mut span| span.take()) else { return };
        span.set("garenne.settlement", settlement.as_str());
        if let Some(error) = error {
            span.failed(error.to_owned());
        }
        span.end();
    }

    fn set(&self, attribute: &'static str, value: &'static str) {
        if let Some(span) = self.started_span().as_deref_mut().and_then(Option::as_mut) {
            span.set(attribute, value);
        }
    }

    fn started_span(&self) -> Option<MutexGuard<'_, Option<Span>>> {
        let started = self.0.as_ref()?.started.get()?;
        Some(lock(&started.span))
    }

    /// Adds a child span for a sink write that stored the result in a batch of this size, from `since` to now.
    pub(crate) fn record_sink_write(
        &self,
        sink: &'static str,
        attributes: &'static [(&'static str, &'static str)],
        batch: usize,
        since: SystemTime,
        error: Option<&str>,
    ) {
        let Some(shared) = &self.0 else { return };
        let parent = self.context(&shared.envelope);
        let traces = &shared.spans.traces;
        let write = traces.begin_at(since, parent.as_ref(), SpanKind::Client, |span| {
            span.name(format!("write {sink}"));
            span.set("garenne.sink", sink);
            span.set("garenne.batch", i64::try_from(batch).unwrap_or(i64::MAX));
            for (attribute, value) in attributes {
                span.set(attribute, *value);
            }
            if let Some(error) = error {
                span.failed(error.to_owned());
            }
        });
        drop(write);
    }
}

impl SharedSpan {
    fn begin(&self) -> StartedSpan {
        let Self { spans, envelope, .. } = self;
        let Begun { context, span } =
            spans.traces.begin(envelope.trace.as_ref(), SpanKind::Consumer, |span| {
                describe_operation(span, "process", "process", &spans.queue);
                set_task_attributes(span, envelope);
                span.set("garenne.lane", spans.lane.to_string());
            });
        StartedSpan { context: context.filter(|_| span.is_some()), span: Mutex::new(span) }
    }
}

/// Starts the span of publishing a follow-up to `queue`, and makes it the parent of the follow-up's spans.
pub(crate) fn publish_span(traces: &Traces, task: &mut NewTask, queue: &str) -> Option<Span> {
    let Begun { context, span } = traces.begin(task.trace.as_ref(), SpanKind::Producer, |span| {
        describe_operation(span, "send", "publish", queue);
        span.set("messaging.message.id", task.id.to_string());
        span.set("garenne.kind", task.kind.to_string());
    });
    task.trace = context;
    span
}

/// Sets the name and the messaging attributes of a span.
fn describe_operation(span: &mut Span, kind: &'static str, operation: &'static str, queue: &str) {
    span.name(format!("{operation} {queue}"));
    span.set("messaging.system", "rabbitmq");
    span.set("messaging.operation.type", kind);
    span.set("messaging.operation.name", operation);
    span.set("messaging.destination.name", queue.to_owned());
}

fn set_task_attributes(span: &mut Span, envelope: &Envelope) {
    span.set("messaging.message.id", envelope.id.to_string());
    span.set("garenne.kind", envelope.kind.to_string());
    span.set("garenne.attempt", i64::from(envelope.attempt) + 1);
    if let Some(group) = &envelope.group {
        span.set("garenne.group", group.clone());
    }
}

#[cfg(test)]
mod tests;
