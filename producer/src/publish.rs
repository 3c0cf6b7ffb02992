//! `publish`: publishes NDJSON lines as tasks of any kind, without a gateway.

use std::{
    io::{self, BufRead, BufReader},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use garenne_amqp::PublisherConfig;
use garenne_common::{
    backoff::Backoff,
    exit::{Exit, Failure},
    shutdown::{Command, Mode},
    telemetry::{Metrics, traces::LAST_EXPORT},
};
use garenne_gateway::{
    BrokerSettings, READING,
    task_publisher::{BrokerPublisher, TaskPublisher, TracedPublisher},
};
use garenne_protocol::{
    sensor::{Timestamp, readings_from},
    task::{ContentType, Kind, NewTask, TaskId},
};
use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;
use tokio::{sync::mpsc, time::Instant};

use crate::{
    destination::{SendError, send_error},
    progress::Progress,
    service::instance,
    stop,
};

/// Options of `publish`.
#[derive(Clone, Debug)]
pub struct PublishOptions {
    /// The kind of every line's task.
    pub kind: String,
    /// The file; `None` for standard input.
    pub file: Option<PathBuf>,
    /// The field with the task id; `None` for random ids.
    pub id_field: Option<String>,
    /// The field with the task key; `None` to use the task id, if the lane needs a key.
    pub key_field: Option<String>,
    /// The group of all tasks.
    pub group: Option<String>,
    /// The delay before the first attempt.
    pub delay: Option<Duration>,
    /// The timeout of each attempt.
    pub timeout: Option<Duration>,
    /// How long a refused task is published again.
    pub retry_for: Duration,
}

/// Most unconfirmed tasks.
const MAX_IN_FLIGHT: usize = 1000;
/// Invalid lines that are printed; further ones are only counted.
const MAX_PRINTED: u64 = 20;

#[derive(Debug, Serialize)]
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
    bytes: u64,
    text: io::Result<Vec<u8>>,
}

/// Publishes every line, and writes a summary, one JSON line, to stdout.
///
/// # Errors
/// No lane takes the kind, the file cannot be read, or the broker is not available.
pub async fn run(settings: BrokerSettings, options: PublishOptions) -> Result<Exit, Failure> {
    let kind =
        settings.routes().kind(&options.kind).map_err(|refusal| Failure::new(Exit::Failed, refusal))?;
    let (lines, size) = open(&options)?;
    let (_sender, mut commands) = stop::commands(Mode::Soft)?;
    let config = PublisherConfig { in_flight: MAX_IN_FLIGHT, ..PublisherConfig::default() };
    let metrics = Metrics::new("producer");
    let publisher = settings.connect(config, &metrics).await?;
    let traces = settings.traces("garenne-producer", instance(), &metrics)?;
    let task_publisher = BrokerPublisher::new(publisher.clone(), &settings.names(), &settings.lanes);
    let task_publisher = TracedPublisher::wrap(task_publisher, &traces, &settings.names());

    let (sender, mut receiver) = mpsc::channel(MAX_IN_FLIGHT);
    std::thread::spawn(move || read(lines, &sender));
    let progress = Progress::new("publish", size);
    let started = Instant::now();
    let mut summary = Summary {
        event: "publish_summary",
        kind: options.kind.clone(),
        lines: 0,
        published: 0,
        malformed: 0,
        unpublished: 0,
        retries: 0,
        seconds: 0.0,
        interrupted: false,
    };
    let mut failure = None;
    let mut in_flight = FuturesUnordered::new();
    let mut open = true;
    while open || !in_flight.is_empty() {
        tokio::select! {
            Some(outcome) = in_flight.next(), if !in_flight.is_empty() => {
                let Outcome { retries, result } = outcome;
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
            line = receiver.recv(), if open && in_flight.len() < MAX_IN_FLIGHT => match line {
                None => open = false,
                Some(NumberedLine { number, bytes, text }) => {
                    let text = text.map_err(|error| Failure::new(Exit::Failed, format!("line {number}: {error}")))?;
                    progress.update(bytes, format_args!("{} confirmed", summary.published));
                    if text.iter().all(u8::is_ascii_whitespace) {
                        continue;
                    }
                    summary.lines += 1;
                    match task(&text, &kind, &options) {
                        Ok(task) => in_flight.push(publish(Arc::clone(&task_publisher), task, options.retry_for)),
                        Err(problem) => {
                            summary.malformed += 1;
                            if summary.malformed <= MAX_PRINTED {
                                progress.print(format_args!("line {number}: {problem}"));
                            }
                        }
                    }
                }
            },
            command = commands.recv(), if open => {
                if matches!(command, Some(Command::Shutdown(_) | Command::Escalate)) {
                    summary.interrupted = true;
                    open = false;
                }
            }
        }
    }
    publisher.close().await;
    traces.close(LAST_EXPORT).await;
    summary.seconds = (started.elapsed().as_secs_f64() * 1000.0).round() / 1000.0;
    progress.finish(format_args!("{} confirmed, {} malformed", summary.published, summary.malformed));
    println!("{}", serde_json::to_string(&summary).expect("a summary is plain JSON"));
    match failure {
        Some(failure) => Err(failure),
        None if summary.interrupted || summary.malformed > 0 => Ok(Exit::Failed),
        None => Ok(Exit::Done),
    }
}

fn open(options: &PublishOptions) -> Result<(Box<dyn BufRead + Send>, Option<u64>), Failure> {
    let Some(path) = options.file.as_ref().filter(|path| path.as_os_str() != "-") else {
        return Ok((Box::new(BufReader::new(io::stdin())), None));
    };
    let refused = |error: io::Error| Failure::new(Exit::Failed, format!("{}: {error}", path.display()));
    let file = std::fs::File::open(path).map_err(refused)?;
    let size = file.metadata().map_err(refused)?.len();
    Ok((Box::new(BufReader::new(file)), Some(size)))
}

fn read(mut lines: Box<dyn BufRead + Send>, sender: &mpsc::Sender<NumberedLine>) {
    let mut bytes = 0;
    for number in 1.. {
        let mut line = Vec::new();
        let text = match lines.read_until(b'\n', &mut line) {
            Ok(0) => return,
            Ok(read) => {
                bytes += read as u64;
                Ok(line)
            }
            Err(error) => Err(error),
        };
        let failed = text.is_err();
        if sender.blocking_send(NumberedLine { number, bytes, text }).is_err() || failed {
            return;
        }
    }
}

/// Converts a line into a task.
///
/// # Errors
/// The problem with the line.
fn task(line: &[u8], kind: &Kind, options: &PublishOptions) -> Result<NewTask, String> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if kind.as_str() == READING && options.id_field.is_none() {
        let now: Timestamp = OffsetDateTime::now_utc().into();
        readings_from("application/json", line, now).map_err(|error| error.to_string())?;
    }
    let payload: Value = serde_json::from_slice(line).map_err(|error| format!("not JSON: {error}"))?;
    let mut task = NewTask::new(kind.clone(), ContentType::Json, line.to_vec());
    if let Some(field) = &options.id_field {
        let id = text(&payload, field, "id")?;
        task.id = TaskId::parse(&id).map_err(|error| format!("field {field:?}: {error}"))?;
    }
    if let Some(field) = &options.key_field {
        task.key = Some(text(&payload, field, "key")?);
    }
    task.group.clone_from(&options.group);
    task.delay = options.delay;
    task.timeout = options.timeout;
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

/// The outcome of one task.
struct Outcome {
    retries: u64,
    result: Result<(), Failure>,
}

/// Publishes a task until it is confirmed. The id stays the same, so that a repetition has no second effect.
async fn publish(publisher: Arc<dyn TaskPublisher>, task: NewTask, retry_for: Duration) -> Outcome {
    let deadline = Instant::now() + retry_for;
    let mut backoff = Backoff::default();
    let mut retries = 0;
    loop {
        let Err(error) = publisher.publish(vec![task.clone()]).await else {
            return Outcome { retries, result: Ok(()) };
        };
        let wait = backoff.next_wait();
        let exit = match send_error(&error) {
            SendError::Fatal { exit, .. } => Some(exit),
            _ if Instant::now() + wait >= deadline => Some(Exit::Failed),
            _ => None,
        };
        if let Some(exit) = exit {
            return Outcome { retries, result: Err(Failure::new(exit, error)) };
        }
        retries += 1;
        tokio::time::sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(kind: &str, id_field: Option<&str>) -> PublishOptions {
        PublishOptions {
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
        task(line.as_bytes(), &Kind::parse(kind).unwrap(), &options(kind, id_field))
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
        let options = PublishOptions { key_field: Some("device".to_owned()), ..options("bench.noop", None) };
        let made = |line: &str| task(line.as_bytes(), &Kind::parse("bench.noop").unwrap(), &options);
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
}
