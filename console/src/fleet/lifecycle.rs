//! Reads from the stream `garenne.lifecycle` which workers started and did not stop.

use std::{collections::BTreeMap, time::Duration};

use futures_util::StreamExt;
use garenne_amqp::unreadable;
use garenne_common::exit::Failure;
use garenne_protocol::task::header;
use lapin::{
    Channel, Connection, Consumer,
    message::Delivery,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions},
    types::{AMQPValue, FieldTable},
};
use serde::Deserialize;
use tokio::time::timeout;

use crate::queues::InspectError;

/// Unacknowledged records at once.
const PREFETCH: u16 = 500;
/// A stream with records delivers the first one sooner than this.
const FIRST_RECORD_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause after which the last chunk is complete. The broker delivers a chunk at once.
const LAST_CHUNK_TIMEOUT: Duration = Duration::from_millis(20);

/// A record of the stream. Marks of starting workers are not records.
#[derive(Deserialize)]
struct LifecycleRecord {
    event: LifecycleEvent,
    worker: String,
    incarnation: String,
}

#[derive(Deserialize)]
enum LifecycleEvent {
    #[serde(rename = "hello")]
    Started,
    #[serde(rename = "goodbye")]
    Stopped,
    /// Includes a crash: a crashed worker is kept until it starts again, so that operators see it as silent.
    #[serde(other)]
    Other,
}

/// Workers with a start record and no stop record: the incarnation by worker.
///
/// # Errors
/// One line and an exit code: the stream is missing, or the user may not read it.
pub(super) async fn running_workers(
    connection: &Connection,
    stream: &str,
) -> Result<BTreeMap<String, String>, Failure> {
    let error = |source| InspectError::of(stream, source);
    let channel = connection.create_channel().await.map_err(error)?;
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await.map_err(error)?;
    let mut running = BTreeMap::new();
    // The end of the stream is taken from a delivery. The broker's message count may be out of date.
    let mut newest = consume(&channel, stream, "last").await.map_err(error)?;
    let Ok(Some(Ok(record))) = timeout(FIRST_RECORD_TIMEOUT, newest.next()).await else { return Ok(running) };
    let last_chunk = offset(&record).unwrap_or(0);
    let mut records = consume(&channel, stream, "first").await.map_err(error)?;
    let mut reached = false;
    while let Ok(Some(record)) =
        timeout(if reached { LAST_CHUNK_TIMEOUT } else { FIRST_RECORD_TIMEOUT }, records.next()).await
    {
        let record = record.map_err(error)?;
        // An ack returns credit. It does not remove the record from the stream.
        channel.basic_ack(record.delivery_tag, BasicAckOptions::default()).await.map_err(error)?;
        reached |= offset(&record).is_some_and(|offset| offset >= last_chunk);
        if unreadable(&record.properties).is_none() {
            apply(&mut running, &record.data);
        }
    }
    if let Err(error) = channel.close(200, "read".into()).await {
        tracing::debug!(%error, "failed to close the channel");
    }
    Ok(running)
}

async fn consume(channel: &Channel, stream: &str, from: &str) -> Result<Consumer, lapin::Error> {
    let mut arguments = FieldTable::default();
    arguments.insert("x-stream-offset".into(), header::long(from));
    channel.basic_consume(stream.into(), "".into(), BasicConsumeOptions::default(), arguments).await
}

fn offset(record: &Delivery) -> Option<i64> {
    header::get(record.properties.headers(), "x-stream-offset")
        .and_then(|value: &AMQPValue| header::integer(value))
}

fn apply(running: &mut BTreeMap<String, String>, record: &[u8]) {
    let Ok(LifecycleRecord { event, worker, incarnation }) = serde_json::from_slice(record) else { return };
    match event {
        LifecycleEvent::Started => {
            running.insert(worker, incarnation);
        }
        LifecycleEvent::Stopped if running.get(&worker) == Some(&incarnation) => {
            running.remove(&worker);
        }
        LifecycleEvent::Stopped | LifecycleEvent::Other => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_with_a_start_and_no_stop_record_are_running() {
        let mut running = BTreeMap::new();
        for record in [
            r#"{"event":"hello","worker":"a","incarnation":"1","at":1}"#,
            r#"{"event":"hello","worker":"b","incarnation":"2","at":2}"#,
            r#"{"mark":"2"}"#,
            r#"{"event":"hello","worker":"a","incarnation":"3","at":3}"#,
            r#"{"event":"goodbye","worker":"a","incarnation":"1","at":4}"#,
            r#"{"event":"died","worker":"b","incarnation":"2","at":5}"#,
            r#"{"event":"hello","worker":"c","incarnation":"4","at":6}"#,
            r#"{"event":"goodbye","worker":"c","incarnation":"4","at":7}"#,
        ] {
            apply(&mut running, record.as_bytes());
        }
        let expected = [("a", "3"), ("b", "2")].map(|(worker, id)| (worker.to_owned(), id.to_owned()));
        assert_eq!(running, BTreeMap::from(expected));
    }
}
