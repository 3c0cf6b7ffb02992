//! `map`: tries rule files on samples, lists the shipped maps, and maps the payloads of dead letters again.

mod republish;

use std::{
    fmt::Write as _,
    io::{Read, Write as _},
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::{Args, Subcommand};
use garenne_common::{
    exit::{Exit, Failure},
    stdout,
    text::printable,
};
use garenne_map::{Map, Mapped, Source, builtin, limits::MAX_PAYLOAD_BYTES};
use garenne_protocol::sensor::{Limits, Record, SentCounter, Timestamp, Unit};
use garenne_publish::BrokerSettings;
use serde::Serialize;
use time::OffsetDateTime;

use crate::input;
use republish::RepublishArgs;

/// Flags of `map`.
#[derive(Debug, Args)]
pub(crate) struct MapArgs {
    #[command(subcommand)]
    command: MapCommand,
}

#[derive(Debug, Subcommand)]
enum MapCommand {
    /// Print the readings that a map makes of a sample, or why there are none
    Test(TestArgs),
    /// List the shipped maps
    List,
    /// Print the rules of a shipped map, to be copied and changed
    Show {
        /// Name of the map, such as zigbee2mqtt
        name: String,
    },
    /// Publish the readings of unmapped dead letters, after the map was corrected
    #[command(after_help = republish::EXAMPLE)]
    Publish(RepublishArgs),
}

/// Flags of `map test`.
#[derive(Debug, Args)]
struct TestArgs {
    /// File with the rules in TOML, or a shipped map such as builtin:zigbee2mqtt
    map: String,
    /// File with a payload; - for standard input
    sample: PathBuf,
    #[command(flatten)]
    source: SourceArgs,
}

/// Where the sample came from.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct SourceArgs {
    /// MQTT topic of the sample
    #[arg(long)]
    topic: Option<String>,
    /// Path of the HTTP request
    #[arg(long)]
    path: Option<String>,
    /// Routing key of the AMQP message
    #[arg(long, value_name = "KEY")]
    routing_key: Option<String>,
}

impl SourceArgs {
    fn source(&self) -> Source<'_> {
        match self {
            Self { topic: Some(topic), .. } => Source::Topic(topic),
            Self { path: Some(path), .. } => Source::Path(path),
            Self { routing_key, .. } => Source::RoutingKey(routing_key.as_deref().unwrap_or_default()),
        }
    }
}

/// A reading in the form that the gateway accepts. A time that is not from the payload is left out.
#[derive(Serialize)]
struct Line<'a> {
    device: &'a str,
    metric: &'a str,
    value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<Unit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counter: Option<&'a SentCounter>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
}

impl<'a> Line<'a> {
    fn of(Record { reading, id, time_assumed }: &'a Record) -> Self {
        Self {
            device: &reading.device,
            metric: &reading.metric,
            value: reading.value,
            unit: reading.unit,
            counter: reading.counter.as_deref(),
            time: (!time_assumed).then_some(reading.time),
            id: id.as_deref(),
        }
    }
}

pub(crate) async fn run(settings: BrokerSettings, args: MapArgs) -> Result<Exit, Failure> {
    match args.command {
        MapCommand::Publish(args) => return republish::run(settings, args).await,
        MapCommand::List => stdout::print(list())?,
        MapCommand::Show { name } => {
            let name = name.strip_prefix(builtin::PREFIX).unwrap_or(&name);
            let unknown = || Failure::new(Exit::Usage, format!("no shipped map {name:?}; see map list"));
            stdout::print(builtin::find(name).ok_or_else(unknown)?.text)?;
        }
        MapCommand::Test(TestArgs { map, sample, source }) => {
            let map = Map::load(&map).map_err(|error| Failure::new(Exit::Usage, error))?;
            let payload = read(&sample).with_context(|| sample.display().to_string())?;
            let now = Timestamp::from(OffsetDateTime::now_utc());
            let (lines, notes) = test(&map, source.source(), &payload, now)?;
            stdout::print(lines)?;
            // If stderr is closed, there is nowhere to report that.
            let _ = std::io::stderr().lock().write_all(notes.as_bytes());
        }
    }
    Ok(Exit::Done)
}

fn list() -> String {
    let mut text = String::new();
    for map in builtin::BUILTIN {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}{:<14} {}", builtin::PREFIX, map.name, map.description);
    }
    text
}

/// Reads a sample. One byte more than the limit is enough to be refused.
fn read(sample: &Path) -> std::io::Result<Vec<u8>> {
    let (source, _) = input::open(sample)?;
    let mut payload = Vec::new();
    source.take(MAX_PAYLOAD_BYTES as u64 + 1).read_to_end(&mut payload)?;
    Ok(payload)
}

/// The readings of a sample as lines of JSON, and notes on the rule and on what became no reading.
fn test(map: &Map, source: Source<'_>, payload: &[u8], now: Timestamp) -> Result<(String, String), Failure> {
    let mut skipped = String::new();
    let mut note = |what: &str, why: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(skipped, "left out: {} ({why})", printable(what));
    };
    let mapped = map.explain(source, payload, now, &Limits::default(), &mut note);
    let Mapped { rule, records, .. } = mapped.map_err(|unmapped| {
        let pattern = unmapped.rule.map(|rule| format!(" ({})", map.pattern(rule))).unwrap_or_default();
        Failure::new(Exit::Failed, format!("unmapped: {source}: {unmapped}{pattern}"))
    })?;
    let mut lines = String::new();
    for record in &records {
        let line = serde_json::to_string(&Line::of(record)).context("a reading as JSON")?;
        lines.push_str(&line);
        lines.push('\n');
    }
    let count = records.len();
    let mut notes = format!("rule {rule} ({}), readings: {count}\n", printable(map.pattern(rule)));
    notes.push_str(&skipped);
    if records.iter().any(|record| record.time_assumed && record.id.is_none()) {
        notes.push_str("a reading without time and id has the time of arrival: a repeat is stored twice\n");
    }
    Ok((lines, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tested(map: &str, source: Source<'_>, payload: &str) -> Result<(String, String), String> {
        let map = Map::load(map).unwrap();
        test(&map, source, payload.as_bytes(), Timestamp::UNIX_EPOCH).map_err(|failure| {
            assert_eq!(failure.exit, Exit::Failed);
            failure.line
        })
    }

    #[test]
    fn readings_are_printed_in_the_form_that_the_gateway_accepts() {
        let payload = r#"{"temperature": 21.5, "mode": "eco", "last_seen": "2026-11-24T10:15:30Z"}"#;
        let source = Source::Topic("zigbee2mqtt/kitchen");
        let (lines, notes) = tested("builtin:zigbee2mqtt", source, payload).unwrap();
        assert_eq!(
            lines,
            "{\"device\":\"kitchen\",\"metric\":\"temperature\",\"value\":21.5,\"unit\":\"Cel\",\"time\":\"2026-11-24T10:15:30Z\"}\n"
        );
        assert_eq!(
            notes,
            "rule 8 (topic \"zigbee2mqtt/#\"), readings: 1\n\
             left out: mode (a text that is not in `enum`)\nleft out: last_seen (ignored)\n"
        );
        garenne_protocol::sensor::readings_from("", lines.as_bytes(), Timestamp::UNIX_EPOCH).unwrap();
        let (lines, notes) = tested("builtin:zigbee2mqtt", source, r#"{"humidity": 50}"#).unwrap();
        assert_eq!(
            lines,
            "{\"device\":\"kitchen\",\"metric\":\"humidity\",\"value\":50.0,\"unit\":\"%RH\"}\n"
        );
        assert!(notes.ends_with("a repeat is stored twice\n"), "{notes}");

        let map = r#"
            [[map]]
            topic = "meters/+"
            device = "{1}"
            [[map.reading]]
            metric = "pulses"
            value = "{/n}"
            counter = true
            wraps_at = 65536
        "#;
        let map = Map::parse("meters.toml", map).unwrap();
        let (line, _) =
            test(&map, Source::Topic("meters/m1"), br#"{"n": 8}"#, Timestamp::UNIX_EPOCH).unwrap();
        let records = garenne_protocol::sensor::readings_from("", line.as_bytes(), Timestamp::UNIX_EPOCH);
        let counter = SentCounter { wraps_at: Some(65_536.0), ..SentCounter::default() };
        assert_eq!(records.unwrap()[0].reading.counter.as_deref(), Some(&counter));
    }

    #[test]
    fn the_reason_is_told_if_nothing_comes_out() {
        let line = tested("builtin:zigbee2mqtt", Source::Path("/x"), "1").unwrap_err();
        assert_eq!(line, "unmapped: path \"/x\": no rule matches");
        let line = tested("builtin:zigbee2mqtt", Source::RoutingKey("zigbee2mqtt.kitchen"), "{").unwrap_err();
        assert_eq!(
            line,
            "unmapped: routing key \"zigbee2mqtt.kitchen\": rule 8: not JSON: EOF while parsing an object at line 1 column 1 (topic \"zigbee2mqtt/#\")"
        );
    }

    #[test]
    fn every_shipped_map_is_listed() {
        let list = list();
        assert_eq!(list.lines().count(), builtin::BUILTIN.len());
        assert!(list.contains("builtin:tasmota        Tasmota: "), "{list}");
    }
}
