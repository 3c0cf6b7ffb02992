//! Reads from the stream `garenne.lifecycle` which workers started and did not stop.

use std::{collections::BTreeMap, time::Duration};

use garenne_amqp::unreadable;
use garenne_common::exit::Failure;
use garenne_protocol::task::header;
use lapin::{Connection, message::Delivery};
use serde::Deserialize;

use super::starts::ProcessStarts;
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
    #[serde(default)]
    at: i64,
}

/// A worker on record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedWorker {
    /// Its last incarnation.
    pub incarnation: String,
    /// Its starts, the times in milliseconds since 1970.
    pub starts: ProcessStarts,
    /// Whether the last one did not stop.
    pub runs: bool,
}

impl RecordedWorker {
    /// Whether it should have sent a heartbeat: its last start is longer ago than this, in milliseconds.
    pub fn is_due(&self, after: i64, now: i64) -> bool {
        let last = self.starts.iter().map(|(_, at)| at).max();
        self.runs && last.is_none_or(|at| now - at > after)
    }
}

/// Workers with a start record, by name.
pub async fn recorded_workers(
    connection: &Connection,
    stream: &str,
    now: i64,
) -> Result<BTreeMap<String, RecordedWorker>, Failure> {
    let mut workers = BTreeMap::new();
    let visit = |record: &Delivery| {
        if unreadable(&record.properties).is_none() {
            apply(&mut workers, &record.data, now);
        }
    };
    walk_stream(connection, stream, header::long("first"), TIMEOUTS, visit).await?;
    Ok(workers)
}

fn fits(worker: &str, incarnation: &str) -> bool {
    worker.len().max(incarnation.len()) <= MAX_ID
}

fn apply(workers: &mut BTreeMap<String, RecordedWorker>, record: &[u8], now: i64) {
    let Ok(LifecycleRecord { event, worker, incarnation, at }) = serde_json::from_slice(record) else {
        return;
    };
    match event.as_str() {
        "hello"
            if fits(&worker, &incarnation)
                && (workers.len() < MAX_WORKERS || workers.contains_key(&worker)) =>
        {
            let known = workers.entry(worker).or_default();
            // A worker repeats its record after a reconnect: the first one counts.
            known.starts.add(&incarnation, at.min(now), now);
            (known.incarnation, known.runs) = (incarnation, true);
        }
        "goodbye" => {
            if let Some(known) = workers.get_mut(&worker).filter(|known| known.incarnation == incarnation) {
                known.runs = false;
            }
        }
        // Includes a crash: a crashed worker is kept until it starts again, so that operators see it as silent.
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::starts::{MAX_STARTS, STARTS_WINDOW};

    const NOW: i64 = 1_000_000;

    #[test]
    fn forged_records_are_bounded() {
        let mut workers = BTreeMap::new();
        let mut apply = |worker: &str, n: usize| {
            let record = format!(r#"{{"event":"hello","worker":"{worker}","incarnation":"{n}","at":{NOW}}}"#);
            super::apply(&mut workers, record.as_bytes(), NOW);
        };
        apply(&"x".repeat(256), 0);
        (0..MAX_WORKERS + 9).for_each(|n| apply(&n.to_string(), n));
        (0..1_000).for_each(|n| apply("7", n));
        assert_eq!((workers.len(), workers["7"].starts.iter().count()), (MAX_WORKERS, MAX_STARTS));
    }

    #[test]
    fn workers_with_a_start_and_no_stop_record_are_running() {
        let mut workers = BTreeMap::new();
        for record in [
            r#"{"event":"hello","worker":"a","incarnation":"1","at":1}"#,
            r#"{"event":"hello","worker":"b","incarnation":"2","at":2}"#,
            r#"{"mark":"2"}"#,
            r#"{"event":"hello","worker":"a","incarnation":"3","at":3}"#,
            r#"{"event":"goodbye","worker":"a","incarnation":"1","at":4}"#,
            r#"{"event":"died","worker":"b","incarnation":"2","at":5}"#,
            r#"{"event":"hello","worker":"a","incarnation":"3","at":6}"#,
            r#"{"event":"hello","worker":"c","incarnation":"4","at":6}"#,
            r#"{"event":"goodbye","worker":"c","incarnation":"4","at":7}"#,
        ] {
            apply(&mut workers, record.as_bytes(), STARTS_WINDOW + 2);
        }
        let worker = |incarnation: &str, at: &[i64], runs| {
            let mut starts = ProcessStarts::default();
            at.iter().for_each(|at| starts.add(incarnation, *at, *at));
            RecordedWorker { incarnation: incarnation.to_owned(), starts, runs }
        };
        let expected =
            [("a", worker("3", &[3], true)), ("b", worker("2", &[], true)), ("c", worker("4", &[6], false))];
        let expected = expected.map(|(name, worker)| (name.to_owned(), worker));
        assert_eq!(
            workers,
            BTreeMap::from(expected),
            "older starts are forgotten, and a repeated record is none"
        );
    }
}
