//! `replay`: sends the readings of a recording, at the recorded speed or another.

mod civil_time;
mod fields;
mod heading;
mod layout;
mod line_reader;
mod mapping;
mod number;
mod pace;
mod recording;
mod row;

use std::{
    io,
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use garenne_common::{
    exit::{Exit, Failure},
    shutdown::{Mode, signal, stop_requested},
    supervise::{ThreadHandle, spawn_thread},
};
use garenne_gateway::BrokerSettings;
use garenne_protocol::sensor::{Reading, Timestamp};
use serde::Serialize;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};

use crate::{
    args::{SendingArgs, positive},
    destination::{DeliveryCounts, DeliveryQueue, Endpoint, RetryingSender},
    progress::{Progress, print_summary, thousandths},
};
use mapping::Mapping;
use pace::Pace;
use recording::Recording;

/// Flags of `replay`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReplayArgs {
    /// Recording to send; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Speed: max, or a factor of the recorded speed such as 60x
    #[arg(long, value_name = "SPEED", default_value = "max", value_parser = pace::speed)]
    speed: f64,
    /// Most readings per second
    #[arg(long, value_name = "N", value_parser = positive)]
    rate: Option<f64>,
    #[command(flatten)]
    sending: SendingArgs,
    /// Description of the file's columns, in TOML
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    #[command(flatten)]
    mapping: Mapping,
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
#[derive(Debug, Default, PartialEq, Serialize)]
struct ReadCounts {
    rows: u64,
    readings: u64,
    missing: u64,
    malformed: u64,
    blank: u64,
}

/// The recorded times of the readings that were sent.
#[derive(Debug, Default, Serialize)]
struct TimeSpan {
    first: Option<Timestamp>,
    last: Option<Timestamp>,
}

#[derive(Debug, Serialize)]
struct Summary<'a> {
    event: &'static str,
    file: String,
    to: &'a str,
    #[serde(flatten)]
    read: ReadCounts,
    #[serde(flatten)]
    counts: &'a DeliveryCounts,
    #[serde(flatten)]
    span: TimeSpan,
    seconds: f64,
    per_second: f64,
    interrupted: bool,
}

/// Replays a recording and writes a summary, one JSON line, to stdout.
///
/// # Errors
/// The file cannot be read or its layout is unknown, or the destination is not available.
pub(crate) async fn run(settings: BrokerSettings, args: ReplayArgs) -> Result<Exit, Failure> {
    let ReplayArgs { file, speed, rate, sending, map, mapping } = args;
    let mapping = mapping.or(map.as_deref().map(Mapping::read).transpose()?.unwrap_or_default());
    let (recording, size) = Recording::open(&file, &mapping)?;
    let sender = RetryingSender::open(&sending)?;
    let (_sender, mut commands) = signal::commands(Mode::Soft).context("cannot install signal handlers")?;
    let endpoint = Endpoint::open(&sending, &settings).await?;

    let progress = Arc::new(Progress::new("replay", size));
    for note in recording.notes() {
        progress.print(note);
    }
    let queue = DeliveryQueue::new(Arc::clone(&sender), Arc::clone(&endpoint.destination), sending.in_flight);
    let started = Instant::now();
    let figures = || figures(&sender.counts, started.elapsed());
    let (rows, reader) = spawn_reader(recording, Arc::clone(&progress)).context("reading the recording")?;

    let mut span = TimeSpan::default();
    let interrupted = tokio::select! {
        () = send_rows(rows, &queue, Pace::new(speed, rate), sending.batch, &mut span, |bytes| {
            progress.update(bytes, figures());
        }) => false,
        () = stop_requested(&mut commands) => true,
    };
    if interrupted {
        progress.print("interrupted: completing the requests in flight");
    }
    tokio::select! {
        () = queue.finish() => {}
        () = stop_requested(&mut commands) => return Ok(Exit::Interrupted),
    }
    let read = read_counts(reader).await.with_context(|| file.display().to_string())?;
    let elapsed = started.elapsed();
    progress.finish(figures());
    let counts = &sender.counts;
    let settled = counts.delivered.load(Relaxed) + counts.refused.load(Relaxed);
    // Including readings that were read and not sent.
    counts.undelivered.store(read.readings.saturating_sub(settled), Relaxed);
    print_summary(&Summary {
        event: "replay_summary",
        file: file.display().to_string(),
        to: &endpoint.name,
        read,
        counts,
        span,
        seconds: thousandths(elapsed.as_secs_f64()),
        per_second: counts.per_second(elapsed).round(),
        interrupted,
    });
    endpoint.close().await;
    match sender.failure() {
        Some(failure) => Err(failure),
        None if interrupted || !counts.complete() => Ok(Exit::Failed),
        None => Ok(Exit::Done),
    }
}

/// Starts the thread that reads the recording, and returns its rows.
fn spawn_reader(
    recording: Recording,
    progress: Arc<Progress>,
) -> io::Result<(mpsc::Receiver<RowReadings>, ThreadHandle<io::Result<ReadCounts>>)> {
    let (sender, rows) = mpsc::channel(READ_AHEAD);
    // Not a blocking task of the runtime, whose shutdown would wait for it: a read from a silent pipe cannot be
    // cancelled.
    let reader = spawn_thread("reader", move || read(recording, &sender, &progress))?;
    Ok((rows, reader))
}

/// The counters of the reader, after the receiver of its rows was dropped.
///
/// # Errors
/// Reading failed, or the reader panicked: the rows that were sent are not the whole recording.
async fn read_counts(reader: ThreadHandle<io::Result<ReadCounts>>) -> anyhow::Result<ReadCounts> {
    match timeout(READER_TIMEOUT, reader).await {
        Ok(result) => Ok(result??),
        // After an interruption the reader may still wait for input.
        Err(_) => Ok(ReadCounts::default()),
    }
}

/// Reads until the end of the recording, or until the receiver of the rows is dropped.
fn read(
    mut recording: Recording,
    rows: &mpsc::Sender<RowReadings>,
    progress: &Progress,
) -> io::Result<ReadCounts> {
    let mut count = ReadCounts::default();
    while let Some((line, row)) = recording.next()? {
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
                progress.print(format_args!("line {line}: {}", row.faults.join("; ")));
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

/// Sends the rows when they are due, in requests of at most `batch` readings. Calls `sent` with the bytes of the
/// recording after each row.
async fn send_rows(
    mut rows: mpsc::Receiver<RowReadings>,
    queue: &DeliveryQueue,
    mut pace: Pace,
    max_batch: usize,
    span: &mut TimeSpan,
    sent: impl Fn(u64),
) {
    let mut batch = Vec::with_capacity(max_batch);
    while let Some(row) = rows.recv().await {
        for reading in row.readings {
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
            if batch.len() >= max_batch && !queue.push(std::mem::take(&mut batch)).await {
                return;
            }
        }
        sent(row.bytes);
    }
    if !batch.is_empty() {
        queue.push(batch).await;
    }
}

fn figures(counts: &DeliveryCounts, elapsed: Duration) -> String {
    let problems = [("refused", &counts.refused), ("retried", &counts.retries)].map(|(what, count)| {
        let count = count.load(Relaxed);
        if count > 0 { format!(", {count} {what}") } else { String::new() }
    });
    let delivered = counts.delivered.load(Relaxed);
    format!("{delivered} confirmed, {:.0}/s{}", counts.per_second(elapsed), problems.concat())
}

#[cfg(test)]
mod tests {
    use std::{io::Read, panic::resume_unwind};

    use super::*;

    struct PanickingInput;

    impl Read for PanickingInput {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            // Without the panic hook, which would print a backtrace.
            resume_unwind(Box::new("no buffer"))
        }
    }

    async fn read_all(end: impl Read + Send + 'static) -> (usize, anyhow::Result<ReadCounts>) {
        let row = "2026-01-01T00:00:00Z,1";
        // The comment is longer than the sample from which the layout is detected.
        let lines = format!("{row}\n#{}\n{row}\n", "x".repeat(600_000));
        let input = io::Cursor::new(lines).chain(end);
        let recording = Recording::new(Box::new(input), &Mapping::default(), "file").unwrap();
        let progress = Arc::new(Progress::new("replay", None));
        let (mut rows, reader) = spawn_reader(recording, progress).unwrap();
        let mut received = 0;
        while rows.recv().await.is_some() {
            received += 1;
        }
        (received, read_counts(reader).await)
    }

    #[tokio::test]
    async fn a_panic_of_the_reader_is_an_error_and_not_the_end_of_the_recording() {
        let (rows, counts) = read_all(io::empty()).await;
        let all = ReadCounts { rows: 2, readings: 2, blank: 1, ..ReadCounts::default() };
        assert_eq!((rows, counts.unwrap()), (2, all));
        let (rows, counts) = read_all(PanickingInput).await;
        assert_eq!((rows, counts.unwrap_err().to_string().as_str()), (2, "panicked: no buffer"));
    }
}
