//! Reads a stream from an offset to its present end.

use std::time::Duration;

use futures_util::StreamExt;
use garenne_common::exit::Failure;
use garenne_operator::{queues::failure, waits};
use garenne_protocol::task::header;
use lapin::{
    Channel, Connection, Consumer,
    message::Delivery,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions},
    types::{AMQPValue, FieldTable},
};
use tokio::time::timeout;

/// Unacknowledged records at once.
const PREFETCH: u16 = 500;

/// How long a walk waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WalkTimeouts {
    /// A stream that has records delivers the first one sooner than this.
    pub(crate) first_record: Duration,
    /// Pause after which the last chunk is complete. The broker delivers a chunk at once.
    pub(crate) last_chunk: Duration,
}

/// Passes the records of `stream` from `offset` (`first`, or a time) on to `visit`, up to those that were there when the
/// walk began.
pub(crate) async fn walk_stream(
    connection: &Connection,
    stream: &str,
    offset: AMQPValue,
    timeouts: WalkTimeouts,
    mut visit: impl FnMut(&Delivery),
) -> Result<(), Failure> {
    let error = |error| failure(stream, &error);
    waits::begin(format!("records of stream {stream:?}"));
    let channel = connection.create_channel().await.map_err(error)?;
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await.map_err(error)?;
    // The end of the stream is taken from a delivery. The broker's message count may be out of date.
    let mut newest = consume(&channel, stream, header::long("last")).await.map_err(error)?;
    let Ok(Some(Ok(last))) = timeout(timeouts.first_record, newest.next()).await else { return Ok(()) };
    let last_chunk = offset_of(&last).unwrap_or(0);
    let mut records = consume(&channel, stream, offset).await.map_err(error)?;
    let mut reached = false;
    let pause = |reached| if reached { timeouts.last_chunk } else { timeouts.first_record };
    while let Ok(Some(record)) = timeout(pause(reached), records.next()).await {
        let record = record.map_err(error)?;
        waits::progress();
        // An ack returns credit. It does not remove the record from the stream.
        channel.basic_ack(record.delivery_tag, BasicAckOptions::default()).await.map_err(error)?;
        reached |= offset_of(&record).is_some_and(|offset| offset >= last_chunk);
        visit(&record);
    }
    if let Err(error) = channel.close(200, "read".into()).await {
        tracing::debug!(%error, "failed to close the channel");
    }
    Ok(())
}

async fn consume(channel: &Channel, stream: &str, offset: AMQPValue) -> Result<Consumer, lapin::Error> {
    let mut arguments = FieldTable::default();
    arguments.insert("x-stream-offset".into(), offset);
    channel.basic_consume(stream.into(), "".into(), BasicConsumeOptions::default(), arguments).await
}

fn offset_of(record: &Delivery) -> Option<i64> {
    header::get(record.properties.headers(), "x-stream-offset").and_then(header::integer)
}
