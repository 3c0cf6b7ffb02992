//! The TCP line protocol: one JSON document a line, answered in order.

use std::{io, sync::Arc};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesOrdered};
use garenne_common::{
    task::{TaskId, TraceContext},
    telemetry::traces::{Begun, Span, SpanKind},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    accept::Parts,
    audit,
    auth::{Caller, Peer},
    frame::{Frame, Lines},
    refusal::Refusal,
};

/// What a line is answered with.
enum Reply {
    /// A receipt per record.
    Receipts(Vec<TaskId>),
    /// The token is known, by this name.
    Welcome(String),
}

/// An answer, and the trace that its line is in.
type Answer = (Result<Reply, Refusal>, Option<TraceContext>);

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
    let mut lines = Lines::new(reader, limits.max_line.bytes(), limits.idle_timeout, limits.body_timeout);
    let mut under_way: FuturesOrdered<BoxFuture<'static, Answer>> = FuturesOrdered::new();
    let mut out = Vec::new();
    let mut reading = true;
    // Nobody yet, where a token is needed.
    let mut caller = parts.access.caller(peer, None).ok();
    while reading || !under_way.is_empty() {
        tokio::select! {
            biased;
            Some(answer) = under_way.next(), if !under_way.is_empty() => {
                write_answer(&mut out, answer, parts, peer);
                // What else is answered already goes out in the same write.
                while let Some(Some(answer)) = under_way.next().now_or_never() {
                    write_answer(&mut out, answer, parts, peer);
                }
                match timeout(limits.write_timeout, writer.write_all(&out)).await {
                    Ok(written) => written?,
                    Err(_) => return Err(io::ErrorKind::TimedOut.into()),
                }
                out.clear();
                lines.answered();
            }
            () = stop.cancelled(), if reading => reading = false,
            frame = lines.next(), if reading && under_way.len() < limits.max_in_flight => {
                match frame? {
                    Frame::Line(line) => match admit(&line, &mut caller, parts, peer) {
                        Admitted::Sender(caller) => under_way.push_back(taken(parts, &line, &caller)),
                        Admitted::Welcome(name) => {
                            under_way.push_back(async { (Ok(Reply::Welcome(name)), None) }.boxed());
                        }
                        Admitted::Refused(refusal) => {
                            under_way.push_back(async { (Err(refusal), None) }.boxed());
                            reading = false;
                        }
                    },
                    Frame::TooLong => {
                        let refusal = Refusal::TooLarge { what: "line", limit: limits.max_line };
                        under_way.push_back(async { (Err(refusal), None) }.boxed());
                    }
                    Frame::Idle if !under_way.is_empty() => lines.answered(),
                    Frame::Slow => {
                        let refusal = Refusal::Timeout { what: "line", limit: limits.body_timeout };
                        under_way.push_back(async { (Err(refusal), None) }.boxed());
                        reading = false;
                    }
                    Frame::Idle | Frame::End => reading = false,
                }
            }
        }
    }
    timeout(limits.write_timeout, writer.shutdown()).await.unwrap_or(Ok(()))
}

/// A line of readings, whose sender cannot say which trace it is in: each begins one. It is read at once and only
/// its tasks are held until they are safe: many lines are under way.
fn taken(parts: &Arc<Parts>, line: &[u8], caller: &Caller) -> BoxFuture<'static, Answer> {
    let Begun { context, span } = parts.traces.begin(None, SpanKind::Server, |span| {
        span.name("line");
        span.set("network.transport", "tcp");
    });
    let tasks = parts.ingest.reading_tasks("", line, caller, None, context.clone());
    let (parts, span) = (Arc::clone(parts), span.map(Box::new));
    async move {
        let outcome = match tasks {
            Ok(tasks) => parts.ingest.deliver(tasks).await,
            Err(refusal) => Err(refusal),
        };
        if let Some(span) = span {
            finish(*span, &outcome);
        }
        (outcome.map(Reply::Receipts), context)
    }
    .boxed()
}

fn finish(mut span: Span, outcome: &Result<Vec<TaskId>, Refusal>) {
    match outcome {
        Ok(ids) => span.set("garenne.records", i64::try_from(ids.len()).unwrap_or(i64::MAX)),
        Err(refusal) => {
            span.set("error.type", refusal.code());
            if refusal.status() >= 500 {
                span.failed(refusal.to_string());
            }
        }
    }
}

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
        let words = "begin with a line auth TOKEN";
        return Admitted::Refused(Refusal::Unauthorized(words));
    };
    match parts.access.still(known) {
        Ok(()) => Admitted::Sender(known.clone()),
        Err(refusal) => Admitted::Refused(refusal),
    }
}

/// `ok <id>…` with an id per record, or `error <code> <message>`; one line each.
fn write_answer(out: &mut Vec<u8>, (answer, trace): Answer, parts: &Parts, peer: &Peer) {
    match answer {
        Ok(Reply::Welcome(name)) => {
            parts.instruments.answered("tcp", "welcome", 0);
            out.extend_from_slice(format!("ok {name}").as_bytes());
        }
        Ok(Reply::Receipts(ids)) => {
            parts.instruments.answered("tcp", "ok", ids.len());
            out.extend_from_slice(b"ok");
            for id in &ids {
                out.push(b' ');
                out.extend_from_slice(id.as_str().as_bytes());
            }
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
