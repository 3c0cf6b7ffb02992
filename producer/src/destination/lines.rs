//! Sends readings to a gateway over the TCP line protocol, pipelined on one connection.

use std::{io, sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, join};
use garenne_protocol::{sensor::Reading, task::TaskId};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    sync::Mutex,
    time::timeout,
};

use super::{
    Destination, SendError,
    line_connection::{LineConnection, LineConnector, UNAUTHORIZED, line_refusal},
    token::Token,
};

/// A connection to a gateway, opened at the first request and again after an error.
pub(crate) struct LineDestination {
    connector: Arc<LineConnector>,
    connection: Mutex<Option<LineConnection>>,
}

/// Longer than the gateway waits for a confirm.
const TIMEOUT: Duration = Duration::from_secs(30);

impl LineDestination {
    /// A connection of `connector`.
    pub(super) fn new(connector: Arc<LineConnector>) -> Self {
        Self { connector, connection: Mutex::new(None) }
    }

    /// Sends the readings and returns their task ids.
    async fn exchange(&self, readings: &[Reading]) -> Result<Vec<TaskId>, SendError> {
        let mut lines = Vec::with_capacity(readings.len() * 128);
        for reading in readings {
            serde_json::to_writer(&mut lines, reading).expect("a reading is plain JSON");
            lines.push(b'\n');
        }
        let mut slot = self.connection.lock().await;
        let mut connection = match slot.take() {
            Some(connection) => connection,
            None => self.connector.connect().await?,
        };
        let (answers, ended) = answers(&mut connection, &lines, readings.len()).await;
        // The connection has the token that it was opened with.
        let refused = answers.iter().any(|line| line.strip_prefix("error ").is_some_and(is_unauthorized));
        if ended.is_ok() && !refused {
            *slot = Some(connection);
        }
        let answers = answers.iter().enumerate();
        // A refusal before the connection's own error: the gateway closes the connection after some refusals.
        let ids = answers
            .map(|(index, line)| answer(line.trim_end(), index, self.connector.token.as_deref()))
            .collect::<Result<_, _>>()?;
        ended.map_err(|error| self.connector.again(&error)).map(|()| ids)
    }
}

fn is_unauthorized(refusal: &str) -> bool {
    refusal.split(' ').next() == Some(UNAUTHORIZED)
}

/// Writes the lines and reads `count` answers. Returns those that came, and the error if not all did.
async fn answers(
    connection: &mut LineConnection,
    lines: &[u8],
    count: usize,
) -> (Vec<String>, io::Result<()>) {
    let mut answers = Vec::with_capacity(count);
    let (reader, mut writer) = tokio::io::split(connection);
    // The gateway sends one answer per line, so that dropping this buffer loses no bytes.
    let mut lines_read = BufReader::new(reader).lines();
    let writing = async {
        writer.write_all(lines).await?;
        writer.flush().await
    };
    let reading = async {
        while answers.len() < count {
            answers.push(lines_read.next_line().await?.ok_or(io::ErrorKind::UnexpectedEof)?);
        }
        Ok(())
    };
    // Answers are read while lines are written: otherwise full socket buffers on both sides would be a deadlock. They
    // are also read after an error of writing.
    let ended = timeout(TIMEOUT, join(writing, reading)).await;
    let ended = ended.map_err(io::Error::from).and_then(|(written, read)| read.and(written));
    (answers, ended)
}

/// Parses the answer to one reading.
fn answer(line: &str, index: usize, token: Option<&Token>) -> Result<TaskId, SendError> {
    if let Some(id) = line.strip_prefix("ok ") {
        // A gateway with a spool marks what the broker has not confirmed yet.
        let id = id.strip_suffix(" spooled").unwrap_or(id);
        return TaskId::parse(id)
            .map_err(|error| SendError::fatal(format!("invalid id from the gateway: {error}")));
    }
    let refusal = line.strip_prefix("error ").unwrap_or(line);
    Err(line_refusal(refusal, token)
        .unwrap_or_else(|| SendError::InvalidReading { index, reason: refusal.to_owned() }))
}

impl Destination for LineDestination {
    fn send<'a>(&'a self, readings: &'a [Reading]) -> BoxFuture<'a, Result<Vec<TaskId>, SendError>> {
        Box::pin(self.exchange(readings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_classified_by_their_code() {
        assert_eq!(answer("ok 1-2", 0, None).unwrap().as_str(), "1-2");
        assert_eq!(answer("ok 1-2 spooled", 0, None).unwrap().as_str(), "1-2");
        let again = SendError::Retry { reason: "busy the queue is full".to_owned(), retry_after: None };
        assert_eq!(answer("error busy the queue is full", 3, None), Err(again));
        let refused = SendError::InvalidReading { index: 3, reason: "bad-name record 0: …".to_owned() };
        assert_eq!(answer("error bad-name record 0: …", 3, None), Err(refused));
    }
}
