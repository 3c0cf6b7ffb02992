//! To a gateway over the TCP line protocol, a batch pipelined on one connection.

use std::time::Duration;

use futures_util::future::BoxFuture;
use garenne_common::exit::Exit;
use garenne_protocol::{sensor::Reading, task::TaskId};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    sync::Mutex,
    time::timeout,
};

use super::{Destination, Setback};

/// One sender's connection to a gateway; made at the first batch and again after a failure.
pub struct TcpDestination {
    address: String,
    connection: Mutex<Option<TcpStream>>,
}

/// Longer than the gateway waits for the broker's confirm.
const TIMEOUT: Duration = Duration::from_secs(30);

impl TcpDestination {
    /// A gateway at `address`, host and port.
    pub fn new(address: &str) -> Self {
        Self { address: address.to_owned(), connection: Mutex::new(None) }
    }

    async fn exchange(&self, batch: &[Reading]) -> Result<Vec<TaskId>, Setback> {
        let mut slot = self.connection.lock().await;
        let again =
            |error: std::io::Error| Setback::Again { why: format!("{}: {error}", self.address), after: None };
        let mut connection = match slot.take() {
            Some(connection) => connection,
            None => {
                let stream = TcpStream::connect(&self.address).await.map_err(again)?;
                stream.set_nodelay(true).map_err(again)?;
                stream
            }
        };
        let mut lines = Vec::with_capacity(batch.len() * 128);
        for reading in batch {
            serde_json::to_writer(&mut lines, reading).expect("a reading is plain JSON");
            lines.push(b'\n');
        }
        // Answers are read while lines are written: neither side's buffers can fill up for good.
        let (reader, mut writer) = connection.split();
        // It answers as many lines as it gets, so that nothing is left in this buffer.
        let mut reader = BufReader::new(reader);
        let writing = async { writer.write_all(&lines).await };
        let reading = async {
            let mut answers = Vec::with_capacity(batch.len());
            for _ in batch {
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
        let verdict = answers.iter().enumerate().map(|(index, line)| answer(line.trim_end(), index));
        let verdict: Result<Vec<_>, _> = verdict.collect();
        *slot = Some(connection);
        verdict
    }
}

/// What one line says about its reading.
fn answer(line: &str, index: usize) -> Result<TaskId, Setback> {
    if let Some(id) = line.strip_prefix("ok ") {
        return TaskId::parse(id)
            .map_err(|error| Setback::Never { why: format!("gateway's id: {error}"), exit: Exit::Failed });
    }
    let mut words = line.splitn(3, ' ');
    let (code, message) = (words.nth(1).unwrap_or_default(), words.next().unwrap_or_default());
    let why = format!("{code} {message}");
    Err(match code {
        "busy" | "unavailable" | "rate-limited" | "timeout" => Setback::Again { why, after: None },
        "unauthorized" => Setback::Never { why, exit: Exit::Failed },
        _ => Setback::Reading { index, why },
    })
}

impl Destination for TcpDestination {
    fn deliver<'a>(&'a self, batch: &'a [Reading]) -> BoxFuture<'a, Result<Vec<TaskId>, Setback>> {
        Box::pin(self.exchange(batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_say_whether_to_go_on() {
        assert_eq!(answer("ok 1-2", 0).unwrap().as_str(), "1-2");
        let again = Setback::Again { why: "busy the queue is full".to_owned(), after: None };
        assert_eq!(answer("error busy the queue is full", 3), Err(again));
        let refused = Setback::Reading { index: 3, why: "bad-name record 0: …".to_owned() };
        assert_eq!(answer("error bad-name record 0: …", 3), Err(refused));
    }
}
