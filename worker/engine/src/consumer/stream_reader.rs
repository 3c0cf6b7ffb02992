//! Reads a stream from its beginning and goes on reading it, over as many channels as that takes.

use std::time::Duration;

use futures_util::StreamExt;
use garenne_amqp::{Backoff, BrokerError, unreadable};
use garenne_protocol::task::header;
use lapin::{
    Channel,
    message::Delivery,
    options::{BasicAckOptions, BasicConsumeOptions},
    types::{AMQPValue, FieldTable},
};
use tokio::sync::watch;

use super::{
    connection::ConsumerConnection,
    reply::{self, ACCESS_REFUSED, NOT_FOUND},
};

/// Records on their way at once.
const PREFETCH: u16 = 200;

/// How far a reader has come.
#[derive(Clone, Debug)]
pub(crate) enum Progress {
    /// The mark has not been read.
    Behind {
        /// What it waits for, once something went wrong.
        problem: Option<String>,
    },
    /// The broker did not let it read before it had caught up once: waiting will not help.
    Denied(BrokerError),
    /// All is read that was there when the mark was set.
    CaughtUp,
}

impl Default for Progress {
    fn default() -> Self {
        Self::Behind { problem: None }
    }
}

/// Where a reader stands in its stream.
#[derive(Default)]
struct Position {
    /// The next offset; the beginning when there is none.
    next: Option<i64>,
}

/// Hands every record of `stream` to `take`, in order and for ever; a stream that was made anew is read
/// from its beginning. `take` answers whether this record is the reader's own mark: what was there when it
/// was set is read then, and `progress` turns to [`Progress::CaughtUp`]. The broker's count of a stream's
/// messages says no such thing; it may be older or newer than what is delivered.
pub(crate) async fn follow(
    link: ConsumerConnection,
    stream: String,
    progress: watch::Sender<Progress>,
    mut take: impl FnMut(&[u8]) -> bool,
) {
    let mut backoff = Backoff::reconnect();
    let mut position = Position::default();
    loop {
        let problem = match link.channel(PREFETCH).await {
            Ok((_connection, channel)) => {
                let skipped = link.unreadable(&stream);
                let mut take = |record: &Delivery| {
                    let Some(problem) = unreadable(&record.properties) else { return take(&record.data) };
                    skipped.inc();
                    tracing::warn!(stream, problem, "skipped a record that cannot be read");
                    false
                };
                match read(&channel, &stream, &mut position, &progress, &mut backoff, &mut take).await {
                    // Cancelled by the broker: the stream is gone, and offsets mean nothing in the next.
                    Ok(()) => {
                        position.next = None;
                        "the stream was deleted".to_owned()
                    }
                    Err(error) => {
                        match reply::code(&error) {
                            Some(NOT_FOUND) => {
                                position.next = None;
                                link.mend().await;
                            }
                            Some(ACCESS_REFUSED) => deny(&progress, link.explain(&error)),
                            _ => {}
                        }
                        error.to_string()
                    }
                }
            }
            Err(error) => error.to_string(),
        };
        let wait: Duration = backoff.next_wait();
        tracing::debug!(stream, problem, ?wait, "not reading, will try again");
        progress.send_if_modified(|progress| {
            let behind = matches!(progress, Progress::Behind { .. });
            if behind {
                *progress = Progress::Behind { problem: Some(problem) };
            }
            behind
        });
        tokio::time::sleep(wait).await;
    }
}

fn deny(progress: &watch::Sender<Progress>, denied: BrokerError) {
    progress.send_if_modified(|progress| {
        let behind = matches!(progress, Progress::Behind { .. });
        if behind {
            *progress = Progress::Denied(denied);
        }
        behind
    });
}

async fn read(
    channel: &Channel,
    stream: &str,
    position: &mut Position,
    progress: &watch::Sender<Progress>,
    backoff: &mut Backoff,
    take: &mut impl FnMut(&Delivery) -> bool,
) -> Result<(), lapin::Error> {
    let mut arguments = FieldTable::default();
    let offset = position.next.map_or_else(|| header::long("first"), AMQPValue::LongLongInt);
    arguments.insert("x-stream-offset".into(), offset);
    let tag = "".into();
    let mut records =
        channel.basic_consume(stream.into(), tag, BasicConsumeOptions::default(), arguments).await?;
    while let Some(record) = records.next().await {
        let record = record?;
        backoff.reset();
        // Credit comes back by acks; a stream keeps its records all the same.
        channel.basic_ack(record.delivery_tag, BasicAckOptions::default()).await?;
        let offset = header::get(record.properties.headers(), "x-stream-offset").and_then(header::integer);
        // A chunk is delivered whole: what lies before the asked offset was read before.
        if offset.zip(position.next).is_some_and(|(offset, next)| offset < next) {
            continue;
        }
        position.next = offset.map(|offset| offset + 1).or(position.next);
        if take(&record) {
            progress.send_replace(Progress::CaughtUp);
        }
    }
    Ok(())
}
