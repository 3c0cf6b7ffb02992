//! Sends readings to a gateway over the TCP line protocol, pipelined on one connection.

use std::{io, time::Duration};

use futures_util::future::{BoxFuture, try_join};
use garenne_protocol::{sensor::Reading, task::TaskId};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    sync::Mutex,
    time::timeout,
};

use super::{Destination, SendError};

/// A connection to a gateway, opened at the first request and again after an error.
pub(crate) struct TcpDestination {
    address: String,
    connection: Mutex<Option<TcpStream>>,
}

/// Longer than the gateway waits for a confirm.
const TIMEOUT: Duration = Duration::from_secs(30);

impl TcpDestination {
    /// A gateway at `address`, host and port.
    pub(crate) fn new(address: &str) -> Self {
        Self { address: address.to_owned(), connection: Mutex::new(None) }
    }

    /// Sends the readings and returns one answer per reading.
    async fn exchange(&self, readings: &[Reading]) -> io::Result<Vec<String>> {
        let mut lines = Vec::with_capacity(readings.len() * 128);
        for reading in readings {
            serde_json::to_writer(&mut lines, reading)?;
            lines.push(b'\n');
        }
        let mut slot = self.connection.lock().await;
        let mut connection = match slot.take() {
            Some(connection) => connection,
            None => {
                let stream = TcpStream::connect(&self.address).await?;
                stream.set_nodelay(true)?;
                stream
            }
        };
        let (reader, mut writer) = connection.split();
        // The gateway sends one answer per line, so that dropping this buffer loses no bytes.
        let mut reader = BufReader::new(reader).lines();
        let reading = async {
            let mut answers = Vec::with_capacity(readings.len());
            for _ in readings {
                answers.push(reader.next_line().await?.ok_or(io::ErrorKind::UnexpectedEof)?);
            }
            Ok(answers)
        };
        // Answers are read while lines are written: otherwise full socket buffers on both sides would be a deadlock.
        let (_, answers) = timeout(TIMEOUT, try_join(writer.write_all(&lines), reading)).await??;
        *slot = Some(connection);
        Ok(answers)
    }
}

/// Parses the answer to one reading.
fn answer(line: &str, index: usize) -> Result<TaskId, SendError> {
    if let Some(id) = line.strip_prefix("ok ") {
        // A gateway with a spool marks what the broker has not confirmed yet.
        let id = id.strip_suffix(" spooled").unwrap_or(id);
        return TaskId::parse(id)
            .map_err(|error| SendError::fatal(format!("invalid id from the gateway: {error}")));
    }
    let mut words = line.splitn(3, ' ');
    let (code, message) = (words.nth(1).unwrap_or_default(), words.next().unwrap_or_default());
    let reason = format!("{code} {message}");
    Err(match code {
        "busy" | "unavailable" | "rate-limited" | "timeout" => SendError::Retry { reason, retry_after: None },
        "unauthorized" => SendError::fatal(reason),
        _ => SendError::InvalidReading { index, reason },
    })
}

impl Destination for TcpDestination {
    fn send<'a>(&'a self, readings: &'a [Reading]) -> BoxFuture<'a, Result<Vec<TaskId>, SendError>> {
        Box::pin(async {
            let again = |error: io::Error| SendError::Retry {
                reason: format!("{}: {error}", self.address),
                retry_after: None,
            };
            let answers = self.exchange(readings).await.map_err(again)?;
            answers.iter().enumerate().map(|(index, line)| answer(line.trim_end(), index)).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_classified_by_their_code() {
        assert_eq!(answer("ok 1-2", 0).unwrap().as_str(), "1-2");
        assert_eq!(answer("ok 1-2 spooled", 0).unwrap().as_str(), "1-2");
        let again = SendError::Retry { reason: "busy the queue is full".to_owned(), retry_after: None };
        assert_eq!(answer("error busy the queue is full", 3), Err(again));
        let refused = SendError::InvalidReading { index: 3, reason: "bad-name record 0: …".to_owned() };
        assert_eq!(answer("error bad-name record 0: …", 3), Err(refused));
    }
}
