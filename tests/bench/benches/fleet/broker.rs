//! The broker: a virtual host for the benchmark, filled queues, and what is left in them.

use std::{fmt, time::Duration};

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use garenne_bench::option;
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties,
    options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions},
    types::FieldTable,
};
use reqwest::Client;
use serde_json::{Value, json};

/// Unconfirmed messages at most.
const IN_FLIGHT: usize = 2000;

/// The queue that Garenne's fast lane has.
pub(crate) const LANE: &str = "garenne.tasks.fast";

/// The two kinds of queue that tasks wait in.
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

/// A virtual host of the benchmark's own, made anew, whose queues are of one type unless they say otherwise.
pub(crate) struct Broker {
    amqp_url: String,
    management: String,
    http: Client,
    name: String,
    // The channel is of no use without it.
    _connection: Connection,
    channel: Channel,
}

impl Broker {
    /// The one that `--amqp-url` and `--management-url` name.
    pub(crate) async fn fresh(kind: QueueType) -> Result<Self> {
        let server = option("--amqp-url").context("--amqp-url is missing; ./dev bench gives it")?;
        let management = option("--management-url").context("--management-url is missing")?;
        let authority = server.strip_suffix("/%2f").context("--amqp-url must end in /%2f")?;
        let name = format!("garenne-bench-{kind}");
        let (amqp_url, http) = (format!("{authority}/{name}"), Client::new());
        let host = format!("{management}/api/vhosts/{name}");
        http.delete(&host).send().await?;
        let made = http.put(&host).json(&json!({ "default_queue_type": kind.to_string() })).send().await?;
        ensure!(made.status().is_success(), "the broker makes no virtual host: {}", made.text().await?);
        let connection = Connection::connect(&amqp_url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self { amqp_url, management, http, name, _connection: connection, channel })
    }

    pub(crate) fn amqp_url(&self) -> &str {
        &self.amqp_url
    }

    pub(crate) async fn version(&self) -> Result<String> {
        let overview: Value =
            self.http.get(format!("{}/api/overview", self.management)).send().await?.json().await?;
        Ok(overview["rabbitmq_version"].as_str().context("a version")?.to_owned())
    }

    /// Deletes the virtual host and all that is in it.
    pub(crate) async fn clear(self) -> Result<()> {
        self.http.delete(format!("{}/api/vhosts/{}", self.management, self.name)).send().await?;
        Ok(())
    }

    /// Declares a queue of the virtual host's type with no arguments at all, as most clients do, in the place
    /// of whatever had its name.
    pub(crate) async fn declare(&self, queue: &str) -> Result<()> {
        self.channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        self.channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
        Ok(())
    }

    /// Publishes straight to a queue and waits for every confirm.
    pub(crate) async fn fill(
        &self,
        queue: &str,
        messages: impl Iterator<Item = (BasicProperties, Vec<u8>)>,
    ) -> Result<()> {
        stream::iter(messages)
            .map(|(properties, body)| async move {
                let options = BasicPublishOptions::default();
                let sent = self.channel.basic_publish("".into(), queue.into(), options, &body, properties);
                let confirmation = sent.await?.await?;
                ensure!(confirmation == Confirmation::Ack(None), "not stored: {confirmation:?}");
                Ok(())
            })
            .buffer_unordered(IN_FLIGHT)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(())
    }

    /// Messages that wait for a consumer, by the queue's own word of this moment.
    pub(crate) async fn ready(&self, queue: &str) -> Result<u32> {
        let options = QueueDeclareOptions { passive: true, ..Default::default() };
        Ok(self.channel.queue_declare(queue.into(), options, FieldTable::default()).await?.message_count())
    }

    /// Waits until a queue has so many, looking every so often.
    pub(crate) async fn until(
        &self,
        queue: &str,
        every: Duration,
        wanted: impl Fn(u32) -> bool,
    ) -> Result<u32> {
        let until = tokio::time::Instant::now() + Duration::from_secs(300);
        loop {
            let ready = self.ready(queue).await?;
            if wanted(ready) {
                return Ok(ready);
            }
            ensure!(tokio::time::Instant::now() < until, "{queue} has {ready} messages and nothing moves");
            tokio::time::sleep(every).await;
        }
    }
}

/// A body of so many bytes that is a JSON object.
pub(crate) fn body(bytes: usize) -> Vec<u8> {
    let frame = json!({ "pad": "" }).to_string().len();
    json!({ "pad": "x".repeat(bytes.saturating_sub(frame)) }).to_string().into_bytes()
}

/// A task as Garenne's own producer writes it.
pub(crate) fn task(kind: &str, body: Vec<u8>) -> (BasicProperties, Vec<u8>) {
    let properties = BasicProperties::default()
        .with_message_id(uuid::Uuid::now_v7().to_string().into())
        .with_type(kind.into())
        .with_content_type("application/json".into())
        .with_delivery_mode(2)
        .with_timestamp(1_800_000_000);
    (properties, body)
}
