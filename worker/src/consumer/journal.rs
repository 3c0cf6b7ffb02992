//! Reads a stream from its beginning and goes on reading it, over as many channels as that takes.

use std::time::Duration;

use futures_util::StreamExt;
use garenne_common::{broker::Backoff, task::header};
use lapin::{
    Channel,
    options::{BasicAckOptions, BasicConsumeOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use tokio::sync::watch;

use super::link::Link;

/// Records on their way at once.
const PREFETCH: u16 = 200;

/// Where a reader stands in its stream.
#[derive(Default)]
struct Position {
    /// The next offset; the beginning when there is none.
    next: Option<i64>,
    /// Records there were when reading began, and how many of them are read.
    behind: Option<u64>,
}

/// Hands every record of `stream` to `take`, in order and for ever; `caught_up` turns true once all
/// that was there at the beginning is read.
pub(crate) async fn follow(
    link: Link,
    stream: String,
    caught_up: watch::Sender<bool>,
    mut take: impl FnMut(&[u8]),
) {
    let mut backoff = Backoff::reconnect();
    let mut position = Position::default();
    loop {
        let problem = match link.channel(PREFETCH).await {
            Ok((_connection, channel)) => {
                let read = read(&channel, &stream, &mut position, &caught_up, &mut backoff, &mut take).await;
                read.err().map_or_else(|| "the consumer was cancelled".to_owned(), |error| error.to_string())
            }
            Err(error) => error.to_string(),
        };
        let wait: Duration = backoff.next_wait();
        tracing::debug!(stream, problem, ?wait, "not reading, will try again");
        tokio::time::sleep(wait).await;
    }
}

async fn read(
    channel: &Channel,
    stream: &str,
    position: &mut Position,
    caught_up: &watch::Sender<bool>,
    backoff: &mut Backoff,
    take: &mut impl FnMut(&[u8]),
) -> Result<(), lapin::Error> {
    let look = QueueDeclareOptions { passive: true, ..Default::default() };
    let there = channel.queue_declare(stream.into(), look, FieldTable::default()).await?;
    let behind = position.behind.get_or_insert(there.message_count().into());
    if *behind == 0 {
        caught_up.send_replace(true);
    }
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
        take(&record.data);
        position.next = offset.map(|offset| offset + 1);
        if let Some(behind) = position.behind.as_mut().filter(|behind| **behind > 0) {
            *behind -= 1;
            if *behind == 0 {
                caught_up.send_replace(true);
            }
        }
    }
    Ok(())
}
