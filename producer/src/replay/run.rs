//! Reads a recording, paces its readings, sends them, and prints a summary.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use garenne_common::{
    exit::{Exit, Failure},
    shutdown::Mode,
};
use garenne_gateway::BrokerSettings;
use garenne_protocol::sensor::{Reading, Timestamp};
use serde::Serialize;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{Speed, mapping::Mapping, pace::Pace, recording::Recording};
use crate::{
    destination::{DeliveryConfig, DeliveryCounts, DeliveryQueue, Endpoint, ReceiptFile},
    progress::Progress,
    stop::{self, stop_requested},
};

/// Options of `replay`.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// The recording; `-` for standard input.
    pub file: PathBuf,
    /// The layout, as far as the user gives it.
    pub mapping: Mapping,
    /// The speed of recorded time.
    pub speed: Speed,
    /// Most readings per second; above 0.
    pub rate: Option<f64>,
    /// The URL of a gateway; `None` for the broker.
    pub to: Option<String>,
    /// The token for the gateway.
    pub token: Option<String>,
    /// File to which receipts are appended.
    pub receipts: Option<PathBuf>,
    /// Most readings in one request; 1 or more.
    pub batch: usize,
    /// Requests in flight at once.
    pub in_flight: usize,
    /// How long a request is repeated.
    pub retry_for: Duration,
}

/// Rows that the reader may read ahead.
const READ_AHEAD: usize = 1024;
/// Invalid rows that are printed; further ones are only counted.
const MAX_PRINTED: u64 = 20;

/// How long the reader may take to end after the receiver of its rows is dropped.
const READER_TIMEOUT: Duration = Duration::from_secs(1);

/// The readings of one row.
struct RowReadings {
    readings: Vec<Reading>,
    bytes: u64,
}

/// Counters of the reader.
#[derive(Debug, Default, Serialize)]
struct ReadCounts {
    rows: u64,
    readings: u64,
    missing: u64,
    malformed: u64,
    blank: u64,
}

#[derive(Debug, Serialize)]
struct Summary {
    event: &'static str,
    file: String,
    to: String,
    #[serde(flatten)]
    read: ReadCounts,
    delivered: u64,
    refused: u64,
    undelivered: u64,
    retries: u64,
    first: Option<Timestamp>,
    last: Option<Timestamp>,
    seconds: f64,
    per_second: f64,
    interrupted: bool,
}

/// Replays a recording and writes a summary, one JSON line, to stdout.
///
/// # Errors
/// The file cannot be read or its layout is unknown, or the destination is not available.
pub async fn run(settings: BrokerSettings, options: ReplayOptions) -> Result<Exit, Failure> {
    let (recording, size) = Recording::open(&options.file, &options.mapping)?;
    let receipts = options.receipts.as_deref().map(|path| {
        ReceiptFile::open(path).map_err(|error| {
            Failure::new(Exit::Failed, format!("receipts file {} cannot be written: {error}", path.display()))
        })
    });
    let receipts = receipts.transpose()?;
    let (_sender, mut commands) = stop::commands(Mode::Soft)?;
    let endpoint = Endpoint::open(options.to.as_deref(), options.token.clone(), &settings).await?;

    let progress = Arc::new(Progress::new("replay", size));
    for note in recording.notes() {
        progress.print(note);
    }
    let config = DeliveryConfig { in_flight: options.in_flight, retry_for: options.retry_for };
    let queue = DeliveryQueue::new(Arc::clone(&endpoint.destination), receipts, config);
    let counts = queue.counts();
    let started = Instant::now();
    let (sender, receiver) = mpsc::channel(READ_AHEAD);
    let (report, reported) = oneshot::channel();
    let watched = Arc::clone(&progress);
    // Not a blocking task of the runtime, whose shutdown would wait for it: a read from a silent pipe cannot be
    // cancelled.
    std::thread::spawn(move || report.send(read(recording, &sender, &watched)));

    let mut span = TimeSpan::default();
    let interrupted = tokio::select! {
        () = send_rows(receiver, &queue, &options, &progress, &counts, &mut span, started) => false,
        () = stop_requested(&mut commands) => true,
    };
    if interrupted {
        progress.print("interrupted: completing the requests in flight");
    }
    let failure = tokio::select! {
        failure = queue.finish() => failure,
        () = stop_requested(&mut commands) => return Ok(Exit::Interrupted),
    };
    let read = match tokio::time::timeout(READER_TIMEOUT, reported).await {
        Ok(Ok(Ok(read))) => read,
        Ok(Ok(Err(error))) => {
            return Err(Failure::new(Exit::Failed, format!("{}: {error}", options.file.display())));
        }
        // After an interruption the reader may still wait for input.
        Ok(Err(_)) | Err(_) => ReadCounts::default(),
    };
    progress.finish(figures(&counts, started));
    let summary = summarize(&options, endpoint.name.clone(), read, &counts, &span, started, interrupted);
    endpoint.close().await;
    let line = serde_json::to_string(&summary).expect("a summary is plain JSON");
    println!("{line}");
    match failure {
        Some((reason, exit)) => Err(Failure::new(exit, reason)),
        None if interrupted || summary.refused + summary.undelivered > 0 => Ok(Exit::Failed),
        None => Ok(Exit::Done),
    }
}

/// The recorded times of the readings that were sent.
#[derive(Debug, Default)]
struct TimeSpan {
    first: Option<Timestamp>,
    last: Option<Timestamp>,
}

/// Reads until the end of the recording, or until the receiver of the rows is dropped.
fn read(
    mut recording: Recording,
    rows: &mpsc::Sender<RowReadings>,
    progress: &Progress,
) -> std::io::Result<ReadCounts> {
    let mut count = ReadCounts::default();
    while let Some(numbered) = recording.next()? {
        let row = numbered.row;
        if row.blank {
            count.blank += 1;
            continue;
        }
        count.rows += 1;
        count.missing += row.missing;
        count.readings += row.readings.len() as u64;
        if !row.faults.is_empty() {
            count.malformed += 1;
            if count.malformed <= MAX_PRINTED {
                progress.print(format_args!("line {}: {}", numbered.line, row.faults.join("; ")));
            } else if count.malformed == MAX_PRINTED + 1 {
                progress.print("further invalid rows are counted only");
            }
        }
        if !row.readings.is_empty()
            && rows.blocking_send(RowReadings { readings: row.readings, bytes: recording.bytes() }).is_err()
        {
            break;
        }
    }
    Ok(count)
}

/// Sends the rows when they are due.
async fn send_rows(
    mut rows: mpsc::Receiver<RowReadings>,
    queue: &DeliveryQueue,
    options: &ReplayOptions,
    progress: &Progress,
    counts: &DeliveryCounts,
    span: &mut TimeSpan,
    started: Instant,
) {
    let mut pace = Pace::new(options.speed, options.rate);
    let mut batch = Vec::with_capacity(options.batch);
    while let Some(chunk) = rows.recv().await {
        for reading in chunk.readings {
            let due = pace.due(reading.time);
            if due > Instant::now() {
                // Readings that are due do not wait for those that are not.
                if !batch.is_empty() && !queue.push(std::mem::take(&mut batch)).await {
                    return;
                }
                tokio::time::sleep_until(due).await;
            }
            span.first.get_or_insert(reading.time);
            span.last = Some(reading.time);
            batch.push(reading);
            if batch.len() >= options.batch && !queue.push(std::mem::take(&mut batch)).await {
                return;
            }
        }
        progress.update(chunk.bytes, figures(counts, started));
    }
    if !batch.is_empty() {
        queue.push(batch).await;
    }
}

fn figures(counts: &DeliveryCounts, started: Instant) -> String {
    let delivered = counts.delivered.load(Relaxed);
    let per_second = delivered as f64 / started.elapsed().as_secs_f64().max(1e-3);
    let problems = [("refused", &counts.refused), ("retried", &counts.retries)];
    let problems: String = problems
        .iter()
        .filter_map(|(what, count)| {
            Some(count.load(Relaxed)).filter(|n| *n > 0).map(|n| format!(", {n} {what}"))
        })
        .collect();
    format!("{delivered} confirmed, {per_second:.0}/s{problems}")
}

fn summarize(
    options: &ReplayOptions,
    to: String,
    read: ReadCounts,
    counts: &DeliveryCounts,
    span: &TimeSpan,
    started: Instant,
    interrupted: bool,
) -> Summary {
    let seconds = started.elapsed().as_secs_f64();
    let delivered = counts.delivered.load(Relaxed);
    let refused = counts.refused.load(Relaxed);
    Summary {
        event: "replay_summary",
        file: options.file.display().to_string(),
        to,
        delivered,
        refused,
        // Including readings that were read and not sent.
        undelivered: read.readings.saturating_sub(delivered + refused),
        retries: counts.retries.load(Relaxed),
        first: span.first,
        last: span.last,
        seconds: (seconds * 1000.0).round() / 1000.0,
        per_second: (delivered as f64 / seconds.max(1e-3)).round(),
        interrupted,
        read,
    }
}
