//! The TCP line protocol: one JSON document per line, answered in order. A connection whose first line is in InfluxDB's
//! protocol is handed over to [`influx`].

mod answers;
mod command;
mod influx;
mod line;

use std::{io, pin::pin, sync::Arc};

use axum::http::StatusCode;
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesOrdered};
use garenne_map::Map;
use garenne_protocol::sensor::parse::Form;
use tokio::{
    io::{AsyncRead, AsyncWriteExt},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    auth::{Caller, Peer},
    client_stream::Transport,
    context::GatewayContext,
    expiry,
    influx::Precision,
    line_reader::{Frame, LineReader},
    maps::Maps,
    memory::{Account, Reservation},
    readings_format::ReadingsFormat,
    refusal::Refusal,
};
use answers::Answers;
use command::{Command, is_influx, precision};
use influx::InfluxSession;
use line::{Answer, Line, Reply, WRITE_SIZE, WriteBuffer};

/// Longest line before authentication, in bytes: `auth` and a token.
const MAX_AUTH_LINE: usize = 4096;
/// Memory of a line whose answer is outstanding, besides its bytes and its tasks.
const LINE_OVERHEAD: usize = 1024;

/// Serves one connection until the sender closes it, sends nothing for `idle_timeout`, or `stop` is cancelled. Then
/// it reads no more lines and answers those that it has read.
pub(super) async fn serve(
    stream: impl Transport,
    gateway: &Arc<GatewayContext>,
    peer: &Peer,
    memory: &Account,
    stop: &CancellationToken,
) -> io::Result<()> {
    let limits = &gateway.limits;
    let (reader, mut writer) = tokio::io::split(stream);
    let mut lines = LineReader::new(reader, limits.idle_timeout, limits.body_timeout, memory.empty());
    let mut session = Session::new(gateway, peer, memory);
    let mut buffer = WriteBuffer::default();
    // One registration for the whole connection: the token is shared by all of them.
    let mut stopped = pin!(stop.cancelled());
    while session.reading || !session.in_flight.is_empty() {
        session.short_of_memory &= !session.in_flight.is_empty();
        let (reading, takes_lines) = (session.reading, session.takes_lines());
        let longest = session.longest_line();
        let expires = session.caller.as_ref().and_then(|caller| caller.expires);
        tokio::select! {
            biased;
            Some(answer) = session.in_flight.next(), if !session.in_flight.is_empty() => {
                buffer.add(answer, gateway, peer);
                // Answers that are ready go out in the same write.
                while buffer.bytes.len() < WRITE_SIZE
                    && let Some(Some(answer)) = session.in_flight.next().now_or_never()
                {
                    buffer.add(answer, gateway, peer);
                }
                // Flushed before the next wait: TLS buffers what the socket did not take.
                let writing = async {
                    writer.write_all(&buffer.bytes).await?;
                    writer.flush().await
                };
                timeout(limits.write_timeout, writing).await??;
                buffer.clear();
                lines.answered();
            }
            () = &mut stopped, if reading => session.reading = false,
            () = expiry::reached(expires), if reading => session.end(Refusal::expired()),
            frame = lines.next(longest), if takes_lines => {
                let mut frame = Some(frame?);
                // Lines that arrived together are published together.
                while let Some(next) = frame {
                    session.take(next, &mut lines);
                    frame = session.takes_lines().then(|| lines.buffered(session.longest_line())).flatten();
                }
            }
        }
    }
    let Session { caller: Some(caller), handover: Some(Handover { precision, first }), .. } = session else {
        return timeout(limits.write_timeout, writer.shutdown()).await.unwrap_or(Ok(()));
    };
    let answers = Answers::new(writer, memory.empty());
    let session = InfluxSession::new(gateway, peer, memory.clone(), caller, precision, lines, answers);
    // Boxed, because every connection reserves memory for the largest of its futures.
    Box::pin(session.serve(first, stop)).await
}

/// The meaning of the lines of a connection.
enum Format {
    /// JSON, or InfluxDB's protocol if the first line is in it.
    Undecided,
    Json,
    /// Payloads for a map, as if they were sent to this path over HTTP.
    Mapped {
        map: Arc<Map>,
        path: Arc<str>,
    },
}

/// The end of a connection's JSON: later lines are in InfluxDB's protocol.
struct Handover {
    precision: Precision,
    /// A line that was read already.
    first: Option<Bytes>,
}

/// The request of a line.
enum Step {
    Answer(BoxFuture<'static, Answer>),
    Influx(Handover),
}

/// The lines of a connection whose answers are outstanding, and whether more are read.
struct Session<'a> {
    gateway: &'a Arc<GatewayContext>,
    peer: &'a Peer,
    memory: &'a Account,
    /// `None` until the sender authenticates, if that is required.
    caller: Option<Arc<Caller>>,
    format: Format,
    handover: Option<Handover>,
    in_flight: FuturesOrdered<BoxFuture<'static, Answer>>,
    reading: bool,
    /// No memory was left for a line's answer. No line is read until the answers before it are written.
    short_of_memory: bool,
}

impl<'a> Session<'a> {
    fn new(gateway: &'a Arc<GatewayContext>, peer: &'a Peer, memory: &'a Account) -> Self {
        let caller = gateway.access.caller(peer, None).ok();
        Self {
            gateway,
            peer,
            memory,
            caller,
            format: Format::Undecided,
            handover: None,
            in_flight: FuturesOrdered::new(),
            reading: true,
            short_of_memory: false,
        }
    }

    fn takes_lines(&self) -> bool {
        let has_room = self.in_flight.len() < self.gateway.limits.max_in_flight
            && (self.in_flight.is_empty() || !self.memory.should_wait());
        self.reading && !self.short_of_memory && has_room
    }

    fn longest_line(&self) -> usize {
        let longest = self.gateway.limits.max_line.bytes();
        if self.caller.is_some() { longest } else { longest.min(MAX_AUTH_LINE) }
    }

    /// Answers with `refusal` and reads no more.
    fn end(&mut self, refusal: Refusal) {
        self.reading = false;
        self.in_flight.push_back(Answer::ready(Err(refusal), None));
    }

    fn take(&mut self, frame: Frame, lines: &mut LineReader<impl AsyncRead + Unpin>) {
        let gateway = self.gateway;
        let limits = &gateway.limits;
        let line = match frame {
            Frame::Idle if !self.in_flight.is_empty() => return lines.answered(),
            Frame::Idle | Frame::End => {
                self.reading = false;
                return;
            }
            Frame::Line(line) => Ok(line),
            Frame::TooLong if self.caller.is_none() => Err(Refusal::unauthorized(AUTH_FIRST)),
            Frame::TooLong => Err(Refusal::too_large("line", limits.max_line)),
            Frame::NoMemory => Err(self.memory.exhausted()),
            Frame::Slow => Err(Refusal::timeout("line", limits.body_timeout)),
        };
        let mut memory = self.memory.reserve(LINE_OVERHEAD).ok();
        self.short_of_memory = memory.is_none();
        match line.and_then(|line| self.step(&line, &mut memory)) {
            Ok(Step::Answer(answer)) => self.in_flight.push_back(answer),
            Ok(Step::Influx(handover)) => {
                self.reading = false;
                self.handover = Some(handover);
            }
            Err(refusal) => {
                // Closed after the answer: a slow line cannot be skipped, guessing a token shall cost a connection per
                // guess, and later lines are for a map that does not exist.
                let last = [StatusCode::UNAUTHORIZED, StatusCode::REQUEST_TIMEOUT, StatusCode::NOT_FOUND];
                self.reading = !last.contains(&refusal.status);
                self.in_flight.push_back(Answer::ready(Err(refusal), memory));
            }
        }
    }

    /// Starts what a line asks for. Takes `memory`, unless the line is refused.
    fn step(&mut self, line: &Bytes, memory: &mut Option<Reservation>) -> Result<Step, Refusal> {
        let (gateway, peer) = (self.gateway, self.peer);
        // No command begins like a JSON document.
        let command = if matches!(line.first(), Some(b'{' | b'[')) { None } else { Command::parse(line) };
        if let Some(Command::Auth(token)) = command {
            let known = self.caller.insert(gateway.access.caller(peer, Some(token))?);
            return Ok(Step::done(&known.name, memory));
        }
        let known = self.caller.as_ref().ok_or_else(|| Refusal::unauthorized(AUTH_FIRST))?;
        let current = gateway.access.renewed(known, peer)?;
        match command {
            Some(Command::Map(name)) => {
                self.format = Format::Mapped { map: gateway.maps.get(name)?, path: Maps::path(name) };
                Ok(Step::done(name, memory))
            }
            Some(Command::Influx(given)) => {
                Ok(Step::Influx(Handover { precision: precision(given)?, first: None }))
            }
            _ if matches!(self.format, Format::Undecided) && is_influx(line) => {
                Ok(Step::Influx(Handover { precision: precision(None)?, first: Some(line.clone()) }))
            }
            _ => {
                let memory = memory.take().ok_or_else(|| self.memory.exhausted())?;
                let line = Line::new(
                    gateway,
                    Arc::clone(&current),
                    self.format.of_line(),
                    line,
                    self.memory,
                    memory,
                );
                self.caller = Some(current);
                Ok(Step::Answer(line.answered(Arc::clone(gateway))))
            }
        }
    }
}

impl Step {
    fn done(name: &str, memory: &mut Option<Reservation>) -> Self {
        Self::Answer(Answer::ready(Ok(Reply::Done(name.into())), memory.take()))
    }
}

impl Format {
    /// The format of a line that is no command. The first one decides.
    fn of_line(&mut self) -> ReadingsFormat {
        match self {
            Self::Mapped { map, path } => {
                ReadingsFormat::Mapped { map: Arc::clone(map), path: Arc::clone(path) }
            }
            Self::Undecided | Self::Json => {
                *self = Self::Json;
                ReadingsFormat::Json(Form::Json)
            }
        }
    }
}

const AUTH_FIRST: &str = "the first line must be auth TOKEN";
