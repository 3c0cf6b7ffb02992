//! `publish`: publishes NDJSON lines as tasks of any kind, without a gateway.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use futures_util::{StreamExt, stream::FuturesUnordered};
use garenne_amqp::PublisherConfig;
use garenne_common::{
    backoff::Backoff,
    exit::{Exit, Failure},
    shutdown::{Command, Mode, signal, stop_requested},
    supervise,
};
use garenne_gateway::{BrokerSettings, READING, task_publisher::TaskPublisher};
use garenne_protocol::{
    sensor::{Timestamp, readings_from},
    task::{ContentType, Kind, NewTask, TaskId},
};
use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;
use tokio::{sync::mpsc, time::Instant};

use crate::{
    destination::{BrokerConnection, SendError, send_error},
    input,
    progress::{Progress, print_summary, thousandths},
};

/// Flags of `publish`.
#[derive(Debug, Clone, Args)]
pub(crate) struct PublishArgs {
    /// Kind of the tasks; a lane must take it
    #[arg(long, value_name = "KIND", default_value = "reading.process")]
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
}

/// A line of the input.
struct NumberedLine {
    number: u64,
    /// Bytes read so far.
    bytes: u64,
    text: Vec<u8>,
}

/// Publishes every line, and writes a summary, one JSON line, to stdout.
///
/// # Errors
/// No lane takes the kind, the file cannot be read, or the broker is not available.
pub(crate) async fn run(settings: BrokerSettings, args: PublishArgs) -> Result<Exit, Failure> {
    let kind = settings.routes().kind(&args.kind).map_err(|refusal| Failure::new(Exit::Failed, refusal))?;
    let path = args.file.as_deref().unwrap_or(Path::new("-"));
    let (input, size) = input::open(path).with_context(|| path.display().to_string())?;
    let (_sender, mut commands) = signal::commands(Mode::Soft).context("cannot install signal handlers")?;
    let config = PublisherConfig { in_flight: MAX_IN_FLIGHT, ..PublisherConfig::default() };
    let broker = BrokerConnection::open(&settings, config).await?;
    let progress = Progress::new("publish", size);
    let input = BufReader::new(input);
    let (summary, failure) =
        publish_lines(input, &kind, &args, &broker.tasks, &progress, &mut commands).await?;
    broker.close().await;
    progress.finish(format_args!("{} confirmed, {} malformed", summary.published, summary.malformed));
    print_summary(&summary);
    match failure {
        Some(failure) => Err(failure),
        None if summary.interrupted || summary.malformed > 0 => Ok(Exit::Failed),
        None => Ok(Exit::Done),
    }
}

/// Publishes every line until the end of the input, a stop command or the first failure, and completes what it began.
async fn publish_lines(
    input: impl BufRead + Send + 'static,
    kind: &Kind,
    args: &PublishArgs,
    publisher: &Arc<dyn TaskPublisher>,
    progress: &Progress,
    commands: &mut mpsc::Receiver<Command>,
) -> anyhow::Result<(Summary, Option<Failure>)> {
    let (sender, mut lines) = mpsc::channel(MAX_IN_FLIGHT);
    // Not a blocking task of the runtime, whose shutdown would wait for it: a read from a silent pipe cannot be
    // cancelled.
    let mut reader = supervise::spawn_thread("reader", move || read(input, &sender))?;
    let started = Instant::now();
    let mut summary = Summary { event: "publish_summary", kind: kind.to_string(), ..Summary::default() };
    let mut failure = None;
    let mut in_flight = FuturesUnordered::new();
    let mut open = true;
    while open || !in_flight.is_empty() {
        tokio::select! {
            Some((retries, result)) = in_flight.next(), if !in_flight.is_empty() => {
                summary.retries += retries;
                match result {
                    Ok(()) => summary.published += 1,
                    Err(error) => {
                        summary.unpublished += 1;
                        failure.get_or_insert(error);
                        open = false;
                    }
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
                    match task(&text, kind, args) {
                        Ok(task) => in_flight.push(publish(&**publisher, task, args.retry_for)),
                        Err(problem) => {
                            summary.malformed += 1;
                            if summary.malformed <= MAX_PRINTED {
                                progress.print(format_args!("line {number}: {problem}"));
                            }
                        }
                    }
                }
            },
            () = stop_requested(commands), if open => {
                summary.interrupted = true;
                open = false;
            }
        }
    }
    summary.seconds = thousandths(started.elapsed().as_secs_f64());
    Ok((summary, failure))
}

/// Sends the lines until the end of the input, or until the receiver is dropped.
fn read(mut input: impl BufRead, lines: &mpsc::Sender<NumberedLine>) -> anyhow::Result<()> {
    let mut bytes = 0;
    for number in 1.. {
        let mut text = Vec::new();
        let read = input.read_until(b'\n', &mut text).with_context(|| format!("line {number}"))?;
        bytes += read as u64;
        if read == 0 || lines.blocking_send(NumberedLine { number, bytes, text }).is_err() {
            break;
        }
    }
    Ok(())
}

/// Converts a line into a task.
///
/// # Errors
/// The problem with the line.
fn task(line: &[u8], kind: &Kind, args: &PublishArgs) -> Result<NewTask, String> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if kind.as_str() == READING && args.id_field.is_none() {
        let now: Timestamp = OffsetDateTime::now_utc().into();
        readings_from("application/json", line, now).map_err(|error| error.to_string())?;
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

/// Publishes a task until it is confirmed, and returns the number of repetitions. The id stays the same, so that a
/// repetition has no second effect.
async fn publish(
    publisher: &dyn TaskPublisher,
    task: NewTask,
    retry_for: Duration,
) -> (u64, Result<(), Failure>) {
    let deadline = Instant::now() + retry_for;
    let mut backoff = Backoff::default();
    let mut retries = 0;
    loop {
        let Err(error) = publisher.publish(vec![task.clone()]).await else { return (retries, Ok(())) };
        let wait = backoff.next_wait();
        match send_error(&error) {
            SendError::Fatal(failure) => return (retries, Err(failure)),
            _ if Instant::now() + wait >= deadline => {
                return (retries, Err(Failure::new(Exit::Failed, error)));
            }
            _ => tokio::time::sleep(wait).await,
        }
        retries += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{self, Read},
        panic::resume_unwind,
    };

    use futures_util::future::BoxFuture;
    use garenne_amqp::PublishError;

    use super::*;

    fn args(kind: &str, id_field: Option<&str>) -> PublishArgs {
        PublishArgs {
            kind: kind.to_owned(),
            file: None,
            id_field: id_field.map(str::to_owned),
            key_field: None,
            group: Some("g".to_owned()),
            delay: None,
            timeout: None,
            retry_for: Duration::ZERO,
        }
    }

    fn made(line: &str, kind: &str, id_field: Option<&str>) -> Result<NewTask, String> {
        task(line.as_bytes(), &Kind::parse(kind).unwrap(), &args(kind, id_field))
    }

    #[test]
    fn a_line_becomes_a_task_with_the_id_of_its_field() {
        let task = made("{\"n\":50,\"key\":\"a-1\"}\r\n", "bench.factorial", Some("key")).unwrap();
        assert_eq!((task.id.as_str(), task.group.as_deref()), ("a-1", Some("g")));
        assert_eq!(&task.body[..], b"{\"n\":50,\"key\":\"a-1\"}");
        assert_eq!(made("{\"key\":7}", "bench.noop", Some("key")).unwrap().id.as_str(), "7");
    }

    #[test]
    fn a_field_can_be_the_task_key() {
        let args = PublishArgs { key_field: Some("device".to_owned()), ..args("bench.noop", None) };
        let made = |line: &str| task(line.as_bytes(), &Kind::parse("bench.noop").unwrap(), &args);
        assert_eq!(made("{\"device\":\"d1\"}").unwrap().key.as_deref(), Some("d1"));
        assert_eq!(made("{}").unwrap_err(), "field \"device\" for the key is missing");
    }

    #[test]
    fn an_invalid_line_is_explained() {
        let problem = |line, kind, field| made(line, kind, field).unwrap_err();
        assert_eq!(
            problem("{", "bench.noop", None),
            "not JSON: EOF while parsing an object at line 1 column 1"
        );
        assert_eq!(problem("{}", "bench.noop", Some("key")), "field \"key\" for the id is missing");
        assert_eq!(
            problem("{\"key\":\"\"}", "bench.noop", Some("key")),
            "field \"key\": message_id is empty"
        );
        assert_eq!(problem("{}", READING, None).split(':').next(), Some("record 0"));
    }

    /// Confirms every task.
    struct Confirming;

    impl TaskPublisher for Confirming {
        fn publish(&self, _: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
            Box::pin(async { Ok(()) })
        }
    }

    /// Fails after its first line.
    struct FailingInput(Result<(), io::ErrorKind>);

    impl Read for FailingInput {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0?;
            // The panic is expected: its message would only clutter the output.
            resume_unwind(Box::new(format!("buffer of {}", buffer.len())))
        }
    }

    async fn published(input: FailingInput) -> (Summary, Option<Failure>) {
        let input = BufReader::with_capacity(16, (&b"{}\n"[..]).chain(input));
        let kind = Kind::parse("bench.noop").unwrap();
        let publisher: Arc<dyn TaskPublisher> = Arc::new(Confirming);
        let (_sender, mut commands) = mpsc::channel(1);
        let progress = Progress::new("publish", None);
        let args = args("bench.noop", None);
        publish_lines(input, &kind, &args, &publisher, &progress, &mut commands).await.unwrap()
    }

    #[tokio::test]
    async fn a_panic_of_the_reader_is_a_failure_and_not_the_end_of_the_input() {
        let (summary, failure) = published(FailingInput(Ok(()))).await;
        assert_eq!((summary.lines, summary.published), (1, 1));
        assert_eq!(failure, Some(Failure::new(Exit::Failed, "reading the input: panicked: buffer of 16")));
    }

    #[tokio::test]
    async fn a_read_error_is_a_failure_after_the_lines_before_it() {
        let (summary, failure) = published(FailingInput(Err(io::ErrorKind::BrokenPipe))).await;
        assert_eq!((summary.lines, summary.published), (1, 1));
        assert_eq!(failure, Some(Failure::new(Exit::Failed, "line 2: broken pipe")));
    }
}
