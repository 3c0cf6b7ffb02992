//! InfluxDB's line protocol over TCP, as Telegraf's `socket_writer` sends it.
//!
//! Such a sender reads no answers, so an accepted line has none. The lines that arrived together are published, and
//! nothing more is read before they are stored. While they cannot be stored, the sender is held back by its full
//! connection: it can neither be told to send them again nor lose them. Refused lines are answered if the sender reads.

use std::{io, sync::Arc};

use axum::http::StatusCode;
use bytes::Bytes;
use garenne_common::telemetry::traces::{Begun, Span, SpanKind};
use garenne_protocol::task::TraceContext;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::answers::Answers;
use crate::{
    auth::{Caller, Peer},
    context::GatewayContext,
    expiry,
    influx::Precision,
    ingest::{Stored, now},
    line_batch::{LineBatch, LineParser, RefusedLine},
    line_reader::{Frame, LineReader},
    memory::Account,
    payload::Payload,
    record_tasks::RequestProperties,
    refusal::Refusal,
    request::{Request, handle},
};

/// The protocol in metrics and logs.
const PROTOCOL: &str = "influx-tcp";

/// A connection whose lines are in InfluxDB's protocol.
pub(super) struct InfluxSession<'a, R, W> {
    gateway: &'a Arc<GatewayContext>,
    peer: &'a Peer,
    memory: Account,
    caller: Arc<Caller>,
    precision: Precision,
    lines: LineReader<R>,
    answers: Answers<W>,
    /// Whether more lines are read.
    reading: bool,
    /// Whether the sender may send nothing any more.
    refused: bool,
}

impl<'a, R: AsyncRead + Unpin, W: AsyncWrite + Unpin> InfluxSession<'a, R, W> {
    pub(super) fn new(
        gateway: &'a Arc<GatewayContext>,
        peer: &'a Peer,
        memory: Account,
        caller: Arc<Caller>,
        precision: Precision,
        mut lines: LineReader<R>,
        answers: Answers<W>,
    ) -> Self {
        lines.wait_for_memory();
        Self { gateway, peer, memory, caller, precision, lines, answers, reading: true, refused: false }
    }

    /// Serves the connection until the sender closes it, sends nothing for `idle_timeout`, or `stop` is cancelled. Then
    /// it reads no more lines and stores those that it has read. `first` is a line that was read already.
    pub(super) async fn serve(mut self, first: Option<Bytes>, stop: &CancellationToken) -> io::Result<()> {
        let mut batch = LineBatch::new(self.precision, now());
        if let Some(line) = first {
            batch.add(self.lines.number(), line);
        }
        let mut ended = Ok(());
        while !self.refused {
            if batch.is_empty() && self.reading {
                ended = self.wait_for_line(&mut batch, stop).await;
                self.reading &= ended.is_ok();
            }
            self.take_buffered(&mut batch);
            if batch.is_empty() && !self.reading {
                break;
            }
            let lines = std::mem::replace(&mut batch, LineBatch::new(self.precision, now()));
            self.store(lines, stop).await;
            self.lines.answered();
        }
        let closed = self.answers.close(self.gateway.limits.write_timeout).await;
        ended.and(closed)
    }

    fn longest_line(&self) -> usize {
        self.gateway.limits.max_line.bytes()
    }

    async fn wait_for_line(&mut self, batch: &mut LineBatch, stop: &CancellationToken) -> io::Result<()> {
        let longest = self.longest_line();
        tokio::select! {
            biased;
            () = stop.cancelled() => self.reading = false,
            () = expiry::reached(self.caller.expires) => self.refuse_sender(&Refusal::expired()),
            frame = self.lines.next(longest) => {
                // Lines without a timestamp have the time of their arrival.
                *batch = LineBatch::new(self.precision, now());
                self.take(frame?, batch);
            }
            never = self.answers.write() => match never {},
        }
        Ok(())
    }

    /// Takes the lines that have arrived already.
    fn take_buffered(&mut self, batch: &mut LineBatch) {
        while !self.refused
            && !batch.is_full(&self.gateway.limits)
            && let Some(frame) = self.lines.buffered(self.longest_line())
        {
            self.take(frame, batch);
        }
    }

    fn take(&mut self, frame: Frame, batch: &mut LineBatch) {
        let (gateway, number) = (self.gateway, self.lines.number());
        let limits = &gateway.limits;
        match frame {
            Frame::Line(line) => batch.add(number, line),
            Frame::TooLong => {
                self.refuse(number, &Refusal::too_large("line", limits.max_line).of_line(number), None);
            }
            Frame::NoMemory => self.refuse(number, &self.memory.exhausted().of_line(number), None),
            Frame::Slow => self.end_in_line(&Refusal::timeout("line", limits.body_timeout)),
            Frame::End if self.lines.is_in_line() => self.end_in_line(&Refusal::unfinished_line()),
            Frame::End | Frame::Idle => self.reading = false,
        }
    }

    /// Refuses the line that has not ended and reads no more.
    fn end_in_line(&mut self, refusal: &Refusal) {
        let number = self.lines.number() + 1;
        self.refuse(number, &refusal.of_line(number), None);
        self.reading = false;
    }

    /// Stores the lines of a batch. Those that cannot be stored now are tried again until they are, or until `stop` is
    /// cancelled.
    async fn store(&mut self, batch: LineBatch, stop: &CancellationToken) {
        if batch.is_empty() {
            return;
        }
        let Begun { context, span } = self.gateway.traces.begin(None, SpanKind::Server, |span| {
            span.name("lines");
            span.set("network.transport", "tcp");
        });
        let (mut waiting, mut records) = (vec![batch], 0);
        while let Some(batch) = waiting.pop() {
            match self.attempt(&batch, context.clone()).await {
                Ok((receipts, refused)) => {
                    records += receipts.ids.len();
                    let accepted = batch.len() - refused.iter().filter(|line| line.is_whole).count();
                    self.gateway.instruments.lines_accepted(PROTOCOL, accepted, receipts.ids.len());
                    for RefusedLine { number, refusal, .. } in &refused {
                        self.refuse(*number, refusal, context.as_ref());
                    }
                }
                Err(refusal) if refusal.retry_after.is_some() && !stop.is_cancelled() => {
                    self.pause(&refusal, stop).await;
                    waiting.push(batch);
                }
                // One of the lines may be the cause.
                Err(refusal) if batch.len() > 1 && !is_about_sender(&refusal) => {
                    let [first, second] = batch.halves();
                    waiting.extend([second, first]);
                }
                Err(refusal) => {
                    for number in batch.numbers() {
                        let refusal = refusal.of_line(number);
                        self.refuse(number, &refusal, context.as_ref());
                    }
                }
            }
        }
        end_span(span, records);
    }

    /// Waits until a batch may be stored, and writes answers meanwhile.
    async fn pause(&mut self, refusal: &Refusal, stop: &CancellationToken) {
        let wait = refusal.retry_after.unwrap_or(self.gateway.limits.retry_after);
        // The limit is the sender's own; the other reasons are those for which an HTTP request would have been refused.
        let is_rate = refusal.status == StatusCode::TOO_MANY_REQUESTS;
        let status = if is_rate { refusal.code } else { "delayed" };
        self.gateway.instruments.answered(PROTOCOL, status, 0);
        tokio::select! {
            () = sleep(wait) => {}
            () = stop.cancelled() => {}
            never = self.answers.write() => match never {},
        }
    }

    /// Stores the lines of a batch once.
    async fn attempt(
        &mut self,
        batch: &LineBatch,
        trace: Option<TraceContext>,
    ) -> Result<Stored<Vec<RefusedLine>>, Refusal> {
        let Self { gateway, peer, memory, caller, refused, .. } = self;
        let attempt = Attempt { peer, memory, caller, refused, batch, trace };
        tokio::select! {
            biased;
            stored = handle(gateway, attempt) => stored,
            never = self.answers.write() => match never {},
        }
    }

    /// Counts, logs and answers a refused line.
    fn refuse(&mut self, number: u64, refusal: &Refusal, trace: Option<&TraceContext>) {
        let instruments = &self.gateway.instruments;
        instruments.answered(PROTOCOL, refusal.code, 0);
        instruments.left_out(PROTOCOL, [refusal]);
        instruments.audit.refused_line(self.peer, PROTOCOL, refusal.code, Some(number), trace);
        self.answers.add(&refusal.line());
    }

    /// Refuses the sender itself and reads no more.
    fn refuse_sender(&mut self, refusal: &Refusal) {
        self.refused = true;
        self.gateway.instruments.answered(PROTOCOL, refusal.code, 0);
        self.gateway.instruments.audit.refused(self.peer, PROTOCOL, refusal.code, None);
        self.answers.add(&refusal.line());
    }
}

/// An attempt to store the lines of a batch.
struct Attempt<'a> {
    peer: &'a Peer,
    memory: &'a Account,
    caller: &'a mut Arc<Caller>,
    refused: &'a mut bool,
    batch: &'a LineBatch,
    trace: Option<TraceContext>,
}

impl Request for Attempt<'_> {
    type Format = LineParser;
    type Answer = Result<Stored<Vec<RefusedLine>>, Refusal>;

    /// The sender that the connection has authenticated, as the senders file has it now.
    fn authenticate(&mut self, gateway: &GatewayContext) -> Result<Arc<Caller>, Refusal> {
        let current = gateway.access.renewed(self.caller, self.peer);
        *self.caller = current.inspect_err(|_| *self.refused = true)?;
        Ok(Arc::clone(self.caller))
    }

    async fn read(
        &mut self,
        _: &GatewayContext,
        caller: Arc<Caller>,
    ) -> Result<(RequestProperties, LineParser, Payload), Refusal> {
        let (payload, parser) = self.batch.payload(self.memory)?;
        let properties =
            RequestProperties { caller, idempotency_key: None, trace: self.trace.take(), atomic: false };
        Ok((properties, parser, payload))
    }

    fn answer(self, _: &GatewayContext, stored: Self::Answer) -> Self::Answer {
        stored
    }
}

/// Whether a refusal is not about the lines.
fn is_about_sender(refusal: &Refusal) -> bool {
    refusal.status == StatusCode::UNAUTHORIZED || refusal.retry_after.is_some()
}

fn end_span(span: Option<Span>, records: usize) {
    if let Some(mut span) = span {
        span.set("garenne.records", i64::try_from(records).unwrap_or(i64::MAX));
    }
}
