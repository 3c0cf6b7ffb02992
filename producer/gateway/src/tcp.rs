//! The TCP line protocol: one JSON document a line, answered in order.

use std::{io, sync::Arc};

use futures_util::{
    FutureExt, StreamExt,
    future::{BoxFuture, ready},
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
    frame::{Frame, Lines},
    ingest::Sender,
    memory::Reservation,
    parts::Parts,
    payload::{Payload, Receipts},
    refusal::Refusal,
};

/// The longest line of a sender that is not known yet: `auth` and a token.
const LONGEST_AUTH: usize = 4096;
/// What a line holds while its answer is outstanding, besides its bytes and its tasks.
const LINE: usize = 1024;
/// Answers that are gathered into one write, in bytes, and the largest buffer that is kept for the next ones.
const ONE_WRITE: usize = 64 * 1024;

/// What a line is answered with.
enum Reply {
    /// A receipt per record.
    Receipts(Receipts),
    /// The token is known, by this name.
    Welcome(String),
}

/// An answer, the trace that its line is in, and what both hold until they are written.
struct Answer {
    outcome: Result<Reply, Refusal>,
    trace: Option<TraceContext>,
    memory: Option<Reservation>,
}

impl Answer {
    fn at_once(outcome: Result<Reply, Refusal>, memory: Option<Reservation>) -> BoxFuture<'static, Self> {
        ready(Self { outcome, trace: None, memory }).boxed()
    }
}

/// Serves one connection until the sender closes, is silent for too long, or `stop` is cancelled:
/// then no more lines are read and what is under way is answered.
pub(super) async fn serve<S>(
    stream: S,
    parts: &Arc<Parts>,
    peer: &Peer,
    stop: &CancellationToken,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let limits = &parts.limits;
    let (reader, mut writer) = tokio::io::split(stream);
    // Nobody yet, where a token is needed.
    let mut caller = parts.access.caller(peer, None).ok();
    let longest = limits.max_line.bytes();
    let first = if caller.is_some() { longest } else { longest.min(LONGEST_AUTH) };
    let mut lines = Lines::new(reader, first, limits.idle_timeout, limits.body_timeout, parts.budget.empty());
    let mut under_way: FuturesOrdered<BoxFuture<'static, Answer>> = FuturesOrdered::new();
    let mut written = Written::default();
    let mut reading = true;
    // There was no memory for a line's answer: nothing more is read until those before it are written.
    let mut short_of_memory = false;
    while reading || !under_way.is_empty() {
        short_of_memory &= !under_way.is_empty();
        tokio::select! {
            biased;
            Some(answer) = under_way.next(), if !under_way.is_empty() => {
                written.add(answer, parts, peer);
                // What else is answered already goes out in the same write.
                while written.out.len() < ONE_WRITE
                    && let Some(Some(answer)) = under_way.next().now_or_never()
                {
                    written.add(answer, parts, peer);
                }
                // Flushed before anything is waited for: TLS may hold back what the socket did not take.
                let writing = async {
                    writer.write_all(&written.out).await?;
                    writer.flush().await
                };
                match timeout(limits.write_timeout, writing).await {
                    Ok(done) => done?,
                    Err(_) => return Err(io::ErrorKind::TimedOut.into()),
                }
                written.clear();
                lines.answered();
            }
            () = stop.cancelled(), if reading => reading = false,
            frame = lines.next(), if reading && !short_of_memory && under_way.len() < limits.max_in_flight => {
                let frame = frame?;
                if let Frame::End = frame {
                    reading = false;
                    continue;
                }
                if let Frame::Idle = frame {
                    if under_way.is_empty() { reading = false } else { lines.answered() }
                    continue;
                }
                let memory = parts.budget.reserve(LINE).ok();
                short_of_memory = memory.is_none();
                let answer = match frame {
                    Frame::Line(line) => match admit(&line, &mut caller, parts, peer) {
                        Admitted::Sender(caller) => taken(parts, &line, caller, memory),
                        Admitted::Welcome(name) => {
                            lines.set_limit(longest);
                            Answer::at_once(Ok(Reply::Welcome(name)), memory)
                        }
                        Admitted::Refused(refusal) => {
                            reading = false;
                            Answer::at_once(Err(refusal), memory)
                        }
                    },
                    Frame::TooLong if caller.is_none() => {
                        reading = false;
                        Answer::at_once(Err(Refusal::Unauthorized(BEGIN_WITH_AUTH)), memory)
                    }
                    Frame::TooLong => {
                        let refusal = Refusal::TooLarge { what: "line", limit: limits.max_line };
                        Answer::at_once(Err(refusal), memory)
                    }
                    Frame::NoMemory => Answer::at_once(Err(parts.budget.exhausted()), memory),
                    Frame::Slow => {
                        reading = false;
                        let refusal = Refusal::Timeout { what: "line", limit: limits.body_timeout };
                        Answer::at_once(Err(refusal), memory)
                    }
                    Frame::Idle | Frame::End => unreachable!("handled above"),
                };
                under_way.push_back(answer);
            }
        }
    }
    timeout(limits.write_timeout, writer.shutdown()).await.unwrap_or(Ok(()))
}

/// A line of readings, whose sender cannot say which trace it is in: each begins one. `memory` is the line's own, held
/// until its answer is written.
fn taken(
    parts: &Arc<Parts>,
    line: &[u8],
    caller: Caller,
    memory: Option<Reservation>,
) -> BoxFuture<'static, Answer> {
    let payload = match (parts.budget.reserve(line.len()), memory.is_some()) {
        (Ok(reserved), true) => Payload::new(line.to_vec(), false, reserved),
        (Err(refusal), _) => return Answer::at_once(Err(refusal), memory),
        (Ok(_), false) => return Answer::at_once(Err(parts.budget.exhausted()), memory),
    };
    let Begun { context, span } = parts.traces.begin(None, SpanKind::Server, |span| {
        span.name("line");
        span.set("network.transport", "tcp");
    });
    let (parts, span) = (Arc::clone(parts), span.map(Box::new));
    async move {
        let sender = Sender { caller, idempotency_key: None, trace: context.clone() };
        let outcome = parts.ingest.readings("", payload, sender).await;
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

const BEGIN_WITH_AUTH: &str = "begin with a line auth TOKEN";

enum Admitted {
    Sender(Caller),
    Welcome(String),
    /// The connection ends after this: guessing costs a connection a guess.
    Refused(Refusal),
}

/// `auth TOKEN` makes the sender known; any other line needs it to be known, and still to be.
fn admit(line: &[u8], caller: &mut Option<Caller>, parts: &Parts, peer: &Peer) -> Admitted {
    if let Some(token) = line.strip_prefix(b"auth ") {
        let token = str::from_utf8(token).unwrap_or_default().trim();
        return match parts.access.caller(peer, Some(token)) {
            Ok(known) => {
                let name = known.name().to_owned();
                *caller = Some(known);
                Admitted::Welcome(name)
            }
            Err(refusal) => Admitted::Refused(refusal),
        };
    }
    let Some(known) = caller else {
        return Admitted::Refused(Refusal::Unauthorized(BEGIN_WITH_AUTH));
    };
    match parts.access.refresh_caller(known) {
        Ok(()) => Admitted::Sender(known.clone()),
        Err(refusal) => Admitted::Refused(refusal),
    }
}

/// Answers that go out in one write, and what they hold until then.
#[derive(Default)]
struct Written {
    out: Vec<u8>,
    held: Vec<Reservation>,
}

impl Written {
    /// `ok <id>…` with an id per record, or `error <code> <message>`; one line each.
    fn add(&mut self, Answer { outcome, trace, memory }: Answer, parts: &Parts, peer: &Peer) {
        self.held.extend(memory);
        let out = &mut self.out;
        match outcome {
            Ok(Reply::Welcome(name)) => {
                parts.instruments.answered("tcp", "welcome", 0);
                out.extend_from_slice(format!("ok {name}").as_bytes());
            }
            Ok(Reply::Receipts(Receipts { ids, memory })) => {
                parts.instruments.answered("tcp", "ok", ids.len());
                out.extend_from_slice(b"ok");
                for id in &ids {
                    out.push(b' ');
                    out.extend_from_slice(id.as_str().as_bytes());
                }
                self.held.push(memory);
            }
            Err(refusal) => {
                parts.instruments.answered("tcp", refusal.code(), 0);
                audit(peer, "tcp", refusal.code(), trace.as_ref());
                let text = refusal.to_string().replace(['\r', '\n'], " ");
                out.extend_from_slice(format!("error {} {text}", refusal.code()).as_bytes());
            }
        }
        out.push(b'\n');
    }

    /// All of it is written.
    fn clear(&mut self) {
        self.out.clear();
        self.out.shrink_to(ONE_WRITE);
        self.held.clear();
    }
}
