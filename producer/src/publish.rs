//! `publish`: publishes NDJSON lines as tasks of any kind, without a gateway.

use std::{
    io::{BufRead, BufReader},
    mem,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use futures_util::{StreamExt, stream::FuturesUnordered};
use garenne_common::{
    backoff::Backoff,
    exit::{Exit, Failure},
    shutdown::{Command, Mode, signal, stop_requested},
    stdout, supervise,
};
use garenne_protocol::{
    sensor::{
        Limits, Timestamp,
        parse::{Form, readings_in},
    },
    task::{ContentType, Kind, NewTask, TaskId},
};
use garenne_publish::{BrokerSettings, READING_KIND, Sending, SpoolCounts, SpoolSettings, SpoolingSender};
use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    destination::{BrokerConnection, SendError, not_accepted},
    input,
    progress::{Progress, print_summary, print_summary_to_stderr, thousandths},
};

/// Flags of `publish`.
#[derive(Debug, Clone, Args)]
pub(crate) struct PublishArgs {
    /// Kind of the tasks; a lane must take it
    #[arg(long, value_name = "KIND", default_value = READING_KIND)]
    kind: String,
    /// File to read [default: standard input]
    #[arg(long, value_name = "F")]
    file: Option<PathBuf>,
    /// Field with the task id; tasks with the same id take effect once
    #[arg(long, value_name = "NAME")]
    id_field: Option<String>,
    /// Field with the task key: in a lane with several shards, tasks with the same key go to the same
    /// queue [default: the task id]
    #[arg(long, value_name = "NAME")]
    key_field: Option<String>,
    /// Group of the tasks, to stop, pause or await them together
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Delay before the tasks may start
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    delay: Option<Duration>,
    /// Timeout of each attempt
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    /// Directory to store tasks in that the broker does not confirm in time (spool_after) [default: wait]
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,
    /// Print the id of each task after its confirm, one per line; the summary then goes to stderr
    #[arg(long)]
    ids: bool,
    /// How long a refused task is published again
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    retry_for: Duration,
}

/// Most unconfirmed tasks.
const MAX_IN_FLIGHT: usize = 1000;
/// Invalid lines that are printed; further ones are only counted.
const MAX_PRINTED: u64 = 20;

#[derive(Debug, Default, Serialize)]
struct Summary {
    event: &'static str,
    kind: String,
    lines: u64,
    published: u64,
    malformed: u64,
    unpublished: u64,
    retries: u64,
    seconds: f64,
    interrupted: bool,
    #[serde(flatten)]
    spool: Option<SpoolCounts>,
}

/// A line of the input.
struct NumberedLine {
    number: u64,
    /// Bytes read so far.
    bytes: u64,
    text: Vec<u8>,
}

/// Publishes every line, and writes a summary, one JSON line, to stdout.
pub(crate) async fn run(
    settings: BrokerSettings,
    spool: SpoolSettings,
    limits: Limits,
    args: PublishArgs,
) -> Result<Exit, Failure> {
    let kind = settings.routes().kind(&args.kind).map_err(|refusal| Failure::new(Exit::Failed, refusal))?;
    let path = args.file.as_deref().unwrap_or(Path::new("-"));
    let (input, size) = input::open(path).with_context(|| path.display().to_string())?;
    let (_sender, mut commands) = signal::commands(Mode::Soft).context("cannot install signal handlers")?;
    let spool = SpoolSettings { spool: args.spool.clone(), ..spool };
    let broker = BrokerConnection::open(&settings, Sending::command(MAX_IN_FLIGHT), &spool).await?;
    let progress = Progress::new("publish", size);
    let input = BufReader::new(input);
    let (mut summary, failure) = publish_lines(
        input,
        (&kind, &limits),
        &args,
        &broker.tasks,
        &progress,
        &mut commands,
        stdout::print_line,
    )
    .await?;
    summary.spool = broker.close().await;
    progress.spooled(summary.spool.as_ref());
    progress.finish(format_args!("{} confirmed, {} malformed", summary.published, summary.malformed));
    if args.ids {
        print_summary_to_stderr(&summary);
    } else {
        print_summary(&summary)?;
    }
    match failure {
        Some(failure) => Err(failure),
        None if summary.interrupted || summary.malformed > 0 => Ok(Exit::Failed),
        None => Ok(Exit::Done),
    }
}

/// Publishes every line until the end of the input, a stop command or the first failure, and completes what it began. After a
/// stop command no refused task is published again, and a second one waits for no confirm.
async fn publish_lines(
    input: impl BufRead + Send + 'static,
    (kind, limits): (&Kind, &Limits),
    args: &PublishArgs,
    sender: &SpoolingSender,
    progress: &Progress,
    commands: &mut mpsc::Receiver<Command>,
    print_id: impl Fn(TaskId) -> Result<(), Failure>,
) -> anyhow::Result<(Summary, Option<Failure>)> {
    let (read_lines, mut lines) = mpsc::channel(MAX_IN_FLIGHT);
    // Not a blocking task of the runtime, whose shutdown would wait for it: a read from a silent pipe cannot be
    // cancelled.
    let mut reader = supervise::spawn_thread("reader", move || read(input, &read_lines))?;
    let started = Instant::now();
    let mut summary = Summary { event: "publish_summary", kind: kind.to_string(), ..Summary::default() };
    let mut failure = None;
    let mut in_flight = FuturesUnordered::new();
    let stop = CancellationToken::new();
    let mut open = true;
    while open || !in_flight.is_empty() {
        tokio::select! {
            Some((retries, result)) = in_flight.next(), if !in_flight.is_empty() => {
                summary.retries += retries;
                let result = match result {
                    Ok(id) => {
                        summary.published += 1;
                        if args.ids { print_id(id) } else { Ok(()) }
                    }
                    Err(error) => {
                        summary.unpublished += 1;
                        Err(error)
                    }
                };
                if let Err(error) = result {
                    failure.get_or_insert(error);
                    open = false;
                }
            }
            line = lines.recv(), if open && in_flight.len() < MAX_IN_FLIGHT => match line {
                // The lines also end if the reader panicked.
                None => {
                    open = false;
                    if let Err(error) = (&mut reader).await.context("reading the input").flatten() {
                        failure.get_or_insert(error.into());
                    }
                }
                Some(NumberedLine { number, bytes, text }) => {
                    progress.update(bytes, format_args!("{} confirmed", summary.published));
                    if text.iter().all(u8::is_ascii_whitespace) {
                        continue;
                    }
                    summary.lines += 1;
                    match task(&text, kind, limits, args) {
                        Ok(task) => in_flight.push(send(sender, task, args.retry_for, stop.clone())),
                        Err(problem) => {
                            summary.malformed += 1;
                            if summary.malformed <= MAX_PRINTED {
                                progress.print(format_args!("line {number}: {problem}"));
                            }
                        }
                    }
                }
            },
            () = stop_requested(commands) => {
                open = false;
                if mem::replace(&mut summary.interrupted, true) {
                    summary.unpublished += in_flight.len() as u64;
                    let problem = format!("interrupted: {} tasks are not confirmed, and may be published", in_flight.len());
                    failure = Some(Failure::new(Exit::Interrupted, problem));
                    break;
                }
                progress.print(format_args!("interrupted: waiting for {} tasks in flight", in_flight.len()));
                stop.cancel();
            }
        }
    }
    summary.seconds = thousandths(started.elapsed().as_secs_f64());
    Ok((summary, failure))
}

/// Sends the lines until the end of the input, or until the receiver is dropped.
fn read(mut reader: impl BufRead, lines: &mpsc::Sender<NumberedLine>) -> anyhow::Result<()> {
    let mut bytes = 0;
    for number in 1.. {
        let mut text = Vec::new();
        let read = reader.read_until(b'\n', &mut text).with_context(|| format!("line {number}"))?;
        bytes += read as u64;
        if number == 1 {
            input::refuse_compressed(&text)?;
        }
        if read == 0 || lines.blocking_send(NumberedLine { number, bytes, text }).is_err() {
            break;
        }
    }
    Ok(())
}

/// Converts a line into a task.
fn task(line: &[u8], kind: &Kind, limits: &Limits, args: &PublishArgs) -> Result<NewTask, String> {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if kind.as_str() == READING_KIND && args.id_field.is_none() {
        let now: Timestamp = OffsetDateTime::now_utc().into();
        let form = Form::of("application/json").map_err(|error| error.to_string())?;
        readings_in(form, line, now, limits).map_err(|error| error.to_string())?;
    }
    let payload: Value = serde_json::from_slice(line).map_err(|error| format!("not JSON: {error}"))?;
    let mut task = NewTask::new(kind.clone(), ContentType::Json, line.to_vec());
    if let Some(field) = &args.id_field {
        let id = text(&payload, field, "id")?;
        task.id = TaskId::parse(&id).map_err(|error| format!("field {field:?}: {error}"))?;
    }
    if let Some(field) = &args.key_field {
        task.key = Some(text(&payload, field, "key")?);
    }
    task.group.clone_from(&args.group);
    task.delay = args.delay;
    task.timeout = args.timeout;
    Ok(task)
}

/// The text or number of a field, which is used as the id or key.
fn text(payload: &Value, field: &str, what: &str) -> Result<String, String> {
    match payload.get(field) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Number(number)) => Ok(number.to_string()),
        Some(_) => Err(format!("field {field:?} is not a string or number, so it cannot be the {what}")),
        None => Err(format!("field {field:?} for the {what} is missing")),
    }
}

/// Sends a task until it is confirmed or spooled, and returns the number of repetitions and its id. The id stays the same,
/// so that a repetition has no second effect. There is none after a stop.
pub(crate) async fn send(
    sender: &SpoolingSender,
    task: NewTask,
    retry_for: Duration,
    stop: CancellationToken,
) -> (u64, Result<TaskId, Failure>) {
    let deadline = Instant::now() + retry_for;
    let mut backoff = Backoff::default();
    let mut retries = 0;
    loop {
        let Err(error) = sender.send(vec![task.clone()]).await else { return (retries, Ok(task.id)) };
        let wait = backoff.next_wait();
        match not_accepted(&error) {
            SendError::Fatal(failure) => return (retries, Err(failure)),
            _ if Instant::now() + wait < deadline
                && stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_some() => {}
            _ => return (retries, Err(Failure::new(Exit::Failed, error))),
        }
        retries += 1;
    }
}

#[cfg(test)]
mod tests;
