//! Spans of tasks: one for each attempt, from its start to its settlement, and below it what the attempt
//! leads to. Where nobody keeps them an attempt carries nothing and looks at one flag.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use garenne_common::{
    shutdown::Settlement,
    telemetry::{
        Traces,
        metrics::TaskOutcome,
        traces::{Begun, Span, SpanKind},
    },
};
use garenne_protocol::task::{DeadReason, Envelope, NewTask, TraceContext};

use crate::sink::Accepted;

/// Makes the spans of one lane's tasks.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    pub(crate) traces: Traces,
    pub(crate) lane: Arc<str>,
    pub(crate) queue: String,
}

impl Spans {
    /// Gives a task that came without a trace one of its own, which its copies and what follows from it
    /// go on with. It begins with the task's arrival here, so that each attempt at it is beside the others.
    pub(crate) fn ensure_trace(&self, envelope: &mut Envelope) {
        if !self.traces.is_on() || envelope.trace.is_some() {
            return;
        }
        let Begun { context, span } = self.traces.begin(None, SpanKind::Consumer, |span| {
            span.name(format!("receive {}", self.queue));
            of_messaging(span, "receive", "receive", &self.queue);
            of_task(span, envelope);
        });
        envelope.trace = context;
        drop(span);
    }

    /// The span of an attempt to come.
    pub(crate) fn attempt(self: &Arc<Self>, envelope: &Arc<Envelope>) -> AttemptSpan {
        if !self.traces.may_keep(envelope.trace.as_ref()) {
            return AttemptSpan::default();
        }
        let (spans, envelope) = (Arc::clone(self), Arc::clone(envelope));
        AttemptSpan(Some(Arc::new(Attempted { spans, envelope, state: Mutex::default() })))
    }
}

/// The span of one attempt, shared by all that have a hand in it.
#[derive(Clone, Default)]
pub(crate) struct AttemptSpan(Option<Arc<Attempted>>);

struct Attempted {
    spans: Arc<Spans>,
    envelope: Arc<Envelope>,
    state: Mutex<State>,
}

#[derive(Default)]
enum State {
    /// It has not started: nobody worked on the task yet.
    #[default]
    Waiting,
    Running(Box<Running>),
    Settled,
}

struct Running {
    span: Span,
    context: Option<TraceContext>,
}

impl AttemptSpan {
    /// The handler has it.
    pub(crate) fn start(&self) {
        if let Some(attempted) = &self.0 {
            let mut state = attempted.state();
            if matches!(*state, State::Waiting) {
                *state = attempted.started();
            }
        }
    }

    /// Where what the attempt leads to goes on: under its span, or where the task itself was.
    pub(crate) fn context(&self, envelope: &Envelope) -> Option<TraceContext> {
        let own = self.0.as_ref().and_then(|attempted| match &*attempted.state() {
            State::Running(running) => running.context.clone(),
            State::Waiting | State::Settled => None,
        });
        own.or_else(|| envelope.trace.clone())
    }

    /// How the attempt counts.
    pub(crate) fn set_outcome(&self, outcome: TaskOutcome) {
        if let Some(attempted) = &self.0
            && let State::Running(running) = &mut *attempted.state()
        {
            running.span.set("garenne.outcome", outcome.as_str());
        }
    }

    /// What became of the task after the attempt, and what was wrong where something was.
    pub(crate) fn end(&self, settlement: Settlement, error: Option<&str>) {
        self.finish(settlement, None, error);
    }

    /// The task is a dead letter, with or without an attempt.
    pub(crate) fn end_dead(&self, reason: DeadReason, error: &str) {
        self.start();
        self.finish(Settlement::Dead, Some(reason), Some(error));
    }

    fn finish(&self, settlement: Settlement, reason: Option<DeadReason>, error: Option<&str>) {
        let Some(attempted) = &self.0 else { return };
        let State::Running(running) = mem::replace(&mut *attempted.state(), State::Settled) else {
            return;
        };
        let mut span = running.span;
        span.set("garenne.settlement", settlement.as_str());
        if let Some(reason) = reason {
            span.set("garenne.reason", reason.as_str());
        }
        if let Some(error) = error {
            span.failed(error.to_owned());
        }
        span.end();
    }

    /// Whether anybody keeps it.
    pub(crate) fn is_kept(&self) -> bool {
        self.0.is_some()
    }

    /// A sink took the result in a batch of so many, in this time.
    pub(crate) fn record_sink_write(
        &self,
        sink: &'static str,
        batch: usize,
        since: SystemTime,
        word: &Accepted,
    ) {
        let Some(attempted) = &self.0 else { return };
        let under = self.context(&attempted.envelope);
        let traces = &attempted.spans.traces;
        let writing = traces.begin_at(since, under.as_ref(), SpanKind::Client, |span| {
            span.name(format!("write {sink}"));
            span.set("garenne.sink", sink);
            span.set("garenne.batch", i64::try_from(batch).unwrap_or(i64::MAX));
            if sink == "postgres" {
                span.set("db.system.name", "postgresql");
                span.set("db.operation.name", "INSERT");
            }
            if let Accepted::Conflict(detail) | Accepted::Refused(detail) = word {
                span.failed(detail.clone());
            }
        });
        drop(writing);
    }
}

impl Attempted {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn started(&self) -> State {
        let Self { spans, envelope, .. } = self;
        let Begun { context, span } =
            spans.traces.begin(envelope.trace.as_ref(), SpanKind::Consumer, |span| {
                span.name(format!("process {}", spans.queue));
                of_messaging(span, "process", "process", &spans.queue);
                of_task(span, envelope);
                span.set("garenne.lane", spans.lane.to_string());
            });
        span.map_or(State::Settled, |span| State::Running(Box::new(Running { span, context })))
    }
}

/// The span of a follow-up on its way to `queue`, which it goes on under from there.
pub(crate) fn publish_span(traces: &Traces, task: &mut NewTask, queue: &str) -> Option<Span> {
    let Begun { context, span } = traces.begin(task.trace.as_ref(), SpanKind::Producer, |span| {
        span.name(format!("publish {queue}"));
        of_messaging(span, "send", "publish", queue);
        span.set("messaging.message.id", task.id.to_string());
        span.set("garenne.kind", task.kind.to_string());
    });
    task.trace = context;
    span
}

fn of_messaging(span: &mut Span, kind: &'static str, operation: &'static str, queue: &str) {
    span.set("messaging.system", "rabbitmq");
    span.set("messaging.operation.type", kind);
    span.set("messaging.operation.name", operation);
    span.set("messaging.destination.name", queue.to_owned());
}

fn of_task(span: &mut Span, envelope: &Envelope) {
    span.set("messaging.message.id", envelope.id.to_string());
    span.set("garenne.kind", envelope.kind.to_string());
    span.set("garenne.attempt", i64::from(envelope.attempt) + 1);
    if let Some(group) = &envelope.group {
        span.set("garenne.group", group.clone());
    }
}

#[cfg(test)]
mod tests;
