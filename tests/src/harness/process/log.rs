//! The lines that a process has written so far.

use anyhow::{Result, anyhow};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    sync::watch,
    time::timeout,
};

use crate::harness::wait::WAIT_TIMEOUT;

/// The lines so far. A task reads them continuously, so that a full pipe never blocks the process.
#[derive(Clone, Debug)]
pub struct Log {
    lines: watch::Receiver<Vec<String>>,
}

impl Log {
    pub(super) fn of(pipe: impl AsyncRead + Send + Unpin + 'static) -> Self {
        let (sender, lines) = watch::channel(Vec::new());
        tokio::spawn(async move {
            let mut reader = BufReader::with_capacity(64 * 1024, pipe);
            let mut line = Vec::new();
            let mut ready = Vec::new();
            // An error counts as the end.
            while reader.read_until(b'\n', &mut line).await.is_ok_and(|read| read > 0) {
                ready.push(String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(&line)).into_owned());
                line.clear();
                // Waiting tests are woken once for all lines of a read.
                if !reader.buffer().contains(&b'\n') {
                    sender.send_modify(|lines| lines.append(&mut ready));
                }
            }
        });
        Self { lines }
    }

    /// The lines so far.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.lines.borrow().clone()
    }

    /// The number of lines so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.borrow().len()
    }

    /// Whether there is no line so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the process has closed its end of the pipe.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.lines.has_changed().is_err()
    }

    /// The last lines, for an error message.
    #[must_use]
    pub fn tail(&self) -> String {
        let lines = self.lines.borrow();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// Waits until `found` returns a value for the lines so far.
    ///
    /// # Errors
    /// If that does not happen in time or before the process ends, with the last lines.
    pub async fn until<T>(&self, what: &str, mut found: impl FnMut(&[String]) -> Option<T>) -> Result<T> {
        let mut lines = self.lines.clone();
        let mut result = None;
        let waited = timeout(
            WAIT_TIMEOUT,
            lines.wait_for(|lines| {
                result = found(lines);
                result.is_some()
            }),
        )
        .await;
        let why = match waited {
            Ok(Ok(_)) => return result.ok_or_else(|| anyhow!("{what} was found and is gone")),
            Ok(Err(_)) => "the process ended before",
            Err(_) => "not in time",
        };
        Err(anyhow!("{why}: {what}; {} lines, the last: {}", self.len(), self.tail()))
    }

    /// Waits for the end of the pipe.
    pub(super) async fn complete(&self) {
        let mut lines = self.lines.clone();
        while lines.changed().await.is_ok() {}
    }
}
