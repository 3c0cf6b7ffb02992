//! Writes results to standard output, one JSON line each.

use std::{io::Write, sync::Arc};

use futures_util::future::BoxFuture;
use garenne_common::{supervise, text::printable_json};

use super::{FinishedTask, Sink, SinkAnswer, SinkError};

/// Writes results to standard output as NDJSON. See [`FinishedTask::to_json`] for the fields.
///
/// If the reader of the output is slow, the worker slows down; no result is dropped.
#[derive(Clone, Debug, Default)]
pub struct StdoutSink(());

impl StdoutSink {
    /// Creates the sink.
    pub fn new() -> Arc<Self> {
        Arc::new(Self(()))
    }
}

impl Sink for StdoutSink {
    fn name(&self) -> &'static str {
        "stdout"
    }

    fn write<'a>(&'a self, batch: &'a [FinishedTask]) -> BoxFuture<'a, Result<Vec<SinkAnswer>, SinkError>> {
        let mut lines = Vec::with_capacity(batch.len() * 256);
        for finished in batch {
            let json = finished.to_json();
            // Standard output may be a terminal, and ids and outputs may contain control characters.
            lines.extend_from_slice(printable_json(&String::from_utf8_lossy(&json)).as_bytes());
            lines.push(b'\n');
        }
        let count = batch.len();
        Box::pin(async move {
            // One write per batch, so that lines of processes that share a pipe do not interleave.
            let write = move || {
                let mut stdout = std::io::stdout().lock();
                stdout.write_all(&lines).and_then(|()| stdout.flush())
            };
            match supervise::spawn_blocking("stdout", write).await {
                Ok(Ok(())) => Ok(vec![SinkAnswer::Stored; count]),
                Ok(Err(error)) => Err(SinkError { sink: "stdout", detail: error.to_string() }),
                Err(error) => Err(SinkError { sink: "stdout", detail: error.to_string() }),
            }
        })
    }
}
