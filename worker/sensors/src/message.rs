//! `message.map`: makes readings of foreign messages, such as those of RabbitMQ's MQTT plugin.
//!
//! The maps are those of the lane that a message came to. Each reading is a follow-up task `reading.process`, which is
//! confirmed before the message is acked. A reading has the same id in each repetition of the message if the map takes an
//! id or a time from it. What no map accepts becomes a dead letter with reason `unmapped` and its source: the message, or
//! what remains of it besides the readings.

use std::{collections::BTreeMap, sync::Arc};

use garenne::{
    Output, TaskContext, TaskError, TaskOptions, WorkerBuilder,
    handler::{ContentType, Payload, PayloadError, RefusedPart},
    json_payload,
};
use garenne_map::MapChain;
use garenne_protocol::{
    sensor::{Limits, Timestamp},
    task::{DeadReason, FOREIGN_KIND, Kind, ReadingTasks, TaskId, UNMAPPED_TASK_KIND},
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::reading::Readings;

/// Most refused values of a message that are named.
const MAX_NAMED: usize = 100;

/// The maps of each lane.
pub type LaneMaps = BTreeMap<String, MapChain>;

/// The result of one message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MappedMessage {
    /// Where the message came from, such as `topic:plant/boiler`.
    pub source: String,
    /// The number of readings. None if the map skips the message.
    pub readings: usize,
    /// The values that are refused, each with its position, field and reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// Whether a repetition of the message has no second effect.
    pub repeatable: bool,
    /// How often the map left values out because nothing was measured.
    #[serde(skip_serializing_if = "is_zero")]
    pub unmeasured: usize,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// The payload of a message, as its sender wrote it.
#[derive(Debug)]
pub struct ForeignPayload(Vec<u8>);

impl Payload for ForeignPayload {
    const KIND: &'static str = FOREIGN_KIND;

    fn read(_: ContentType, body: &[u8]) -> Result<Self, PayloadError> {
        Ok(Self(body.to_vec()))
    }
}

/// Registers the kind for lanes with these maps. Readings are checked against `limits`.
pub fn register(builder: WorkerBuilder, maps: LaneMaps, limits: Limits) -> WorkerBuilder {
    let kind = Kind::parse(Readings::KIND).expect("a constant");
    let keyed = builder.config().lanes.spread(Readings::KIND);
    let mapping = Arc::new(Mapping { maps, kind, keyed, limits });
    let handler = move |cx: TaskContext, payload: ForeignPayload| {
        let mapping = Arc::clone(&mapping);
        async move { mapping.map(&cx, &payload.0) }
    };
    builder.handle_with(handler, TaskOptions::short())
}

/// A message that no map of an MQTT bridge takes, in the task that stands for its dead letter.
#[derive(Debug, Deserialize)]
struct Unmapped {
    error: String,
}

json_payload!(Unmapped, UNMAPPED_TASK_KIND);

/// Registers the kind of messages that no map of an MQTT bridge takes. A bridge publishes them as tasks while it cannot
/// publish dead letters. They become dead letters here, which their worker holds or puts off until a queue takes them.
pub fn register_unmapped(builder: WorkerBuilder) -> WorkerBuilder {
    let handler = |_: TaskContext, unmapped: Unmapped| async move {
        Err::<Output, _>(TaskError::unmapped(unmapped.error))
    };
    builder.handle_with(handler, TaskOptions::short())
}

/// The settings that the kind needs.
struct Mapping {
    maps: LaneMaps,
    /// The kind of readings.
    kind: Kind,
    /// Whether the lane of readings has several shards. A reading then has its device as its key.
    keyed: bool,
    limits: Limits,
}

impl Mapping {
    fn map(&self, cx: &TaskContext, payload: &[u8]) -> Result<Output, TaskError> {
        let lane = cx.lane().unwrap_or_default();
        let source = cx.source();
        let source =
            source.ok_or_else(|| TaskError::invalid("a task of this kind needs lanes.<name>.maps"))?;
        // The quarantine receives messages of all lanes.
        let other_worker = || TaskError::retry(format!("this worker has no maps for lane {lane:?}"));
        let maps = self.maps.get(lane).ok_or_else(other_worker)?;
        let arrived = cx.arrived_at().map_or_else(OffsetDateTime::now_utc, OffsetDateTime::from);
        let now = Timestamp::from(arrived);
        let mapped = maps.apply(source, payload, now, &self.limits).map_err(TaskError::unmapped)?;
        let part = (!mapped.refused.is_empty()).then(|| RefusedPart {
            reason: DeadReason::Unmapped,
            error: mapped.refusal(),
            codes: mapped.codes(),
            payload: maps.remainder(source, payload, now, &self.limits),
            content_type: None,
        });
        let derived = |index: usize| TaskId::derived(cx.id(), &index.to_string());
        let ReadingTasks { tasks, repeatable } =
            ReadingTasks::new(&self.kind, self.keyed, &mapped.records, derived);
        let result = MappedMessage {
            source: source.to_label(),
            readings: tasks.len(),
            refused: mapped.refused.iter().take(MAX_NAMED).map(ToString::to_string).collect(),
            repeatable,
            unmeasured: mapped.unmeasured,
        };
        cx.follow_up_tasks(tasks)?;
        Ok(Output::json(&result)?.with_refused(part))
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use garenne::{
        Worker, WorkerConfig,
        testing::{TestOutcome, TestWorker},
    };
    use garenne_map::{Map, Source};
    use garenne_protocol::task::{ContentType, DeadReason, NewTask, read_batch, reading_id};

    use super::*;

    const MAP: &str = "[[map]]\ntopic = \"n/+\"\ndevice = \"{1}\"\nmetric = \"{name}\"\nvalues = \"/v\"\n\
                       time = \"{/t}\"\ntime_or_now = true\n";

    fn worker() -> TestWorker {
        let chain = [Map::parse("test", MAP).unwrap()].into_iter().collect();
        let maps = [("mqtt".to_owned(), chain)].into();
        let builder = Worker::builder(WorkerConfig::default());
        TestWorker::new(register(builder, maps, Limits::default())).unwrap()
    }

    async fn mapped(
        topic: &str,
        payload: &str,
    ) -> Result<(serde_json::Value, Vec<NewTask>), (DeadReason, String)> {
        let source = Source::Topic(topic);
        match worker().run_foreign("mqtt", source, payload.as_bytes().to_vec()).await {
            TestOutcome::Done(output) => {
                Ok((serde_json::from_str(output.json.get()).unwrap(), output.follow_ups))
            }
            TestOutcome::Dead { reason, error } => Err((reason, error)),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn the_readings_of_a_message_are_one_follow_up_with_the_ids_of_the_bridge() {
        let payload = r#"{"t":1790000000,"v":{"a":1,"b":2.5}}"#;
        let (output, follow_ups) = mapped("n/tank", payload).await.unwrap();
        assert_eq!(output, serde_json::json!({"source": "topic:n/tank", "readings": 2, "repeatable": true}));
        let [batch] = &follow_ups[..] else { panic!("{follow_ups:?}") };
        assert_eq!((batch.kind.as_str(), batch.content_type), (Readings::KIND, ContentType::Batch));
        for record in read_batch(&batch.body).unwrap() {
            let reading = serde_json::from_slice(record.payload).unwrap();
            assert_eq!(record.id, reading_id(&reading));
        }
        let again = mapped("n/tank", payload).await.unwrap().1;
        let ids = |body| read_batch(body).unwrap().into_iter().map(|it| it.id).collect::<Vec<_>>();
        assert_eq!(ids(&batch.body), ids(&again[0].body));
    }

    #[tokio::test]
    async fn a_reading_without_a_time_has_that_of_the_arrival_and_is_not_repeatable() {
        let before = Timestamp::from(OffsetDateTime::from(SystemTime::now()));
        let (output, follow_ups) = mapped("n/tank", r#"{"v":{"a":1}}"#).await.unwrap();
        assert_eq!((&output["readings"], &output["repeatable"]), (&1.into(), &false.into()));
        let reading: garenne_protocol::sensor::Reading = serde_json::from_slice(&follow_ups[0].body).unwrap();
        assert!(reading.time.as_micros() >= before.as_micros());
    }

    #[tokio::test]
    async fn a_message_that_no_map_takes_is_a_dead_letter_that_says_why() {
        let refused = async |topic: &str, payload: &str| mapped(topic, payload).await.unwrap_err();
        assert_eq!(refused("x", "1").await, (DeadReason::Unmapped, "no rule matches".to_owned()));
        let (reason, error) = refused("n/tank", "{").await;
        assert_eq!(reason, DeadReason::Unmapped);
        assert!(error.starts_with("rule 1: not JSON: "), "{error}");
        let large = format!("{{\"v\":{{\"a\":\"{}\"}}}}", "x".repeat(1 << 20));
        assert!(refused("n/tank", &large).await.1.contains("1048576 are allowed"));
    }

    #[tokio::test]
    async fn a_value_that_is_refused_is_a_dead_letter_and_the_others_are_readings() {
        let sent = br#"{"t":1790000000,"v":{"a":1,"b":NaN}}"#;
        let outcome = worker().run_foreign("mqtt", Source::Topic("n/tank"), sent.to_vec()).await;
        let TestOutcome::Done(Output { json, follow_ups, refused, .. }) = outcome else {
            panic!("{outcome:?}")
        };
        let output: serde_json::Value = serde_json::from_str(json.get()).unwrap();
        assert_eq!(
            output,
            serde_json::json!({
                "source": "topic:n/tank", "readings": 1, "repeatable": true,
                "refused": ["record 1: b: not a finite number"]
            })
        );
        assert_eq!(follow_ups.len(), 1);
        let part = RefusedPart {
            reason: DeadReason::Unmapped,
            error: "rule 1: record 1: b: not a finite number".to_owned(),
            codes: vec!["not-finite"],
            payload: br#"{"t":1790000000,"v":{"a":null,"b":NaN}}"#.to_vec(),
            content_type: None,
        };
        assert_eq!(refused, Some(part));
    }

    #[tokio::test]
    async fn a_message_that_no_map_of_a_bridge_takes_is_a_dead_letter_with_the_error_of_the_bridge() {
        let worker = TestWorker::new(register_unmapped(Worker::builder(WorkerConfig::default()))).unwrap();
        let sent = r#"{"reason":"unmapped","error":"no rule matches","topic":"x","payload":"MQ=="}"#;
        let outcome = worker.run(UNMAPPED_TASK_KIND, sent).await;
        let TestOutcome::Dead { reason, error } = outcome else { panic!("{outcome:?}") };
        assert_eq!((reason, error.as_str()), (DeadReason::Unmapped, "no rule matches"));
    }

    #[tokio::test]
    async fn a_message_of_another_workers_lane_is_retried_and_a_task_is_refused() {
        let other = worker().run_foreign("plant", Source::RoutingKey("n.tank"), b"1".to_vec()).await;
        let TestOutcome::Retry { error, .. } = other else { panic!("{other:?}") };
        assert_eq!(error, "this worker has no maps for lane \"plant\"");
        let task = worker().run(FOREIGN_KIND, "1").await;
        assert!(matches!(task, TestOutcome::Dead { reason: DeadReason::InvalidPayload, .. }), "{task:?}");
    }
}
