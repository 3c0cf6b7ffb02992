//! Any properties that a foreign publisher may send: a task or a refusal, never a panic; and whatever
//! copy is made of it (retry, delay, quarantine, dead letter) is the same task when it is read again.

#![no_main]

use std::time::{Duration, UNIX_EPOCH};

use arbitrary::{Arbitrary, Unstructured};
use garenne_protocol::task::{Copied, DeadReason, Envelope, UnhandledRecord, WorkerIncarnation, header};
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable, LongString, ShortString},
};
use libfuzzer_sys::fuzz_target;

/// An incarnation as workers draw one.
const LIFE: &str = "0195f0c2-7a10-7000-8000-00000000002a";

#[derive(Arbitrary, Debug)]
struct Message {
    routing_key: String,
    id: Option<String>,
    kind: Option<String>,
    content_type: Option<String>,
    expiration: Option<String>,
    correlation_id: Option<String>,
    user_id: Option<String>,
    timestamp: Option<u64>,
    headers: Vec<(Name, Value)>,
    after_ms: u64,
}

#[derive(Debug)]
struct Name(String);

impl<'a> Arbitrary<'a> for Name {
    fn arbitrary(input: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let ours: Vec<_> = header::ALL.iter().copied().chain(["x-delivery-count", "x-death", "CC"]).collect();
        Ok(Self(match input.arbitrary::<Option<String>>()? {
            Some(foreign) => foreign,
            None => (*input.choose(&ours)?).to_owned(),
        }))
    }
}

#[derive(Arbitrary, Debug)]
enum Value {
    Flag(bool),
    Byte(i8),
    Word(u16),
    Long(i32),
    Unsigned(u32),
    LongLong(i64),
    Double(f64),
    Time(u64),
    Short(String),
    Text(Vec<u8>),
    Void,
    Table(String),
}

fn short(text: &str) -> ShortString {
    // The wire holds no longer ones.
    let mut end = text.len().min(255);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].into()
}

impl Value {
    fn amqp(&self) -> AMQPValue {
        match self {
            Self::Flag(value) => AMQPValue::Boolean(*value),
            Self::Byte(value) => AMQPValue::ShortShortInt(*value),
            Self::Word(value) => AMQPValue::ShortUInt(*value),
            Self::Long(value) => AMQPValue::LongInt(*value),
            Self::Unsigned(value) => AMQPValue::LongUInt(*value),
            Self::LongLong(value) => AMQPValue::LongLongInt(*value),
            Self::Double(value) => AMQPValue::Double(*value),
            Self::Time(value) => AMQPValue::Timestamp(*value),
            Self::Short(value) => AMQPValue::ShortString(short(value)),
            Self::Text(value) => AMQPValue::LongString(LongString::from(value.clone())),
            Self::Void => AMQPValue::Void,
            Self::Table(name) => {
                let mut table = FieldTable::default();
                table.insert(short(name), AMQPValue::Void);
                AMQPValue::FieldTable(table)
            }
        }
    }
}

impl Message {
    fn properties(&self) -> BasicProperties {
        let mut table = FieldTable::default();
        for (name, value) in &self.headers {
            table.insert(short(&name.0), value.amqp());
        }
        let mut properties = BasicProperties::default().with_headers(table);
        if let Some(id) = &self.id {
            properties = properties.with_message_id(short(id));
        }
        if let Some(kind) = &self.kind {
            properties = properties.with_type(short(kind));
        }
        if let Some(content_type) = &self.content_type {
            properties = properties.with_content_type(short(content_type));
        }
        if let Some(expiration) = &self.expiration {
            properties = properties.with_expiration(short(expiration));
        }
        if let Some(id) = &self.correlation_id {
            properties = properties.with_correlation_id(short(id));
        }
        if let Some(user) = &self.user_id {
            properties = properties.with_user_id(short(user));
        }
        if let Some(timestamp) = self.timestamp {
            properties = properties.with_timestamp(timestamp);
        }
        properties
    }
}

fuzz_target!(|message: Message| {
    let now = UNIX_EPOCH + Duration::from_millis(message.after_ms % 4_000_000_000_000);
    let original = message.properties();
    let routing_key = short(&message.routing_key);
    let read = |properties: &BasicProperties| {
        Envelope::read(routing_key.as_str(), properties, Some("reading.process"), |kind| kind == "known", now)
    };
    match read(&original) {
        Err(refused) => {
            assert!(!refused.to_string().contains('\n'));
            let dead = Copied::verbatim(&original, routing_key.as_str(), now).dead(
                DeadReason::Malformed,
                &refused.to_string(),
                "worker",
                "lane",
                now,
            );
            let _ = dead.into_properties();
        }
        Ok(task) => {
            let (_, _) = (task.expired(now), task.due_in(now));
            let crashes = |task: &Envelope| task.quarantine.as_ref().map_or(0, |record| record.runs);
            let copies = [
                Copied::of(&original, &task, now).attempt(task.attempt),
                Copied::of(&original, &task, now)
                    .attempt(task.attempt)
                    .unmarked()
                    .unhandled(UnhandledRecord { since: Some(1), ..UnhandledRecord::default() })
                    .crashed(crashes(&task), &WorkerIncarnation::new("worker", LIFE)),
                Copied::of(&original, &task, now).attempt(task.attempt).dead(
                    DeadReason::Rejected,
                    "no\nsense",
                    "worker",
                    "lane",
                    now,
                ),
            ];
            for copy in copies {
                let again = read(&copy.into_properties()).expect("a copy of a task is a task");
                assert_eq!(again.id, task.id);
                assert_eq!(again.kind, task.kind);
                assert_eq!(again.content_type, task.content_type);
                assert_eq!(again.attempt, task.attempt);
                assert_eq!(again.group, task.group);
                assert_eq!(again.timeout, task.timeout);
                assert_eq!(again.correlation_id, task.correlation_id);
                assert_eq!(again.trace, task.trace);
                assert_eq!(again.expires_at, task.expires_at);
                assert_eq!(crashes(&again), crashes(&task));
            }
        }
    }
});
