//! Who should be there: workers that said hello in the stream `garenne.lifecycle`, and no good-bye.

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

use crate::queues::LookError;

/// Records on their way at once.
const PREFETCH: u16 = 500;
/// A stream that has something delivers it sooner than this.
const SILENCE: Duration = Duration::from_millis(500);
/// The last chunk of records is delivered in one go.
const REST: Duration = Duration::from_millis(20);

/// A record of the stream; marks of starting workers are none.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum Life {
    Hello { worker: String, incarnation: String, at: i64 },
    Goodbye { worker: String, incarnation: String },
    Died { worker: String, incarnation: String },
}

/// Who is on record as living: worker to its incarnation and the time of its hello, milliseconds since
/// 1970.
///
/// # Errors
/// One line and an exit code: the stream is not there, or may not be read.
pub async fn on_record(
    connection: &Connection,
    stream: &str,
) -> Result<BTreeMap<String, (String, i64)>, Failure> {
    let broken = |error| LookError::of(stream, error);
    let channel = connection.create_channel().await.map_err(broken)?;
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await.map_err(broken)?;
    let mut living = BTreeMap::new();
    // Only what is delivered says how far a stream goes; the broker's count may be older.
    let mut newest = consume(&channel, stream, "last").await.map_err(broken)?;
    let Ok(Some(Ok(record))) = timeout(SILENCE, newest.next()).await else { return Ok(living) };
    let last_chunk = offset(&record).unwrap_or(0);
    let mut records = consume(&channel, stream, "first").await.map_err(broken)?;
    let mut reached = false;
    while let Ok(Some(record)) = timeout(if reached { REST } else { SILENCE }, records.next()).await {
        let record = record.map_err(broken)?;
        // Credit comes back by acks; a stream keeps its records all the same.
        channel.basic_ack(record.delivery_tag, BasicAckOptions::default()).await.map_err(broken)?;
        reached |= offset(&record).is_some_and(|offset| offset >= last_chunk);
        if unreadable(&record.properties).is_none() {
            apply(&mut living, &record.data);
        }
    }
    if let Err(error) = channel.close(200, "read".into()).await {
        tracing::debug!(%error, "channel not closed in order");
    }
    Ok(living)
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

fn apply(living: &mut BTreeMap<String, (String, i64)>, record: &[u8]) {
    match serde_json::from_slice(record) {
        Ok(Life::Hello { worker, incarnation, at }) => {
            living.insert(worker, (incarnation, at));
        }
        Ok(Life::Goodbye { worker, incarnation }) => {
            if living.get(&worker).is_some_and(|(known, _)| *known == incarnation) {
                living.remove(&worker);
            }
        }
        // It stays on record: nobody has replaced it, and an operator wants to know.
        Ok(Life::Died { worker, incarnation }) => {
            tracing::debug!(worker, incarnation, "died uncleanly");
        }
        Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_said_hello_and_no_good_bye_is_on_record() {
        let mut living = BTreeMap::new();
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
            apply(&mut living, record.as_bytes());
        }
        let expected = [("a", "3", 3), ("b", "2", 2)].map(|(w, i, at)| (w.to_owned(), (i.to_owned(), at)));
        assert_eq!(living, BTreeMap::from(expected));
    }
}
