//! A connection to the MQTT broker.
//!
//! rumqttc's own event loop is not used. It keeps packets in queues that outlive the connection, so that a PUBACK for
//! the old connection could acknowledge another message on the new one. Here all state of a connection ends with it.

use std::{future::pending, io, sync::Arc, time::Duration};

use bytes::BytesMut;
use garenne_common::{client_tls::client_config, config::Certificates};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, copy, sink},
    net::TcpStream,
    time::{Instant, sleep_until, timeout},
};
use tokio_rustls::TlsConnector;

use crate::{
    endpoint::Endpoint,
    frames::{Frame, Frames, TooLarge},
    packet::{Hello, Incoming, ProtocolError, Welcome, write_disconnect, write_ping, write_puback},
    version::Version,
};

/// Time to connect, including TLS and the answer to CONNECT.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time to write the last packets.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes that are allocated at once for reading.
const CHUNK: usize = 16 * 1024;
/// Least free space for a read, in bytes. Payloads share the chunk, so that a reserve beyond its end allocates another.
const MIN_READ: usize = 4 * 1024;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// The broker cannot be reached or does not answer.
    #[error("no MQTT broker at {address}: {problem}")]
    Unavailable {
        /// Host and port.
        address: String,
        problem: String,
    },
    /// The broker refused the connection.
    #[error("the MQTT broker at {address} refused the connection: {reason}")]
    Refused {
        /// Host and port.
        address: String,
        reason: String,
        /// Whether the login is the reason.
        denied: bool,
    },
    /// The broker refused a filter, or has no shared subscriptions.
    #[error("the MQTT broker at {address} refused to subscribe to {filter:?}: {reason}")]
    Subscription {
        /// Host and port.
        address: String,
        filter: String,
        reason: String,
    },
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    /// The connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The broker closed it.
    #[error("the MQTT broker closed the connection: {0}")]
    Closed(String),
    /// Nothing came in time.
    #[error("the MQTT broker did not answer for {0:?}")]
    Silent(Duration),
    /// The broker sent bytes that are not allowed.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

/// A packet from the broker.
#[derive(Debug, PartialEq)]
pub(crate) enum Arrival {
    Packet(Incoming),
    TooLarge(TooLarge),
}

/// A plain connection, or one over TLS.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Connects to the broker. Certificates are read again each time.
async fn connect(endpoint: &Endpoint, files: &Certificates) -> io::Result<Box<dyn Stream>> {
    let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
    stream.set_nodelay(true)?;
    if !endpoint.tls {
        return Ok(Box::new(stream));
    }
    let config = client_config(files).map_err(io::Error::other)?;
    let name = ServerName::try_from(endpoint.host.clone()).map_err(io::Error::other)?;
    Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name, stream).await?))
}

/// A connection to the broker.
pub(crate) struct Connection {
    reader: ReadHalf<Box<dyn Stream>>,
    writer: WriteHalf<Box<dyn Stream>>,
    frames: Frames,
    /// Bytes to write.
    out: BytesMut,
    version: Version,
    keep_alive: Duration,
    next_ping: Instant,
    /// Bytes were written that may be in a buffer of TLS.
    unflushed: bool,
    /// The last call of [`Connection::next`] read.
    reading: bool,
    /// When the last bytes came, or reading began again.
    heard: Instant,
}

impl Connection {
    /// Connects and opens the session.
    pub(crate) async fn open(
        endpoint: &Endpoint,
        files: &Certificates,
        version: Version,
        hello: &Hello,
    ) -> Result<(Self, Welcome), ConnectError> {
        let unavailable =
            |problem: String| ConnectError::Unavailable { address: endpoint.address(), problem };
        let opening = async {
            let stream = connect(endpoint, files).await.map_err(|error| unavailable(error.to_string()))?;
            let hello_bytes = version.connect(hello).map_err(|error| unavailable(error.to_string()))?;
            let mut connection = Self::on(stream, version, hello);
            connection.out = hello_bytes;
            match connection.next(true).await.map_err(|lost| unavailable(lost.to_string()))? {
                Arrival::Packet(Incoming::Connected(welcome)) => {
                    connection.keep_alive = welcome.keep_alive.unwrap_or(hello.keep_alive);
                    Ok((connection, welcome))
                }
                Arrival::Packet(Incoming::Refused { reason, denied }) => {
                    Err(ConnectError::Refused { address: endpoint.address(), reason, denied })
                }
                other => Err(unavailable(format!("the answer to CONNECT is {other:?}"))),
            }
        };
        let opened = timeout(CONNECT_TIMEOUT, opening).await;
        opened.unwrap_or_else(|_| Err(unavailable(format!("no answer within {CONNECT_TIMEOUT:?}"))))
    }

    /// A connection on `stream`, without CONNECT.
    pub(crate) fn on(stream: Box<dyn Stream>, version: Version, hello: &Hello) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        let now = Instant::now();
        Self {
            reader,
            writer,
            frames: Frames::new(hello.max_packet),
            out: BytesMut::new(),
            version,
            keep_alive: hello.keep_alive,
            next_ping: now + hello.keep_alive,
            unflushed: false,
            reading: false,
            heard: now,
        }
    }

    /// Writes a packet with the next [`Connection::next`].
    pub(crate) fn send(&mut self, packet: &[u8]) {
        self.out.extend_from_slice(packet);
    }

    /// Acknowledges a message with the next [`Connection::next`].
    pub(crate) fn ack(&mut self, packet_id: u16) {
        write_puback(packet_id, &mut self.out);
    }

    /// Returns what comes next, and meanwhile writes and pings. With `read` false it never returns a packet. It can be
    /// cancelled without a loss.
    pub(crate) async fn next(&mut self, read: bool) -> Result<Arrival, Lost> {
        if read && !self.reading {
            // Silence before says nothing, because nothing was read.
            self.heard = Instant::now();
        }
        self.reading = read;
        loop {
            if read && let Some(frame) = self.frames.next()? {
                return match frame {
                    Frame::TooLarge(message) => Ok(Arrival::TooLarge(message)),
                    Frame::Packet(packet) => match self.version.read(packet)? {
                        Incoming::Pong => continue,
                        Incoming::Closing(reason) => Err(Lost::Closed(reason)),
                        packet => Ok(Arrival::Packet(packet)),
                    },
                };
            }
            let buffer = &mut self.frames.buffer;
            if buffer.capacity() - buffer.len() < MIN_READ {
                buffer.reserve(CHUNK);
            }
            // A broker answers a ping. Half an interval more is what brokers allow their clients.
            let patience = self.keep_alive.mul_f64(1.5);
            let silent_at = self.heard + patience;
            let has_output = self.unflushed || !self.out.is_empty();
            tokio::select! {
                read = self.reader.read_buf(&mut self.frames.buffer), if read => {
                    if read? == 0 {
                        return Err(Lost::Closed("without a reason".to_owned()));
                    }
                    self.heard = Instant::now();
                }
                written = write(&mut self.writer, &mut self.out, &mut self.unflushed), if has_output => written?,
                () = sleep_until(self.next_ping) => {
                    self.next_ping = Instant::now() + self.keep_alive;
                    write_ping(&mut self.out);
                }
                () = until(silent_at, read) => return Err(Lost::Silent(patience)),
            }
        }
    }

    /// Writes what is left and DISCONNECT, and waits until the broker closes the connection. The session stays. If
    /// the connection ended before, acknowledged messages may come again.
    pub(crate) async fn close(mut self) -> io::Result<()> {
        write_disconnect(&mut self.out);
        let closing = async {
            self.writer.write_all(&self.out).await?;
            self.writer.flush().await?;
            self.writer.shutdown().await?;
            // A socket that is closed with unread bytes is reset, and the broker may lose the acknowledgements. What
            // is discarded here is not acknowledged, so it comes again.
            copy(&mut self.reader, &mut sink()).await.map(drop)
        };
        timeout(CLOSE_TIMEOUT, closing).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Writes all of `out`. If it is cancelled, another call continues.
async fn write(
    writer: &mut WriteHalf<Box<dyn Stream>>,
    out: &mut BytesMut,
    unflushed: &mut bool,
) -> io::Result<()> {
    while !out.is_empty() {
        writer.write_buf(out).await?;
        *unflushed = true;
    }
    writer.flush().await?;
    *unflushed = false;
    Ok(())
}

/// Resolves at `at`, or never if `on` is false.
async fn until(at: Instant, on: bool) {
    if on {
        sleep_until(at).await;
    } else {
        pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// The broker gets everything that was written before the end, also if it sends messages meanwhile.
    #[tokio::test]
    async fn a_close_with_unread_messages_loses_no_acknowledgement() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut broker, _) = listener.accept().await.unwrap();
        let hello = Hello {
            clean: false,
            client_id: "bridge".into(),
            login: None,
            keep_alive: Duration::from_secs(60),
            session_expiry: Duration::ZERO,
            in_flight: 1,
            max_packet: 1024,
        };
        let mut connection = Connection::on(Box::new(stream), Version::V3, &hello);
        connection.ack(7);
        let messages = vec![0; 64 * 1024];
        broker.write_all(&messages).await.unwrap();
        let closing = tokio::spawn(connection.close());

        let mut received = Vec::new();
        broker.read_to_end(&mut received).await.expect("the connection is not reset");
        assert_eq!(received, [0x40, 2, 0, 7, 0xE0, 0], "PUBACK and DISCONNECT");
        drop(broker);
        closing.await.unwrap().unwrap();
    }
}
