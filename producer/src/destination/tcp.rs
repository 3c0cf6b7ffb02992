//! Sends readings to a gateway over the TCP line protocol, pipelined on one connection.

use std::time::Duration;

use futures_util::future::BoxFuture;
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

    async fn exchange(&self, readings: &[Reading]) -> Result<Vec<TaskId>, SendError> {
        let mut slot = self.connection.lock().await;
        let again = |error: std::io::Error| SendError::Retry {
            reason: format!("{}: {error}", self.address),
            retry_after: None,
        };
        let mut connection = match slot.take() {
            Some(connection) => connection,
            None => {
                let stream = TcpStream::connect(&self.address).await.map_err(again)?;
                stream.set_nodelay(true).map_err(again)?;
                stream
            }
        };
        let mut lines = Vec::with_capacity(readings.len() * 128);
        for reading in readings {
            serde_json::to_writer(&mut lines, reading).expect("a reading is plain JSON");
            lines.push(b'\n');
        }
        // Answers are read while lines are written: otherwise full socket buffers on both sides would be a deadlock.
        let (reader, mut writer) = connection.split();
        // The gateway sends one answer per line, so that dropping this buffer loses no bytes.
        let mut reader = BufReader::new(reader);
        let writing = async { writer.write_all(&lines).await };
        let reading = async {
            let mut answers = Vec::with_capacity(readings.len());
            for _ in readings {
                let mut line = String::new();
                if reader.read_line(&mut line).await? == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
                answers.push(line);
            }
            Ok(answers)
        };
        let answers = match timeout(TIMEOUT, futures_util::future::try_join(writing, reading)).await {
            Ok(answers) => answers.map_err(again)?.1,
            Err(_) => return Err(again(std::io::ErrorKind::TimedOut.into())),
        };
        let outcome = answers.iter().enumerate().map(|(index, line)| answer(line.trim_end(), index));
        let outcome: Result<Vec<_>, _> = outcome.collect();
        *slot = Some(connection);
        outcome
    }
}

/// Parses the answer to one reading.
fn answer(line: &str, index: usize) -> Result<TaskId, SendError> {
    if let Some(id) = line.strip_prefix("ok ") {
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
        Box::pin(self.exchange(readings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_classified_by_their_code() {
        assert_eq!(answer("ok 1-2", 0).unwrap().as_str(), "1-2");
        let again = SendError::Retry { reason: "busy the queue is full".to_owned(), retry_after: None };
        assert_eq!(answer("error busy the queue is full", 3), Err(again));
        let refused = SendError::InvalidReading { index: 3, reason: "bad-name record 0: …".to_owned() };
        assert_eq!(answer("error bad-name record 0: …", 3), Err(refused));
    }
}
