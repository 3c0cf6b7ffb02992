//! The replay itself: read, wait until due, batch, deliver, sum up.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use garenne_common::{
    exit::{Exit, Failure},
    shutdown::Command,
};
use garenne_gateway::BrokerSettings;
use garenne_protocol::sensor::{Reading, Timestamp};
use serde::Serialize;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{Speed, mapping::Mapping, pace::Pace, source::Source};
use crate::{
    deliver::{Courier, CourierConfig, Receipts, Tally, Target},
    progress::Progress,
    stop::stop_requested,
};

/// What to replay, where to and how fast.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// The recording; `-` for standard input.
    pub file: PathBuf,
    /// How it is laid out, as far as the user says.
    pub mapping: Mapping,
    /// How fast recorded time runs.
    pub speed: Speed,
    /// Readings a second at most; over 0.
    pub rate: Option<f64>,
    /// A gateway's URL; the broker itself when not given.
    pub to: Option<String>,
    /// The gateway's token.
    pub token: Option<String>,
    /// Where receipts are appended.
    pub receipts: Option<PathBuf>,
    /// Readings in one request at most, 1 or more.
    pub batch: usize,
    /// Requests under way at once.
    pub in_flight: usize,
    /// How long a request is repeated.
    pub retry_for: Duration,
}

/// Rows the reader may be ahead.
const AHEAD: usize = 1024;
/// Broken rows that are told one by one; further ones are only counted.
const TOLD: u64 = 20;

/// How long a reader that nobody listens to may take to notice.
const READER_GRACE: Duration = Duration::from_secs(1);

struct Chunk {
    readings: Vec<Reading>,
    bytes: u64,
}

/// What the reader counted.
#[derive(Debug, Default, Serialize)]
struct Read {
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
    read: Read,
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
/// The file cannot be understood, or the destination cannot be had.
pub async fn run(
    settings: BrokerSettings,
    options: ReplayOptions,
    mut commands: mpsc::Receiver<Command>,
) -> Result<Exit, Failure> {
    let (source, size) = Source::open(&options.file, &options.mapping)?;
    let receipts = options.receipts.as_deref().map(|path| {
        Receipts::open(path).map_err(|error| {
            Failure::new(Exit::Failed, format!("receipts file {} cannot be written: {error}", path.display()))
        })
    });
    let receipts = receipts.transpose()?;
    let target = Target::open(options.to.as_deref(), options.token.clone(), &settings).await?;

    let progress = Arc::new(Progress::new("replay", size));
    for note in source.notes() {
        progress.say(note);
    }
    let config = CourierConfig { in_flight: options.in_flight, retry_for: options.retry_for };
    let courier = Courier::new(Arc::clone(&target.destination), receipts, config);
    let tally = courier.tally();
    let started = Instant::now();
    let (sender, receiver) = mpsc::channel(AHEAD);
    let (report, reported) = oneshot::channel();
    let watched = Arc::clone(&progress);
    // A thread of its own: a read from a silent pipe cannot be called off, and must not hold up the
    // runtime's end.
    std::thread::spawn(move || report.send(read(source, &sender, &watched)));

    let mut span = Span::default();
    let interrupted = tokio::select! {
        () = feed(receiver, &courier, &options, &progress, &tally, &mut span, started) => false,
        () = stop_requested(&mut commands) => true,
    };
    if interrupted {
        progress.say("interrupted: what is under way is still delivered");
    }
    let failure = tokio::select! {
        failure = courier.finish() => failure,
        () = stop_requested(&mut commands) => return Ok(Exit::Interrupted),
    };
    let read = match tokio::time::timeout(READER_GRACE, reported).await {
        Ok(Ok(Ok(read))) => read,
        Ok(Ok(Err(error))) => {
            return Err(Failure::new(Exit::Failed, format!("{}: {error}", options.file.display())));
        }
        // It waits for more input, which only an interruption leaves it to.
        Ok(Err(_)) | Err(_) => Read::default(),
    };
    progress.finish(figures(&tally, started));
    let summary = summarize(&options, target.name.clone(), read, &tally, &span, started, interrupted);
    target.close().await;
    let line = serde_json::to_string(&summary).expect("a summary is plain JSON");
    println!("{line}");
    match failure {
        Some((why, exit)) => Err(Failure::new(exit, why)),
        None if interrupted || summary.refused + summary.undelivered > 0 => Ok(Exit::Failed),
        None => Ok(Exit::Done),
    }
}

/// Recorded times of what was sent.
#[derive(Debug, Default)]
struct Span {
    first: Option<Timestamp>,
    last: Option<Timestamp>,
}

/// Reads to the end, or until nobody takes the rows any more.
fn read(mut source: Source, rows: &mpsc::Sender<Chunk>, progress: &Progress) -> std::io::Result<Read> {
    let mut count = Read::default();
    while let Some(numbered) = source.next()? {
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
            if count.malformed <= TOLD {
                progress.say(format_args!("line {}: {}", numbered.line, row.faults.join("; ")));
            } else if count.malformed == TOLD + 1 {
                progress.say("further broken rows are only counted");
            }
        }
        if !row.readings.is_empty()
            && rows.blocking_send(Chunk { readings: row.readings, bytes: source.bytes() }).is_err()
        {
            break;
        }
    }
    Ok(count)
}

async fn feed(
    mut rows: mpsc::Receiver<Chunk>,
    courier: &Courier,
    options: &ReplayOptions,
    progress: &Progress,
    tally: &Tally,
    span: &mut Span,
    started: Instant,
) {
    let mut pace = Pace::new(options.speed, options.rate);
    let mut batch = Vec::with_capacity(options.batch);
    while let Some(chunk) = rows.recv().await {
        for reading in chunk.readings {
            let due = pace.due(reading.time);
            if due > Instant::now() {
                // What is due already does not wait for what is not.
                if !batch.is_empty() && !courier.send(std::mem::take(&mut batch)).await {
                    return;
                }
                tokio::time::sleep_until(due).await;
            }
            span.first.get_or_insert(reading.time);
            span.last = Some(reading.time);
            batch.push(reading);
            if batch.len() >= options.batch && !courier.send(std::mem::take(&mut batch)).await {
                return;
            }
        }
        progress.at(chunk.bytes, figures(tally, started));
    }
    if !batch.is_empty() {
        courier.send(batch).await;
    }
}

fn figures(tally: &Tally, started: Instant) -> String {
    let delivered = tally.delivered.load(Relaxed);
    let per_second = delivered as f64 / started.elapsed().as_secs_f64().max(1e-3);
    let troubles = [("refused", &tally.refused), ("retried", &tally.retries)];
    let troubles: String = troubles
        .iter()
        .filter_map(|(what, count)| {
            Some(count.load(Relaxed)).filter(|n| *n > 0).map(|n| format!(", {n} {what}"))
        })
        .collect();
    format!("{delivered} safe, {per_second:.0}/s{troubles}")
}

fn summarize(
    options: &ReplayOptions,
    to: String,
    read: Read,
    tally: &Tally,
    span: &Span,
    started: Instant,
    interrupted: bool,
) -> Summary {
    let seconds = started.elapsed().as_secs_f64();
    let delivered = tally.delivered.load(Relaxed);
    let refused = tally.refused.load(Relaxed);
    Summary {
        event: "replay_summary",
        file: options.file.display().to_string(),
        to,
        delivered,
        refused,
        // Also what was read and never sent.
        undelivered: read.readings.saturating_sub(delivered + refused),
        retries: tally.retries.load(Relaxed),
        first: span.first,
        last: span.last,
        seconds: (seconds * 1000.0).round() / 1000.0,
        per_second: (delivered as f64 / seconds.max(1e-3)).round(),
        interrupted,
        read,
    }
}
