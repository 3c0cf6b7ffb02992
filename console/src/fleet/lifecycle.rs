//! Reads from the stream `garenne.lifecycle` which workers started and did not stop.

use std::{collections::BTreeMap, time::Duration};

use garenne_amqp::unreadable;
use garenne_common::exit::Failure;
use garenne_protocol::task::header;
use lapin::{Connection, message::Delivery};
use serde::Deserialize;

use crate::stream_walk::{WalkTimeouts, walk_stream};

const TIMEOUTS: WalkTimeouts =
    WalkTimeouts { first_record: Duration::from_millis(500), last_chunk: Duration::from_millis(20) };

/// Limit on workers, so that forged records cannot exhaust the memory.
const MAX_WORKERS: usize = 5_000;
/// The most bytes of an id.
const MAX_ID: usize = 255;

/// A record of the stream. Marks of starting workers are not records.
#[derive(Deserialize)]
struct LifecycleRecord {
    event: String,
    worker: String,
    incarnation: String,
}

/// Workers with a start record and no stop record: the incarnation by worker.
///
/// # Errors
/// One line and an exit code: the stream is missing, or the user may not read it.
pub(super) async fn running_workers(
    connection: &Connection,
    stream: &str,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut running = BTreeMap::new();
    let visit = |record: &Delivery| {
        if unreadable(&record.properties).is_none() {
            apply(&mut running, &record.data);
        }
    };
    walk_stream(connection, stream, header::long("first"), TIMEOUTS, visit).await?;
    Ok(running)
}

fn fits(worker: &str, incarnation: &str) -> bool {
    worker.len().max(incarnation.len()) <= MAX_ID
}

fn apply(running: &mut BTreeMap<String, String>, record: &[u8]) {
    let Ok(LifecycleRecord { event, worker, incarnation }) = serde_json::from_slice(record) else { return };
    match event.as_str() {
        "hello"
            if fits(&worker, &incarnation)
                && (running.len() < MAX_WORKERS || running.contains_key(&worker)) =>
        {
            running.insert(worker, incarnation);
        }
        "goodbye" if running.get(&worker) == Some(&incarnation) => drop(running.remove(&worker)),
        // Includes a crash: a crashed worker is kept until it starts again, so that operators see it as silent.
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_records_are_bounded() {
        let mut running = BTreeMap::new();
        let hello = |worker: &str| format!(r#"{{"event":"hello","worker":"{worker}","incarnation":"i"}}"#);
        apply(&mut running, hello(&"x".repeat(256)).as_bytes());
        (0..MAX_WORKERS + 9).for_each(|n| apply(&mut running, hello(&n.to_string()).as_bytes()));
        assert_eq!(running.len(), MAX_WORKERS);
    }

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
