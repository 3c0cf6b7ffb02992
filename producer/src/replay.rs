//! `replay`: sends the readings of a recording, at the recorded speed or another.

mod civil_time;
mod date_jump;
mod dry_run;
mod encoding;
mod fields;
mod heading;
mod inferred_mapping;
mod layout;
mod line_reader;
mod mapping;
mod missing_codes;
mod moment;
mod name;
mod named_date;
mod number;
mod pace;
mod reader;
mod recording;
mod repeated_hour;
mod repeated_keys;
mod row;
mod source;

use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use garenne_common::{
    exit::{Exit, Failure},
    shutdown::{Mode, signal, stop_requested},
    stdout,
};
use garenne_protocol::sensor::{Limits, Timestamp};
use garenne_publish::{BrokerSettings, SpoolCounts, SpoolSettings};
use serde::Serialize;
use tokio::{sync::mpsc, time::Instant};

use crate::{
    args::{SendingArgs, positive},
    destination::{DeliveryCounts, DeliveryQueue, Endpoint, RetryingSender},
    progress::{Progress, print_summary, thousandths},
};
use mapping::Mapping;
use pace::Pace;
use reader::{ReadCounts, RowReadings, read_counts, spawn_reader};
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
    /// Print the layout as a map and the first readings, and send nothing
    #[arg(long)]
    dry_run: bool,
    /// Most malformed rows, and malformed values of other rows, for exit code 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_malformed: u64,
    /// Most readings for exit code 0 that contradict an earlier one of the recording
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_contradicting: u64,
    #[command(flatten)]
    sending: SendingArgs,
    /// Description of the file's columns, in TOML
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    #[command(flatten)]
    mapping: Mapping,
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
    read: &'a ReadCounts,
    #[serde(flatten)]
    counts: &'a DeliveryCounts,
    #[serde(flatten)]
    spool: Option<SpoolCounts>,
    #[serde(flatten)]
    span: TimeSpan,
    notes: &'a [String],
    seconds: f64,
    per_second: f64,
    interrupted: bool,
}

/// Replays a recording and writes a summary, one JSON line, to stdout. Fails if no reading got in, or more rows and
/// values than allowed are malformed or contradict earlier ones.
pub(crate) async fn run(
    settings: BrokerSettings,
    spool: SpoolSettings,
    limits: Limits,
    args: ReplayArgs,
) -> Result<Exit, Failure> {
    let ReplayArgs { file, speed, rate, dry_run, max_malformed, max_contradicting, sending, map, mapping } =
        args;
    let check = |read: &ReadCounts, delivered| check(read, delivered, max_malformed, max_contradicting);
    let mapping = mapping.or(map.as_deref().map(Mapping::read).transpose()?.unwrap_or_default());
    let (mut recording, size) = Recording::open(&file, &mapping)?;
    let mut notes = recording.notes().to_vec();
    let progress = Arc::new(Progress::new("replay", size.filter(|_| !dry_run)));
    notes.iter().for_each(|note| progress.print(note));
    if dry_run {
        let (text, read) = dry_run::run(recording, &limits, &file, &progress)?;
        stdout::print(text)?;
        return check(&read, read.readings).map(|()| Exit::Done);
    }
    let is_file = recording.is_file();
    if is_file {
        // What is wrong with a file is said before anything is sent.
        let context = || file.display().to_string();
        let read = reader::read(&mut recording, &limits, Some(&progress), |_| true).with_context(context)?;
        read.notes().iter().for_each(|note| progress.print(note));
        if read.readings == 0 {
            check(&read, 0)?;
        }
        recording.rewind().with_context(context)?;
    }
    let sender = RetryingSender::open(&sending)?;
    let (_sender, mut commands) = signal::commands(Mode::Soft).context("cannot install signal handlers")?;
    let endpoint = Endpoint::open(&sending, &settings, spool).await?;

    let queue = DeliveryQueue::new(Arc::clone(&sender), Arc::clone(&endpoint.destination), sending.in_flight);
    let started = Instant::now();
    let figures = || figures(&sender.counts, started.elapsed());
    let (rows, reader) = spawn_reader(recording, limits, (!is_file).then(|| Arc::clone(&progress)))
        .context("reading the recording")?;

    let mut span = TimeSpan::default();
    let interrupted = tokio::select! {
        () = send_rows(rows, &queue, Pace::new(speed, rate), sending.batch, &mut span, |bytes| {
            progress.update(bytes, figures());
        }) => false,
        () = stop_requested(&mut commands) => true,
    };
    if interrupted {
        progress.print("interrupted: completing the requests in flight");
        sender.stopped.cancel();
    }
    tokio::select! {
        () = queue.finish() => {}
        () = stop_requested(&mut commands) => return Ok(Exit::Interrupted),
    }
    let read = read_counts(reader).await.with_context(|| file.display().to_string())?;
    let elapsed = started.elapsed();
    progress.finish(figures());
    if !is_file {
        read.notes().iter().for_each(|note| progress.print(note));
    }
    notes.extend(read.notes());
    let counts = &sender.counts;
    let settled = counts.delivered.load(Relaxed) + counts.refused.load(Relaxed);
    // Including readings that were read and not sent.
    counts.undelivered.store(read.readings.saturating_sub(settled), Relaxed);
    let to = endpoint.name.clone();
    let spool = endpoint.close().await;
    progress.spooled(spool.as_ref());
    print_summary(&Summary {
        event: "replay_summary",
        file: file.display().to_string(),
        to: &to,
        read: &read,
        counts,
        spool,
        span,
        notes: &notes,
        seconds: thousandths(elapsed.as_secs_f64()),
        per_second: counts.per_second(elapsed).round(),
        interrupted,
    })?;
    match sender.failure() {
        Some(failure) => Err(failure),
        None if interrupted => Ok(Exit::Failed),
        None => {
            check(&read, counts.delivered.load(Relaxed))?;
            Ok(if counts.complete() { Exit::Done } else { Exit::Failed })
        }
    }
}

/// Checks that readings got in, and that not too many rows and values are malformed or contradict each other.
fn check(
    read: &ReadCounts,
    readings: u64,
    max_malformed: u64,
    max_contradicting: u64,
) -> Result<(), Failure> {
    let ReadCounts { rows, malformed, malformed_values: values, missing, .. } = read;
    let contradicting = read.contradicting_readings;
    let failed = |problem: String| Err(Failure::new(Exit::Failed, problem));
    if readings == 0 {
        return failed(format!(
            "no reading got in: {rows} rows, {malformed} malformed, {missing} missing values"
        ));
    }
    if malformed + values > max_malformed {
        let values = if *values > 0 { format!(" and {values} values of others") } else { String::new() };
        return failed(format!(
            "{malformed} of {rows} rows{values} are malformed, --max-malformed allows {max_malformed}"
        ));
    }
    if contradicting > max_contradicting {
        return failed(format!(
            "{contradicting} readings contradict earlier ones, --max-contradicting allows {max_contradicting}"
        ));
    }
    Ok(())
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
    use super::*;

    #[test]
    fn a_replay_fails_if_nothing_got_in_or_too_much_is_malformed_or_contradicts_others() {
        let read = ReadCounts {
            rows: 10,
            malformed: 3,
            missing: 2,
            contradicting_readings: 1,
            ..ReadCounts::default()
        };
        let failed = |readings, malformed, contradicting| {
            check(&read, readings, malformed, contradicting).map_err(|failure| (failure.exit, failure.line))
        };
        assert_eq!(failed(5, 3, 1), Ok(()));
        let few = "3 of 10 rows are malformed, --max-malformed allows 2";
        assert_eq!(failed(5, 2, 1), Err((Exit::Failed, few.to_owned())));
        let one = "1 readings contradict earlier ones, --max-contradicting allows 0";
        assert_eq!(failed(5, 3, 0), Err((Exit::Failed, one.to_owned())));
        let none = "no reading got in: 10 rows, 3 malformed, 2 missing values";
        assert_eq!(failed(0, 3, 1), Err((Exit::Failed, none.to_owned())));
        let read = ReadCounts { malformed_values: 2, ..read };
        let cells = |max| check(&read, 5, max, 1).map_err(|failure| failure.line);
        assert_eq!(cells(5), Ok(()));
        let few = "3 of 10 rows and 2 values of others are malformed, --max-malformed allows 4";
        assert_eq!(cells(4), Err(few.to_owned()));
    }
}
