//! Reads a RabbitMQ stream from its beginning and follows it, across reconnects.

use futures_util::StreamExt;
use garenne_amqp::{
    BrokerError,
    reply::{ACCESS_REFUSED, NOT_FOUND},
    unreadable,
};
use garenne_common::{backoff::Backoff, telemetry::Metrics};
use garenne_protocol::task::header;
use tokio::sync::watch;

use super::broker::{ChannelError, ConsumeBroker, ConsumeChannel, Frame, SettleChannel};

/// Unacknowledged records at a time. A stream consumer needs a prefetch.
const PREFETCH: u16 = 200;

/// How far a reader has come.
#[derive(Clone, Debug)]
pub(crate) enum Progress {
    /// The reader's mark has not been read.
    Behind {
        /// The last error, if there was one.
        problem: Option<String>,
    },
    /// The broker refused the first read; waiting does not help.
    Denied(BrokerError),
    /// All records that existed when the mark was published have been read.
    CaughtUp,
}

impl Default for Progress {
    fn default() -> Self {
        Self::Behind { problem: None }
    }
}

/// Passes every record of a stream to `on_record`, in order. A stream that was deleted and created again is read from
/// its beginning.
///
/// `on_record` returns whether the record is the mark that this worker published. Everything that existed when the
/// mark was published has been read by then, and `progress` becomes [`Progress::CaughtUp`]. The broker's message
/// count of the stream cannot serve for this: it may be older or newer than what has been delivered.
///
/// `on_state` is told why the stream cannot be read, and [`None`] when it is read again; the second value says that it is
/// a new one, which holds nothing of the old one.
pub(crate) struct StreamReader<B, F, S> {
    pub(crate) broker: B,
    pub(crate) metrics: Metrics,
    pub(crate) stream: String,
    /// The offset of the next record. `None` stands for the first record.
    pub(crate) next: Option<i64>,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) on_record: F,
    pub(crate) on_state: S,
    /// The stream was missing since it was read last.
    pub(crate) is_new: bool,
}

impl<B: ConsumeBroker, F: FnMut(&[u8]) -> bool, S: Fn(Option<String>, bool)> StreamReader<B, F, S> {
    /// Reads across reconnects; never returns. Called again after a panic, it continues after the record that caused
    /// the panic.
    pub(crate) async fn run(&mut self) {
        let mut backoff = Backoff::reconnect();
        loop {
            let problem = match self.broker.open(PREFETCH).await {
                Ok(channel) => match self.read(&channel, &mut backoff).await {
                    // The broker cancelled the consumer: the stream is deleted. Offsets do not carry over to a
                    // new stream of the same name.
                    Ok(()) => self.restore().await,
                    Err(error) => {
                        match &error.reply {
                            Some((NOT_FOUND, _)) => drop(self.restore().await),
                            Some((ACCESS_REFUSED, detail)) => {
                                self.update_if_behind(Progress::Denied(self.broker.denied(detail)));
                            }
                            _ => {}
                        }
                        error.text
                    }
                },
                Err(error) => error.to_string(),
            };
            let wait = backoff.next_wait();
            tracing::debug!(stream = self.stream, problem, ?wait, "cannot read the stream, retrying");
            self.update_if_behind(Progress::Behind { problem: Some(problem) });
            tokio::time::sleep(wait).await;
        }
    }

    /// Declares the missing stream again, as far as the user's rights allow. Returns why it is not read.
    async fn restore(&mut self) -> String {
        (self.next, self.is_new) = (None, true);
        let reason = match self.broker.restore_topology().await {
            Ok(()) => return "the stream was deleted, and is declared again".to_owned(),
            Err(error) => error,
        };
        let problem = format!("stream {:?} is missing: {reason}", self.stream);
        (self.on_state)(Some(problem.clone()), false);
        problem
    }

    /// Replaces the progress unless the reader has caught up or was denied.
    fn update_if_behind(&self, update: Progress) {
        self.progress.send_if_modified(|progress| {
            let behind = matches!(progress, Progress::Behind { .. });
            if behind {
                *progress = update;
            }
            behind
        });
    }

    /// Reads on one channel until the stream is deleted.
    async fn read(&mut self, channel: &B::Channel, backoff: &mut Backoff) -> Result<(), ChannelError> {
        let stream = self.stream.as_str();
        let skipped = self.metrics.unreadable(stream);
        let mut records = channel.consume_stream(stream, self.next).await?;
        (self.on_state)(None, std::mem::take(&mut self.is_new));
        while let Some(record) = records.next().await {
            let record = record?;
            backoff.reset();
            // An ack returns credit to the broker; it does not remove the record from the stream.
            channel.send(&Frame::ack(record.tag)).await?;
            let offset =
                header::get(record.properties.headers(), "x-stream-offset").and_then(header::integer);
            // The broker delivers whole chunks, which may begin before the requested offset.
            if offset.zip(self.next).is_some_and(|(offset, next)| offset < next) {
                continue;
            }
            self.next = offset.map(|offset| offset + 1).or(self.next);
            if let Some(problem) = unreadable(&record.properties) {
                skipped.inc();
                tracing::warn!(stream, problem, "skipped an unreadable record");
            } else if (self.on_record)(&record.body) {
                self.progress.send_replace(Progress::CaughtUp);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Mutex, time::Duration};

    use garenne_common::{lock::lock, supervise::caught};

    use super::*;
    use crate::consumer::subscriber::tests::EndingBroker;

    /// A reader of a stream whose channels deliver two records each.
    fn reader<F: FnMut(&[u8]) -> bool, S: Fn(Option<String>, bool)>(
        broker: EndingBroker,
        on_record: F,
        on_state: S,
    ) -> StreamReader<EndingBroker, F, S> {
        StreamReader {
            broker,
            metrics: Metrics::new("test"),
            stream: "directives".to_owned(),
            next: None,
            progress: watch::Sender::default(),
            on_record,
            on_state,
            is_new: false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_is_read_across_reconnects_without_gaps_and_without_records_twice() {
        let records = Mutex::new(Vec::new());
        let on_record = |body: &[u8]| {
            records.lock().unwrap().push(String::from_utf8(body.to_vec()).unwrap());
            false
        };
        let mut reader = reader(EndingBroker::default(), on_record, |_, _| {});
        let _ = tokio::time::timeout(Duration::from_secs(10), reader.run()).await;
        let records = records.lock().unwrap();
        assert!(records.len() > 10, "{records:?}");
        let expected: Vec<_> = (0..records.len()).map(|offset| offset.to_string()).collect();
        assert_eq!(*records, expected);
    }

    /// Otherwise no later directive would ever be read.
    #[tokio::test(start_paused = true)]
    async fn a_record_over_which_the_reader_panicked_is_not_read_again() {
        let records = Mutex::new(Vec::new());
        let on_record = |body: &[u8]| {
            lock(&records).push(body.to_vec());
            assert_ne!(body, b"1", "the record cannot be applied");
            false
        };
        let mut reader = reader(EndingBroker::default(), on_record, |_, _| {});
        assert!(caught(reader.run()).await.is_err());
        let again = tokio::time::timeout(Duration::from_secs(1), caught(reader.run())).await;
        assert!(again.is_err(), "it reads on");
        let records = lock(&records);
        assert_eq!(records[..4], [b"0", b"1", b"2", b"3"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_was_deleted_and_declared_again_is_read_from_its_beginning() {
        let (records, states) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let on_record = |body: &[u8]| {
            records.lock().unwrap().push(body.to_vec());
            false
        };
        let on_state = |problem: Option<String>, is_new| states.lock().unwrap().push((problem, is_new));
        let mut reader = reader(EndingBroker::that_deletes(), on_record, on_state);
        let _ = tokio::time::timeout(Duration::from_secs(1), reader.run()).await;
        assert_eq!(records.lock().unwrap()[..4], [b"0", b"1", b"0", b"1"]);
        assert_eq!(states.lock().unwrap()[..3], [(None, false), (None, true), (None, true)]);
    }
}
