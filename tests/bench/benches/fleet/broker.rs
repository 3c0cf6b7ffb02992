//! The broker: a virtual host for the benchmark, publishing to its queues, and their counts.

use std::{fmt, time::Duration};

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use garenne_bench::option;
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties,
    options::{
        BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
        QueueDeleteOptions, QueuePurgeOptions,
    },
    types::{AMQPValue, FieldTable},
};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};

/// Maximum number of unconfirmed messages.
const IN_FLIGHT: usize = 2000;

/// The queue of Garenne's fast lane.
pub(crate) const LANE: &str = "garenne.tasks.fast";

/// The exchange that distributes the lane's tasks among its shards.
pub(crate) const SHARDS_EXCHANGE: &str = "garenne.shards.fast";

/// The measured types of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueType {
    Quorum,
    Classic,
}

impl fmt::Display for QueueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        })
    }
}

/// A new virtual host for the benchmark, with a default queue type.
pub(crate) struct Broker {
    kind: QueueType,
    amqp_url: String,
    management: Management,
    name: String,
    connection: Connection,
    channel: Channel,
}

impl Broker {
    /// Creates the virtual host on the broker of `--amqp-url` and `--management-url`.
    pub(crate) async fn fresh(kind: QueueType) -> Result<Self> {
        Self::fresh_at(kind, &format!("garenne-bench-{kind}")).await
    }

    /// The same with this name of the virtual host.
    pub(crate) async fn fresh_at(kind: QueueType, name: &str) -> Result<Self> {
        let server = option("--amqp-url").context("--amqp-url is missing; ./dev bench gives it")?;
        let management = option("--management-url").context("--management-url is missing")?;
        let authority = server.strip_suffix("/%2f").context("--amqp-url must end in /%2f")?;
        let name = name.to_owned();
        let amqp_url = format!("{authority}/{name}");
        let management = Management { url: management, http: Client::new() };
        management.delete_vhost(&name).await?;
        management.create_vhost(&name, kind).await?;
        let connection = Connection::connect(&amqp_url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self { kind, amqp_url, management, name, connection, channel })
    }

    /// The default type of its queues.
    pub(crate) fn kind(&self) -> QueueType {
        self.kind
    }

    pub(crate) fn amqp_url(&self) -> &str {
        &self.amqp_url
    }

    pub(crate) async fn version(&self) -> Result<String> {
        self.management.version().await
    }

    /// Deletes the virtual host with its contents.
    pub(crate) async fn clear(self) -> Result<()> {
        self.management.delete_vhost(&self.name).await
    }

    /// Declares a queue of the default type without arguments, as most clients do. Replaces an existing queue.
    pub(crate) async fn declare(&self, queue: &str) -> Result<()> {
        self.declare_with(queue, &[]).await
    }

    /// The same with text arguments.
    pub(crate) async fn declare_with(&self, queue: &str, arguments: &[(&str, &str)]) -> Result<()> {
        self.channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        let mut table = FieldTable::default();
        for (name, value) in arguments {
            table.insert((*name).into(), AMQPValue::LongString((*value).into()));
        }
        self.channel.queue_declare(queue.into(), options, table).await?;
        Ok(())
    }

    /// Publishes to a queue directly and waits for every confirm.
    pub(crate) async fn fill(
        &self,
        queue: &str,
        messages: impl Iterator<Item = (BasicProperties, Vec<u8>)>,
    ) -> Result<()> {
        self.publish("", queue, messages).await
    }

    /// Publishes to an exchange and waits for every confirm.
    pub(crate) async fn publish(
        &self,
        exchange: &str,
        key: &str,
        messages: impl Iterator<Item = (BasicProperties, Vec<u8>)>,
    ) -> Result<()> {
        stream::iter(messages)
            .map(|(properties, body)| async move {
                let options = BasicPublishOptions::default();
                let sent =
                    self.channel.basic_publish(exchange.into(), key.into(), options, &body, properties);
                let confirmation = sent.await?.await?;
                ensure!(confirmation == Confirmation::Ack(None), "not stored: {confirmation:?}");
                Ok(())
            })
            .buffer_unordered(IN_FLIGHT)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(())
    }

    /// The number of ready messages of a queue, by a passive declare, which is exact.
    pub(crate) async fn ready(&self, queue: &str) -> Result<u32> {
        let options = QueueDeclareOptions { passive: true, ..Default::default() };
        Ok(self.channel.queue_declare(queue.into(), options, FieldTable::default()).await?.message_count())
    }

    /// The number of ready messages of all these queues.
    pub(crate) async fn ready_in(&self, queues: &[String]) -> Result<u32> {
        let mut ready = 0;
        for queue in queues {
            ready += self.ready(queue).await?;
        }
        Ok(ready)
    }

    /// Polls these queues until `wanted` is true for the number of their ready messages.
    pub(crate) async fn until(
        &self,
        queues: &[String],
        every: Duration,
        wanted: impl Fn(u32) -> bool,
    ) -> Result<u32> {
        let until = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            let ready = self.ready_in(queues).await?;
            if wanted(ready) {
                return Ok(ready);
            }
            ensure!(
                tokio::time::Instant::now() < until,
                "{queues:?} still have {ready} messages after a minute"
            );
            tokio::time::sleep(every).await;
        }
    }

    /// Takes all ready messages out of a queue.
    pub(crate) async fn take_all(&self, queue: &str) -> Result<Vec<(BasicProperties, Vec<u8>)>> {
        let ready = self.ready(queue).await?.try_into()?;
        let channel = self.connection.create_channel().await?;
        let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
        let deliveries =
            channel.basic_consume(queue.into(), "bench".into(), options, FieldTable::default()).await?;
        let taken = deliveries.take(ready);
        let taken = taken.map_ok(|delivery| (delivery.properties, delivery.data)).try_collect().await?;
        channel.close(200, "done".into()).await?;
        Ok(taken)
    }

    pub(crate) async fn purge(&self, queue: &str) -> Result<()> {
        self.channel.queue_purge(queue.into(), QueuePurgeOptions::default()).await?;
        Ok(())
    }
}

/// The broker's management API. Its names need no escaping in a URL.
struct Management {
    /// With user and password.
    url: String,
    http: Client,
}

impl Management {
    async fn version(&self) -> Result<String> {
        let answer = self
            .http
            .get(format!("{}/api/overview", self.url.trim_end_matches('/')))
            .send()
            .await?
            .error_for_status()?;
        let overview: Value = answer.json().await?;
        Ok(overview["rabbitmq_version"].as_str().context("the broker has no version")?.to_owned())
    }

    /// Creates a virtual host whose queues are of this type.
    async fn create_vhost(&self, name: &str, kind: QueueType) -> Result<()> {
        let definition = json!({ "default_queue_type": kind.to_string() });
        let put = self.http.put(self.vhost(name)).json(&definition);
        put.send().await?.error_for_status()?;
        Ok(())
    }

    /// Deletes a virtual host, if it exists.
    async fn delete_vhost(&self, name: &str) -> Result<()> {
        let answer = self.http.delete(self.vhost(name)).send().await?;
        if answer.status() != StatusCode::NOT_FOUND {
            answer.error_for_status()?;
        }
        Ok(())
    }

    fn vhost(&self, name: &str) -> String {
        format!("{}/api/vhosts/{name}", self.url.trim_end_matches('/'))
    }
}

/// A body of so many bytes that is a JSON object.
pub(crate) fn body(bytes: usize) -> Vec<u8> {
    let frame = json!({ "pad": "" }).to_string().len();
    json!({ "pad": "x".repeat(bytes.saturating_sub(frame)) }).to_string().into_bytes()
}

/// The queues of Garenne's fast lane with this number of shards.
pub(crate) fn lane_queues(shards: u16) -> Vec<String> {
    let rest = (1..shards).map(|shard| format!("{LANE}.{shard}"));
    std::iter::once(LANE.to_owned()).chain(rest).collect()
}

/// A task as Garenne's producer publishes it for a lane with several shards.
pub(crate) fn keyed_task(kind: &str, body: Vec<u8>) -> (BasicProperties, Vec<u8>) {
    let (properties, body) = task(kind, body);
    let mut headers = FieldTable::default();
    let key = properties.message_id().as_ref().map_or("", |id| id.as_str());
    headers.insert("garenne-key".into(), AMQPValue::LongString(key.into()));
    (properties.with_headers(headers), body)
}

/// A task as Garenne's producer publishes it.
pub(crate) fn task(kind: &str, body: Vec<u8>) -> (BasicProperties, Vec<u8>) {
    let properties = BasicProperties::default()
        .with_message_id(uuid::Uuid::now_v7().to_string().into())
        .with_type(kind.into())
        .with_content_type("application/json".into())
        .with_delivery_mode(2)
        .with_timestamp(1_800_000_000);
    (properties, body)
}

/// A task as Celery 5.7 publishes it, with all of its headers.
pub(crate) fn celery_task(bytes: usize) -> (BasicProperties, Vec<u8>) {
    let of = |pad: &str| json!([[], { "pad": pad }, { "callbacks": null, "errbacks": null, "chain": null, "chord": null }]);
    let frame = of("").to_string().len();
    let body = of(&"x".repeat(bytes.saturating_sub(frame))).to_string().into_bytes();
    let id = uuid::Uuid::new_v4().to_string();
    let mut headers = FieldTable::default();
    let texts = [
        ("argsrepr", "()"),
        ("id", &id),
        ("kwargsrepr", "{'pad': '...'}"),
        ("lang", "py"),
        ("origin", "gen4711@host"),
        ("root_id", &id),
        ("task", "bench.noop"),
    ];
    for (name, value) in texts {
        headers.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    for name in ["eta", "expires", "group", "group_index", "parent_id", "shadow", "stamped_headers"] {
        headers.insert(name.into(), AMQPValue::Void);
    }
    for name in ["replaced_task_nesting", "retries"] {
        headers.insert(name.into(), AMQPValue::LongInt(0));
    }
    headers.insert("ignore_result".into(), AMQPValue::Boolean(false));
    headers.insert("stamps".into(), AMQPValue::FieldTable(FieldTable::default()));
    let limits = vec![AMQPValue::Void, AMQPValue::Void];
    headers.insert("timelimit".into(), AMQPValue::FieldArray(limits.into()));
    let properties = BasicProperties::default()
        .with_correlation_id(id.as_str().into())
        .with_reply_to("ded2fd87-d0af-3edf-bee1-98e8bff10c4a".into())
        .with_content_type("application/json".into())
        .with_content_encoding("utf-8".into())
        .with_priority(0)
        .with_headers(headers)
        .with_delivery_mode(2);
    (properties, body)
}

/// A task as Dramatiq publishes it.
pub(crate) fn dramatiq_task(bytes: usize, queue: &str) -> (BasicProperties, Vec<u8>) {
    let id = uuid::Uuid::new_v4().to_string();
    let of = |pad: &str| {
        json!({ "queue_name": queue, "actor_name": "bench.noop", "args": [], "kwargs": { "pad": pad },
            "options": {}, "message_id": id, "message_timestamp": 1_800_000_000_000_u64 })
    };
    let frame = of("").to_string().len();
    let body = of(&"x".repeat(bytes.saturating_sub(frame))).to_string().into_bytes();
    (BasicProperties::default().with_delivery_mode(2).with_priority(0), body)
}
