//! Which broker is it? AMQP's very first frame says; the client library does not hand it on.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::topology::BrokerVersion;

/// The frame is a few hundred bytes; more than this is no broker.
const MAX_FRAME: usize = 64 * 1024;
const PROTOCOL_HEADER: &[u8] = b"AMQP\x00\x00\x09\x01";
const FRAME_HEADER: usize = 7;

/// Asks a broker for its version: sends the protocol header, reads `connection.start`, hangs up.
/// Plain TCP only.
///
/// # Errors
/// What the network said, `TimedOut` after `timeout`, `InvalidData` when no version was in the answer.
pub async fn probe_version(host: &str, port: u16, timeout: Duration) -> io::Result<BrokerVersion> {
    let ask = async {
        let mut stream = TcpStream::connect((host, port)).await?;
        stream.write_all(PROTOCOL_HEADER).await?;
        let mut header = [0; FRAME_HEADER];
        stream.read_exact(&mut header).await?;
        let size = u32::from_be_bytes([header[3], header[4], header[5], header[6]]) as usize;
        if size > MAX_FRAME {
            return Err(no_version());
        }
        let mut frame = vec![0; size];
        stream.read_exact(&mut frame).await?;
        version_in(&frame).ok_or_else(no_version)
    };
    tokio::time::timeout(timeout, ask).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn no_version() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the answer holds no broker version")
}

/// The value after the key `version` in the server properties: `S`, a four-byte length, the text.
fn version_in(frame: &[u8]) -> Option<BrokerVersion> {
    const KEY: &[u8] = b"\x07versionS";
    let at = frame.windows(KEY.len()).position(|window| window == KEY)? + KEY.len();
    let length = u32::from_be_bytes(frame.get(at..at + 4)?.try_into().ok()?) as usize;
    std::str::from_utf8(frame.get(at + 4..at + 4 + length)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_version_among_the_server_properties() {
        let frame = b"\x00\x0a\x00\x0a\x00\x09....\x07productS\x00\x00\x00\x08RabbitMQ\x07versionS\x00\x00\x00\x064.0.50";
        assert_eq!(version_in(frame).unwrap().to_string(), "4.0");
        assert_eq!(version_in(b"\x07versionS\x00\x00\x00\xff4"), None);
        assert_eq!(version_in(b""), None);
    }
}
