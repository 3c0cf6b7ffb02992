//! The TCP line protocol: one JSON document per line, answered in order.

use std::{io, sync::Arc};

use futures_util::{
    FutureExt, StreamExt,
    future::{self, BoxFuture},
    stream::FuturesOrdered,
};
use garenne_common::telemetry::traces::{Begun, Span, SpanKind};
use garenne_protocol::task::TraceContext;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    audit::audit,
    auth::{Caller, Peer},
    context::GatewayContext,
    ingest::Sender,
    line_reader::{Frame, LineReader},
    memory::Reservation,
    payload::{Payload, Receipts},
    refusal::Refusal,
};

/// Longest line before authentication, in bytes: `auth` and a token.
const MAX_AUTH_LINE: usize = 4096;
/// Memory of a line whose answer is outstanding, besides its bytes and its tasks.
const LINE_OVERHEAD: usize = 1024;
/// Answers of this many bytes are written at once. A larger buffer is not kept for the next answers.
const WRITE_SIZE: usize = 64 * 1024;

/// A successful answer.
enum Reply {
    /// One task id per record.
    Receipts(Receipts),
    /// The token is valid and has this name.
    Welcome(String),
}

/// The answer to a line. Its memory is reserved until it is written.
struct Answer {
    outcome: Result<Reply, Refusal>,
    trace: Option<TraceContext>,
    memory: Option<Reservation>,
}

impl Answer {
    fn ready(outcome: Result<Reply, Refusal>, memory: Option<Reservation>) -> BoxFuture<'static, Self> {
        future::ready(Self { outcome, trace: None, memory }).boxed()
    }
}

/// Serves one connection until the sender closes it, sends nothing for `idle_timeout`, or `stop` is cancelled. Then
/// it reads no more lines and answers those that it has read.
pub(super) async fn serve<S>(
    stream: S,
    gateway: &Arc<GatewayContext>,
    peer: &Peer,
    stop: &CancellationToken,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let limits = &gateway.limits;
    let (reader, mut writer) = tokio::io::split(stream);
    // `None` until the sender authenticates, if that is required.
    let mut caller = gateway.access.caller(peer, None).ok();
    let longest = limits.max_line.bytes();
    let first = if caller.is_some() { longest } else { longest.min(MAX_AUTH_LINE) };
    let mut lines =
        LineReader::new(reader, first, limits.idle_timeout, limits.body_timeout, gateway.budget.empty());
    let mut in_flight: FuturesOrdered<BoxFuture<'static, Answer>> = FuturesOrdered::new();
    let mut buffer = WriteBuffer::default();
    let mut reading = true;
    // No memory was left for a line's answer. No line is read until the answers before it are written.
    let mut short_of_memory = false;
    while reading || !in_flight.is_empty() {
        short_of_memory &= !in_flight.is_empty();
        tokio::select! {
            biased;
            Some(answer) = in_flight.next(), if !in_flight.is_empty() => {
                buffer.add(answer, gateway, peer);
                // Answers that are ready go out in the same write.
                while buffer.bytes.len() < WRITE_SIZE
                    && let Some(Some(answer)) = in_flight.next().now_or_never()
                {
                    buffer.add(answer, gateway, peer);
                }
                // Flushed before the next wait: TLS buffers what the socket did not take.
                let writing = async {
                    writer.write_all(&buffer.bytes).await?;
                    writer.flush().await
                };
                match timeout(limits.write_timeout, writing).await {
                    Ok(done) => done?,
                    Err(_) => return Err(io::ErrorKind::TimedOut.into()),
                }
                buffer.clear();
                lines.answered();
            }
            () = stop.cancelled(), if reading => reading = false,
            frame = lines.next(), if reading && !short_of_memory && in_flight.len() < limits.max_in_flight => {
                let frame = frame?;
                if let Frame::End = frame {
                    reading = false;
                    continue;
                }
                if let Frame::Idle = frame {
                    if in_flight.is_empty() { reading = false } else { lines.answered() }
                    continue;
                }
                let memory = gateway.budget.reserve(LINE_OVERHEAD).ok();
                short_of_memory = memory.is_none();
                let answer = match frame {
                    Frame::Line(line) => match authenticate(&line, &mut caller, gateway, peer) {
                        LineAuth::Caller(caller) => ingest_line(gateway, &line, caller, memory),
                        LineAuth::Welcome(name) => {
                            lines.set_limit(longest);
                            Answer::ready(Ok(Reply::Welcome(name)), memory)
                        }
                        LineAuth::Refused(refusal) => {
                            reading = false;
                            Answer::ready(Err(refusal), memory)
                        }
                    },
                    Frame::TooLong if caller.is_none() => {
                        reading = false;
                        Answer::ready(Err(Refusal::Unauthorized(AUTH_FIRST)), memory)
                    }
                    Frame::TooLong => {
                        let refusal = Refusal::TooLarge { what: "line", limit: limits.max_line };
                        Answer::ready(Err(refusal), memory)
                    }
                    Frame::NoMemory => Answer::ready(Err(gateway.budget.exhausted()), memory),
                    Frame::Slow => {
                        reading = false;
                        let refusal = Refusal::Timeout { what: "line", limit: limits.body_timeout };
                        Answer::ready(Err(refusal), memory)
                    }
                    Frame::Idle | Frame::End => unreachable!("handled above"),
                };
                in_flight.push_back(answer);
            }
        }
    }
    timeout(limits.write_timeout, writer.shutdown()).await.unwrap_or(Ok(()))
}

/// Publishes the readings of a line. The protocol carries no trace context, so each line starts a trace. `memory` is
/// held until the answer is written.
fn ingest_line(
    gateway: &Arc<GatewayContext>,
    line: &[u8],
    caller: Caller,
    memory: Option<Reservation>,
) -> BoxFuture<'static, Answer> {
    let payload = match (gateway.budget.reserve(line.len()), memory.is_some()) {
        (Ok(reserved), true) => Payload::new(line.to_vec(), false, reserved),
        (Err(refusal), _) => return Answer::ready(Err(refusal), memory),
        (Ok(_), false) => return Answer::ready(Err(gateway.budget.exhausted()), memory),
    };
    let Begun { context, span } = gateway.traces.begin(None, SpanKind::Server, |span| {
        span.name("line");
        span.set("network.transport", "tcp");
    });
    let (gateway, span) = (Arc::clone(gateway), span.map(Box::new));
    async move {
        let sender = Sender { caller, idempotency_key: None, trace: context.clone() };
        let outcome = gateway.ingest.ingest_readings("", payload, sender).await;
        if let Some(span) = span {
            finish(*span, &outcome);
        }
        Answer { outcome: outcome.map(Reply::Receipts), trace: context, memory }
    }
    .boxed()
}

fn finish(mut span: Span, outcome: &Result<Receipts, Refusal>) {
    match outcome {
        Ok(receipts) => {
            span.set("garenne.records", i64::try_from(receipts.ids.len()).unwrap_or(i64::MAX));
        }
        Err(refusal) => {
            span.set("error.type", refusal.code());
            if refusal.status() >= 500 {
                span.failed(refusal.to_string());
            }
        }
    }
}

const AUTH_FIRST: &str = "the first line must be auth TOKEN";

/// The result of authenticating a line.
enum LineAuth {
    Caller(Caller),
    Welcome(String),
    /// The connection is closed after this answer, so that guessing a token costs a connection per guess.
    Refused(Refusal),
}

/// Authenticates a line: `auth TOKEN` sets the caller, and any other line needs a caller whose token is still valid.
fn authenticate(line: &[u8], caller: &mut Option<Caller>, gateway: &GatewayContext, peer: &Peer) -> LineAuth {
    if let Some(token) = line.strip_prefix(b"auth ") {
        let token = str::from_utf8(token).unwrap_or_default().trim();
        return match gateway.access.caller(peer, Some(token)) {
            Ok(known) => {
                let name = known.name().to_owned();
                *caller = Some(known);
                LineAuth::Welcome(name)
            }
            Err(refusal) => LineAuth::Refused(refusal),
        };
    }
    let Some(known) = caller else {
        return LineAuth::Refused(Refusal::Unauthorized(AUTH_FIRST));
    };
    match gateway.access.refresh_caller(known) {
        Ok(()) => LineAuth::Caller(known.clone()),
        Err(refusal) => LineAuth::Refused(refusal),
    }
}

/// Answers that are written together, and their memory reservations.
#[derive(Default)]
struct WriteBuffer {
    bytes: Vec<u8>,
    memory: Vec<Reservation>,
}

impl WriteBuffer {
    /// Adds one line: `ok <id>…` with one id per record, or `error <code> <message>`.
    fn add(&mut self, Answer { outcome, trace, memory }: Answer, gateway: &GatewayContext, peer: &Peer) {
        self.memory.extend(memory);
        let out = &mut self.bytes;
        match outcome {
            Ok(Reply::Welcome(name)) => {
                gateway.instruments.answered("tcp", "welcome", 0);
                out.extend_from_slice(format!("ok {name}").as_bytes());
            }
            Ok(Reply::Receipts(Receipts { ids, memory })) => {
                gateway.instruments.answered("tcp", "ok", ids.len());
                out.extend_from_slice(b"ok");
                for id in &ids {
                    out.push(b' ');
                    out.extend_from_slice(id.as_str().as_bytes());
                }
                self.memory.push(memory);
            }
            Err(refusal) => {
                gateway.instruments.answered("tcp", refusal.code(), 0);
                audit(peer, "tcp", refusal.code(), trace.as_ref());
                let text = refusal.to_string().replace(['\r', '\n'], " ");
                out.extend_from_slice(format!("error {} {text}", refusal.code()).as_bytes());
            }
        }
        out.push(b'\n');
    }

    /// Empties the buffer after a write.
    fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(WRITE_SIZE);
        self.memory.clear();
    }
}
