//! `map publish`: maps the payloads of dead letters again, and publishes their readings.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use base64::{Engine, prelude::BASE64_STANDARD};
use clap::Args;
use futures_util::{StreamExt, TryStreamExt, stream};
use garenne_common::{
    exit::{Exit, Failure},
    stdout,
};
use garenne_map::{MapChain, Source};
use garenne_protocol::{
    sensor::{Limits, Timestamp},
    task::{NewTask, ReadingTasks, TaskId, UNMAPPED_TASK_KIND},
};
use garenne_publish::{BrokerSettings, READING_KIND, Routes, Sending, SpoolSettings};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio_util::sync::CancellationToken;

use crate::{destination::BrokerConnection, input, progress::print_summary_to_stderr, publish::send};

pub(super) const EXAMPLE: &str = "Example:
  garenne dead list --reason unmapped --json | jq -r .id | xargs garenne dead show --json >letters.ndjson
  garenne-producer map publish my.toml --file letters.ndjson >mapped.txt
  garenne dead drop --yes $(sed 's/^/--id /' mapped.txt)

The id of each letter is printed after its readings are confirmed. Publishing a letter again has no second effect.";

/// Unconfirmed readings of a letter.
const IN_FLIGHT: usize = 256;

/// Flags of `map publish`.
#[derive(Debug, Args)]
pub(super) struct RepublishArgs {
    /// File with the rules, or a shipped map such as builtin:zigbee2mqtt; the first with a rule counts
    #[arg(value_name = "MAP", required = true)]
    maps: Vec<String>,
    /// File with the lines of `garenne dead show --json` [default: standard input]
    #[arg(long, value_name = "F")]
    file: Option<PathBuf>,
    /// How long a refused reading is published again
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    retry_for: Duration,
}

/// A line of `garenne dead show --json`.
#[derive(Deserialize)]
struct Letter {
    id: String,
    kind: String,
    first_seen: String,
    headers: Headers,
    body: Box<RawValue>,
}

#[derive(Deserialize)]
struct Headers {
    /// There is none if a worker received the letter of a bridge as a task.
    #[serde(rename = "garenne-source")]
    source: Option<String>,
    /// In microseconds since 1970, if a worker received the message.
    #[serde(rename = "garenne-arrived-us")]
    arrived: Option<i64>,
}

/// The form of a body that is not JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Encoded {
    base64: String,
}

/// The body of a letter that a bridge published as a task, because neither queue took dead letters.
#[derive(Deserialize)]
struct UnmappedTask {
    topic: String,
    received_ms: i64,
    payload: String,
}

#[derive(Debug, Default, Serialize)]
struct Summary {
    event: &'static str,
    letters: u64,
    mapped: u64,
    unmapped: u64,
    readings: u64,
}

/// Publishes the readings of all letters that can be mapped.
pub(super) async fn run(settings: BrokerSettings, args: RepublishArgs) -> Result<Exit, Failure> {
    let maps = MapChain::load(&args.maps).map_err(|error| Failure::new(Exit::Usage, error))?;
    let path = args.file.as_deref().unwrap_or(Path::new("-"));
    let (input, _) = input::open(path).with_context(|| path.display().to_string())?;
    let routes = settings.routes();
    let broker =
        BrokerConnection::open(&settings, Sending::command(IN_FLIGHT), &SpoolSettings::default()).await?;
    let mut summary = Summary { event: "map_publish_summary", ..Summary::default() };
    for (number, line) in (1..).zip(BufReader::new(input).lines()) {
        let line = line.with_context(|| format!("line {number}"))?;
        if line.trim().is_empty() {
            continue;
        }
        summary.letters += 1;
        match tasks(&line, &maps, &routes) {
            Err(problem) => {
                summary.unmapped += 1;
                eprintln!("line {number}: {problem}");
            }
            Ok((id, tasks, refused)) => {
                summary.readings += tasks.len() as u64;
                let published = stream::iter(tasks)
                    .map(|task| async {
                        send(&broker.tasks, task, args.retry_for, CancellationToken::new()).await.1
                    })
                    .buffer_unordered(IN_FLIGHT);
                published.try_for_each(|_| async { Ok(()) }).await?;
                for problem in &refused {
                    eprintln!("line {number}: {id}: {problem}");
                }
                // The id of a letter of which values remain is not printed: it is to be published again.
                if refused.is_empty() {
                    summary.mapped += 1;
                    stdout::print_line(id)?;
                } else {
                    summary.unmapped += 1;
                }
            }
        }
    }
    broker.close().await;
    print_summary_to_stderr(&summary);
    Ok(if summary.unmapped == 0 { Exit::Done } else { Exit::Failed })
}

/// The id of a letter, the tasks of its readings, and the values that are refused.
fn tasks(
    line: &str,
    maps: &MapChain,
    routes: &Routes,
) -> Result<(TaskId, Vec<NewTask>, Vec<String>), String> {
    let expected = "expected a line of `garenne dead show --json` with the header garenne-source";
    let letter: Letter = serde_json::from_str(line).map_err(|error| format!("{error}; {expected}"))?;
    let id = TaskId::parse(&letter.id).map_err(|error| error.to_string())?;
    let received = OffsetDateTime::parse(&letter.first_seen, &Rfc3339);
    let received = received.map_err(|error| format!("first_seen {:?}: {error}", letter.first_seen))?;
    let message = Message::read(&letter).ok_or_else(|| format!("{id}: {expected}"))?;
    let source = Source::from_label(&message.source)
        .ok_or_else(|| format!("header garenne-source: {:?} is no source", message.source))?;
    if source.is_too_long() {
        return Err(format!(
            "{id}: header garenne-source: the source is cut, because it has more than {} bytes, so that no map takes it",
            Source::MAX_BYTES
        ));
    }
    // Readings without a time have that of the message's arrival.
    let arrived = message.arrived.and_then(|micros| Timestamp::from_micros(micros).ok());
    let arrived = arrived.unwrap_or_else(|| received.into());
    let mapped = maps.apply(source, &message.payload, arrived, &Limits::default());
    let mapped = mapped.map_err(|unmapped| format!("{id}: unmapped: {source}: {unmapped}"))?;
    let kind = routes.kind(READING_KIND).map_err(|refusal| refusal.to_string())?;
    // So publishing the letter again has no second effect.
    let derived = |index: usize| TaskId::derived(&id, &index.to_string());
    let readings = ReadingTasks::new(&kind, routes.readings_are_sharded, &mapped.records, derived);
    let refused = mapped.refused.iter().map(ToString::to_string).collect();
    Ok((id, readings.tasks, refused))
}

/// The message that a letter holds.
struct Message {
    source: String,
    /// In microseconds since 1970.
    arrived: Option<i64>,
    payload: Vec<u8>,
}

impl Message {
    /// `None` for a letter without a source.
    fn read(letter: &Letter) -> Option<Self> {
        let body = letter.body.get();
        if let Some(source) = letter.headers.source.clone() {
            let encoded = serde_json::from_str::<Encoded>(body).ok();
            let decoded = encoded.and_then(|encoded| BASE64_STANDARD.decode(encoded.base64).ok());
            let payload = decoded.unwrap_or_else(|| body.as_bytes().to_vec());
            return Some(Self { source, arrived: letter.headers.arrived, payload });
        }
        let task: UnmappedTask =
            serde_json::from_str(body).ok().filter(|_| letter.kind == UNMAPPED_TASK_KIND)?;
        let payload = BASE64_STANDARD.decode(task.payload).ok()?;
        let source = Source::Topic(&task.topic).to_label();
        Some(Self { source, arrived: task.received_ms.checked_mul(1000), payload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "[[map]]\ntopic = \"n/+\"\ndevice = \"{1}\"\nmetric = \"m\"\n";

    fn read(line: &str) -> Result<(TaskId, Vec<NewTask>), String> {
        let routes = Routes::new(["reading.#".to_owned()]);
        let map = garenne_map::Map::parse("test", MAP).unwrap();
        let read = tasks(line, &[map].into_iter().collect(), &routes);
        read.map(|(id, tasks, refused)| {
            assert!(refused.is_empty(), "{refused:?}");
            (id, tasks)
        })
    }

    fn letter(topic: &str, body: &str) -> String {
        format!(
            r#"{{"id":"l-1","kind":"mqtt.message","first_seen":"2026-11-26T10:00:00Z",
                "headers":{{"garenne-source":"topic:{topic}"}},"body":{body}}}"#
        )
    }

    #[test]
    fn a_letter_gives_the_same_tasks_each_time_with_the_time_of_its_arrival() {
        let (id, tasks) = read(&letter("n/a", "71.5")).unwrap();
        assert_eq!((id.as_str(), tasks.len()), ("l-1", 1));
        let body = String::from_utf8(tasks[0].body.clone()).unwrap();
        assert!(body.contains("71.5") && body.contains("2026-11-26T10:00:00-00:00"), "{body}");
        assert_eq!(read(&letter("n/a", "71.5")).unwrap().1[0].id, tasks[0].id);
        let encoded = read(&letter("n/a", r#"{"base64":"NzEuNQ=="}"#)).unwrap().1;
        assert_eq!(encoded[0].body, tasks[0].body);
    }

    #[test]
    fn a_letter_that_was_a_task_gives_the_same_tasks_as_one_that_the_bridge_published() {
        let direct = read(&letter("n/a", "71.5")).unwrap().1;
        let body = r#"{"reason":"unmapped","error":"-","topic":"n/a","received_ms":1795687200000,
                       "bridge":"b","content_type":null,"payload":"NzEuNQ=="}"#;
        let task = letter("n/a", body).replace(r#""garenne-source":"topic:n/a""#, "");
        let task = task.replace("mqtt.message", "reading.unmapped");
        let mapped = read(&task).unwrap().1;
        assert_eq!((&mapped[0].id, &mapped[0].body), (&direct[0].id, &direct[0].body));
        let other = task.replace("reading.unmapped", "other.kind");
        assert!(read(&other).unwrap_err().contains("garenne dead show --json"));
    }

    #[test]
    fn what_cannot_be_mapped_is_told_with_its_id() {
        let refused = |line: &str| read(line).unwrap_err();
        assert_eq!(refused(&letter("x", "1")), "l-1: unmapped: topic \"x\": no rule matches");
        assert!(refused(r#"{"id":"l-1"}"#).contains("garenne dead show --json"));
        let long = "x".repeat(2_000);
        let label = Source::Topic(&long).to_label();
        let cut = letter("n/a", "1").replace("topic:n/a", &label);
        assert_eq!(
            refused(&cut),
            "l-1: header garenne-source: the source is cut, because it has more than 1024 bytes, so that no map takes it"
        );
        let other = letter("n/a", "1").replace("topic:", "queue:");
        assert!(refused(&other).contains("is no source"), "{}", refused(&other));
    }
}
