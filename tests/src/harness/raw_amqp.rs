//! An AMQP 0-9-1 client that encodes its frames itself. It can send what libraries refuse: short strings that are not
//! UTF-8, unknown field types, tables of any depth, frames of an exact size. It returns received messages as bytes,
//! also those that lapin cannot parse.
//!
//! Every answer has a timeout, so no call hangs.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use bytes::BytesMut;
use garenne_amqp_kit::frame::{BODY, Frame, HEADER, HEARTBEAT, Method, short};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

mod message;
mod received;

pub use message::{Property, RawMessage, Table};
use received::Reader;
pub use received::Received;

/// Timeout of one answer of the broker.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of unconfirmed messages of [`RawClient::publish_all`].
const MAX_IN_FLIGHT: usize = 200;

/// The broker's answer to one publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The broker stored the message, or no queue was bound for it.
    Confirmed,
    /// The broker refused to store the message.
    Refused,
    /// The broker closed the connection or the channel, with this code and text, before it confirmed this message.
    /// The message that caused the close is the first one with this outcome or a later one.
    Closed(u16, String),
}

/// One connection with one channel in confirm mode. It cannot be used after the broker closed it.
#[derive(Debug)]
pub struct RawClient {
    stream: TcpStream,
    /// Received bytes that are not a complete frame yet.
    unread: BytesMut,
    frame_max: usize,
    /// The delivery tag of the last publish.
    last_tag: u64,
    /// The answers by delivery tag; `None` while there is none.
    answers: BTreeMap<u64, Option<Outcome>>,
    returned: usize,
    closed: Option<(u16, String)>,
}

impl RawClient {
    /// Connects as the user of a URL and opens a channel in confirm mode.
    pub async fn connect(url: &str) -> Result<Self> {
        let url = reqwest::Url::parse(url).context("the broker's URL")?;
        let address = (url.host_str().context("a host")?.to_owned(), url.port().unwrap_or(5672));
        let stream = timeout(ANSWER_TIMEOUT, TcpStream::connect(address)).await??;
        stream.set_nodelay(true)?;
        let mut client = Self {
            stream,
            unread: BytesMut::new(),
            frame_max: 0,
            last_tag: 0,
            answers: BTreeMap::new(),
            returned: 0,
            closed: None,
        };
        let vhost = url.path().trim_start_matches('/').replace("%2f", "/").replace("%2F", "/");
        client.open(url.username(), url.password().unwrap_or_default(), &vhost).await?;
        Ok(client)
    }

    async fn open(&mut self, user: &str, password: &str, vhost: &str) -> Result<()> {
        self.write(b"AMQP\x00\x00\x09\x01").await?;
        self.expect(Method::CONNECTION_START).await?;
        // With this capability the broker says why it refuses a password.
        let capabilities = Table::new().field("authentication_failure_close", b't', &[1]);
        let mut arguments = Table::new().table("capabilities", &capabilities).sized();
        arguments.extend(short("PLAIN"));
        let answer = [&[0], user.as_bytes(), &[0], password.as_bytes()].concat();
        arguments.extend(u32::try_from(answer.len())?.to_be_bytes());
        arguments.extend(answer);
        arguments.extend(short("en_US"));
        self.write(&Method::CONNECTION_START_OK.frame(0, &arguments)).await?;
        let tune = self.expect(Method::CONNECTION_TUNE).await?;
        let mut tune = Reader(tune.arguments());
        let channel_max = tune.u16()?;
        let frame_max = tune.u32()?;
        self.frame_max = frame_max as usize;
        // No heartbeats, so that a test that is paused does not lose its connection.
        let tuned = [&channel_max.to_be_bytes()[..], &frame_max.to_be_bytes(), &[0, 0]].concat();
        self.write(&Method::CONNECTION_TUNE_OK.frame(0, &tuned)).await?;
        self.write(&Method::CONNECTION_OPEN.frame(0, &[short(vhost), vec![0, 0]].concat())).await?;
        self.expect(Method::CONNECTION_OPEN_OK).await?;
        self.write(&Method::CHANNEL_OPEN.frame(1, &[0])).await?;
        self.expect(Method::CHANNEL_OPEN_OK).await?;
        self.write(&Method::CONFIRM_SELECT.frame(1, &[0])).await?;
        self.expect(Method::CONFIRM_SELECT_OK).await?;
        Ok(())
    }

    /// The negotiated maximum size of a frame in bytes, all of it counted. The broker accepts eight bytes more.
    #[must_use]
    pub fn frame_max(&self) -> usize {
        self.frame_max
    }

    /// Code and text with which the broker closed the connection or the channel, if it did.
    #[must_use]
    pub fn closed(&self) -> Option<&(u16, String)> {
        self.closed.as_ref()
    }

    /// The number of mandatory messages that the broker has returned as unroutable.
    #[must_use]
    pub fn returned(&self) -> usize {
        self.returned
    }

    /// Publishes a message and waits for the broker's answer.
    ///
    /// # Errors
    /// If there is no answer in time, or the connection ended without a close.
    pub async fn publish(&mut self, message: &RawMessage) -> Result<Outcome> {
        let tag = self.send(message).await?;
        self.answer(tag).await
    }

    /// Publishes many messages, several in flight at a time, and returns the answers in the same order. After a close,
    /// the rest is not sent and has the outcome [`Outcome::Closed`].
    pub async fn publish_all(&mut self, messages: &[RawMessage]) -> Result<Vec<Outcome>> {
        let (mut tags, mut outcomes) =
            (Vec::with_capacity(messages.len()), Vec::with_capacity(messages.len()));
        for message in messages {
            tags.push(self.send(message).await?);
            if tags.len() - outcomes.len() == MAX_IN_FLIGHT {
                outcomes.push(self.answer(tags[outcomes.len()]).await?);
            }
        }
        while outcomes.len() < tags.len() {
            outcomes.push(self.answer(tags[outcomes.len()]).await?);
        }
        Ok(outcomes)
    }

    /// Sends a message without waiting, and returns the tag for [`answer`](Self::answer).
    pub async fn send(&mut self, message: &RawMessage) -> Result<u64> {
        self.last_tag += 1;
        self.answers.insert(self.last_tag, None);
        if self.closed.is_none() {
            let bytes = message.frames(self.frame_max);
            // A broker that closes the connection still sends the reason, which is read here.
            if let Err(error) = self.write(&bytes).await {
                while self.closed.is_none() {
                    self.advance().await.with_context(|| format!("after: {error:#}"))?;
                }
            }
        }
        Ok(self.last_tag)
    }

    /// Waits for the answer to one publish.
    ///
    /// # Errors
    /// If there is none in time, the tag is unknown or was already answered, or the connection ended without a close.
    pub async fn answer(&mut self, tag: u64) -> Result<Outcome> {
        loop {
            match self.answers.get(&tag) {
                None => bail!("tag {tag} is unknown or was already answered"),
                Some(Some(_)) => {
                    return Ok(self.answers.remove(&tag).flatten().expect("the entry was just found"));
                }
                Some(None) => {}
            }
            if let Some((code, text)) = self.closed.clone() {
                self.answers.remove(&tag);
                return Ok(Outcome::Closed(code, text));
            }
            self.advance().await?;
        }
    }

    /// Takes a message from a queue, if one is ready. It is acknowledged automatically.
    pub async fn get(&mut self, queue: &str) -> Result<Option<Received>> {
        self.get_with(queue, true).await
    }

    /// Reads a message of a queue without acknowledging it. It is requeued when this client is dropped.
    pub async fn peek(&mut self, queue: &str) -> Result<Option<Received>> {
        self.get_with(queue, false).await
    }

    async fn get_with(&mut self, queue: &str, no_ack: bool) -> Result<Option<Received>> {
        let arguments = [&[0, 0], &short(queue)[..], &[u8::from(no_ack)]].concat();
        self.write(&Method::BASIC_GET.frame(1, &arguments)).await?;
        let frame = loop {
            ensure!(self.closed.is_none(), "get from {queue}: {:?}", self.closed);
            let frame = self.read_frame().await?;
            match frame.method() {
                Some(Method::BASIC_GET_OK) => break frame,
                Some(Method::BASIC_GET_EMPTY) => return Ok(None),
                _ => self.process(&frame).await?,
            }
        };
        let mut arguments = Reader(frame.arguments());
        let _tag = arguments.u64()?;
        let redelivered = arguments.u8()? != 0;
        let (exchange, routing_key) = (arguments.short()?.to_vec(), arguments.short()?.to_vec());
        let header = self.content(HEADER).await?;
        let size = Reader(header.get(4..).context("a short header frame")?).u64()?;
        let mut body = Vec::new();
        while (body.len() as u64) < size {
            body.extend(self.content(BODY).await?);
        }
        Ok(Some(Received { redelivered, exchange, routing_key, header, body }))
    }

    /// Reads a header or body frame of a content; only heartbeats may come between its frames.
    async fn content(&mut self, kind: u8) -> Result<Vec<u8>> {
        loop {
            let frame = self.read_frame().await?;
            if frame.kind() == kind {
                return Ok(frame.payload().to_vec());
            }
            ensure!(frame.kind() == HEARTBEAT, "a frame of type {} within a content", frame.kind());
        }
    }

    async fn expect(&mut self, method: Method) -> Result<Frame> {
        loop {
            let frame = self.read_frame().await?;
            if frame.method() == Some(method) {
                return Ok(frame);
            }
            self.process(&frame).await?;
            ensure!(self.closed.is_none(), "{method:?} was not answered: {:?}", self.closed);
        }
    }

    /// Reads and processes one frame.
    async fn advance(&mut self) -> Result<()> {
        let frame = self.read_frame().await?;
        self.process(&frame).await
    }

    async fn process(&mut self, frame: &Frame) -> Result<()> {
        let mut arguments = Reader(frame.arguments());
        match frame.method() {
            Some(method @ (Method::BASIC_ACK | Method::BASIC_NACK)) => {
                let (tag, multiple) = (arguments.u64()?, arguments.u8()? & 1 == 1);
                let outcome = if method == Method::BASIC_ACK { Outcome::Confirmed } else { Outcome::Refused };
                let from = if multiple { 0 } else { tag };
                for (_, answer) in self.answers.range_mut(from..=tag).filter(|(_, answer)| answer.is_none()) {
                    *answer = Some(outcome.clone());
                }
            }
            Some(Method::BASIC_RETURN) => {
                self.returned += 1;
                let header = self.content(HEADER).await?;
                let size = Reader(header.get(4..).context("a short header frame")?).u64()?;
                let mut read = 0;
                while read < size {
                    read += self.content(BODY).await?.len() as u64;
                }
            }
            Some(method @ (Method::CONNECTION_CLOSE | Method::CHANNEL_CLOSE)) => {
                let (code, text) = (arguments.u16()?, arguments.short()?);
                self.closed = Some((code, String::from_utf8_lossy(text).into_owned()));
                let (channel, answer) = if method == Method::CONNECTION_CLOSE {
                    (0, Method::CONNECTION_CLOSE_OK)
                } else {
                    (1, Method::CHANNEL_CLOSE_OK)
                };
                let _ = self.write(&answer.frame(channel, &[])).await;
            }
            _ => {}
        }
        Ok(())
    }

    async fn read_frame(&mut self) -> Result<Frame> {
        loop {
            if let Some(frame) = Frame::take(&mut self.unread) {
                return Ok(frame);
            }
            let read = timeout(ANSWER_TIMEOUT, self.stream.read_buf(&mut self.unread))
                .await
                .with_context(|| format!("the broker was silent for {ANSWER_TIMEOUT:?}"))??;
            ensure!(read > 0, "the broker ended the connection without a close");
        }
    }

    /// Writes any bytes to the connection.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        timeout(ANSWER_TIMEOUT, self.stream.write_all(bytes))
            .await
            .with_context(|| format!("the broker read nothing for {ANSWER_TIMEOUT:?}"))??;
        Ok(())
    }
}
