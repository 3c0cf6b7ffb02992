//! A line with readings, and the answers to lines.

use std::{mem, sync::Arc};

use bytes::Bytes;
use futures_util::{
    FutureExt,
    future::{self, BoxFuture},
};
use garenne_common::telemetry::traces::{Begun, Span, SpanKind};
use garenne_protocol::task::{TaskId, TraceContext};
use garenne_publish::Durability;

use crate::{
    auth::{Caller, Peer},
    context::GatewayContext,
    ingest::Stored,
    left_out::LeftOut,
    memory::{Account, Reservation},
    payload::{Payload, Receipts},
    readings_format::ReadingsFormat,
    record_tasks::RequestProperties,
    refusal::Refusal,
    request::{Request, handle},
};

/// Answers of this many bytes are written at once. A larger buffer is not kept for the next answers.
pub(super) const WRITE_SIZE: usize = 64 * 1024;

/// A successful answer.
pub(super) enum Reply {
    /// One task id per record, and what is left out.
    Receipts(Receipts, LeftOut),
    /// The command is done: the name of the token's sender, or of what later lines are.
    Done(Arc<str>),
}

/// The answer to a line. Its memory is reserved until it is written.
pub(super) struct Answer {
    outcome: Result<Reply, Refusal>,
    trace: Option<TraceContext>,
    memory: Option<Reservation>,
}

impl Answer {
    pub(super) fn ready(
        outcome: Result<Reply, Refusal>,
        memory: Option<Reservation>,
    ) -> BoxFuture<'static, Self> {
        future::ready(Self { outcome, trace: None, memory }).boxed()
    }
}

/// A line with readings. The protocol carries no trace context, so each line starts a trace.
pub(super) struct Line {
    caller: Arc<Caller>,
    format: ReadingsFormat,
    line: Bytes,
    account: Account,
    trace: Option<TraceContext>,
    span: Option<Box<Span>>,
    /// It is held until the answer is written.
    memory: Reservation,
}

impl Line {
    pub(super) fn new(
        gateway: &GatewayContext,
        caller: Arc<Caller>,
        format: ReadingsFormat,
        line: &Bytes,
        account: &Account,
        memory: Reservation,
    ) -> Self {
        let Begun { context: trace, span } = gateway.traces.begin(None, SpanKind::Server, |span| {
            span.name("line");
            span.set("network.transport", "tcp");
        });
        let (line, account, span) = (line.clone(), account.clone(), span.map(Box::new));
        Self { caller, format, line, account, trace, span, memory }
    }

    /// The answer to the line. It is parsed now, so that its memory is reserved before the next one is read.
    pub(super) fn answered(self, gateway: Arc<GatewayContext>) -> BoxFuture<'static, Answer> {
        let mut answer = async move { handle(&gateway, self).await }.boxed();
        match (&mut answer).now_or_never() {
            Some(answer) => future::ready(answer).boxed(),
            None => answer,
        }
    }
}

impl Request for Line {
    type Format = ReadingsFormat;
    type Answer = Answer;

    /// The sender that the connection has authenticated, as the senders file had it when the line was read.
    fn authenticate(&mut self, _: &GatewayContext) -> Result<Arc<Caller>, Refusal> {
        Ok(Arc::clone(&self.caller))
    }

    async fn read(
        &mut self,
        _: &GatewayContext,
        caller: Arc<Caller>,
    ) -> Result<(RequestProperties, ReadingsFormat, Payload), Refusal> {
        let line = mem::take(&mut self.line);
        let payload = Payload::plain(line.to_vec(), self.account.reserve(line.len())?);
        let properties =
            RequestProperties { caller, idempotency_key: None, trace: self.trace.clone(), atomic: false };
        Ok((properties, self.format.clone(), payload))
    }

    fn answer(self, _: &GatewayContext, stored: Result<Stored<LeftOut>, Refusal>) -> Answer {
        let Self { trace, span, memory, .. } = self;
        if let Some(mut span) = span {
            match &stored {
                Ok((receipts, _)) => {
                    span.set("garenne.records", i64::try_from(receipts.ids.len()).unwrap_or(i64::MAX));
                }
                Err(refusal) => {
                    span.set("error.type", refusal.code);
                    if refusal.status.is_server_error() {
                        span.failed(refusal.to_string());
                    }
                }
            }
        }
        let outcome = stored.map(|(receipts, left_out)| Reply::Receipts(receipts, left_out));
        Answer { outcome, trace, memory: Some(memory) }
    }
}

/// Answers that are written together, and their memory reservations.
#[derive(Default)]
pub(super) struct WriteBuffer {
    pub(super) bytes: Vec<u8>,
    memory: Vec<Reservation>,
}

impl WriteBuffer {
    /// Adds one line: `ok <id>…` with one id per record, `-` for one that is refused, then `spooled` if the broker has not
    /// confirmed them, then `; error <code> <message>` for all that is left out. If nothing is accepted, `error <code>
    /// <message>`.
    pub(super) fn add(
        &mut self,
        Answer { outcome, trace, memory }: Answer,
        gateway: &GatewayContext,
        peer: &Peer,
    ) {
        self.memory.extend(memory);
        let out = &mut self.bytes;
        match outcome {
            Ok(Reply::Done(name)) => {
                gateway.instruments.answered("tcp", "welcome", 0);
                out.extend_from_slice(format!("ok {name}").as_bytes());
            }
            Ok(Reply::Receipts(Receipts { ids, durability, memory }, left_out)) => {
                gateway.instruments.answered("tcp", "ok", ids.len());
                out.extend_from_slice(b"ok");
                for id in left_out.by_position(&ids) {
                    out.push(b' ');
                    out.extend_from_slice(id.map_or("-", TaskId::as_str).as_bytes());
                }
                if durability == Durability::Spooled {
                    out.extend_from_slice(b" spooled");
                }
                gateway.instruments.left_out("tcp", left_out.all());
                for code in left_out.codes() {
                    gateway.instruments.audit.refused(peer, "tcp", code, trace.as_ref());
                }
                for refusal in left_out.all() {
                    out.extend_from_slice(b"; ");
                    out.extend_from_slice(refusal.line().as_bytes());
                }
                self.memory.push(memory);
            }
            Err(refusal) => {
                gateway.instruments.answered("tcp", refusal.code, 0);
                gateway.instruments.refused_records("tcp", &refusal);
                gateway.instruments.audit.refused(peer, "tcp", refusal.code, trace.as_ref());
                out.extend_from_slice(refusal.line().as_bytes());
            }
        }
        out.push(b'\n');
    }

    /// Empties the buffer after a write.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(WRITE_SIZE);
        self.memory.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::LINE_OVERHEAD;

    #[test]
    fn the_memory_of_a_line_that_waits_is_reserved() {
        fn size<F: Future>(_: impl FnOnce(&'static GatewayContext, Line) -> F) -> usize {
            size_of::<F>()
        }
        let bytes = size(handle);
        assert!(bytes <= LINE_OVERHEAD, "{bytes}");
    }
}
