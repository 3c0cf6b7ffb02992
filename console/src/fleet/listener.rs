//! Receives heartbeats on an exclusive queue, which the broker deletes with the connection.

use std::{
    collections::BTreeMap,
    fmt::Display,
    time::{Duration, SystemTime},
};

use futures_util::{StreamExt, stream::BoxStream};
use garenne_amqp::unreadable;
use garenne_common::exit::{Exit, Failure};
use garenne_operator::{operator::Operator, queues::failure};
use garenne_protocol::{
    heartbeat::{BEATS, Heartbeat},
    task::epoch_ms,
};
use lapin::{
    BasicProperties, Channel, Connection, Consumer, Event,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, QueueBindOptions,
        QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};
use tokio::time::{Instant, Interval, interval_at};

use super::lifecycle::{RecordedWorker, recorded_workers};
use crate::worker_command::{ALL_WORKERS, WorkerCommand};

/// Limits of the queue. The broker drops the oldest heartbeats first; newer ones repeat their counters.
const MAX_QUEUED: i64 = 20_000;
const MAX_QUEUED_BYTES: i64 = 64 * 1024 * 1024;
/// Larger messages are ignored: processes limit their heartbeats to less.
const MAX_BYTES: usize = 256 * 1024;
/// Heartbeats that the broker sends ahead: at most 50 MB.
const PREFETCH: u16 = 200;
/// A routing key for the control exchange that no queue is bound with.
const UNBOUND: &str = "alarm-check";
/// Time between two checks of the binding, which an exchange that is deleted takes with it, and of an alarm of the broker.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// One ack for this many heartbeats: fewer than the prefetch, so that the broker always has credit.
const ACK_EVERY: u64 = 50;

/// A subscription to the fleet's heartbeats.
pub struct HeartbeatListener {
    /// The connection of the subscription.
    pub connection: Connection,
    /// When every worker was asked for a heartbeat.
    pub requested: Instant,
    /// The workers on record, by name. Those that did not stop should answer.
    pub recorded: BTreeMap<String, RecordedWorker>,
    heartbeats: Consumer,
    channel: Channel,
    queue: String,
    events: String,
    /// The exchange that alarms are checked with; [`None`] if nothing may be published.
    control: Option<String>,
    checks: Interval,
    events_of_connection: BoxStream<'static, Event>,
    /// What the broker lacks, while an alarm blocks what this connection publishes.
    pub alarm: Option<String>,
}

impl HeartbeatListener {
    /// The workers on record that did not stop, with their incarnations.
    pub fn expected(&self) -> impl Iterator<Item = (&str, &str)> {
        let running = self.recorded.iter().filter(|(_, worker)| worker.runs);
        running.map(|(name, worker)| (name.as_str(), worker.incarnation.as_str()))
    }

    /// Subscribes, reads which workers should answer, and asks every worker for a heartbeat unless the operator is
    /// read-only. The user needs configure, write and read permission on `<prefix>.console.*` and read permission on
    /// the events exchange.
    pub async fn open(operator: &Operator) -> Result<Self, Failure> {
        let connection = operator.connect().await?;
        let events_of_connection = connection.events_listener().boxed();
        let queue = operator.names.console(&uuid::Uuid::now_v7().to_string());
        let events = operator.names.events();
        let error = |error| failure(&events, &error);
        let channel = connection.create_channel().await.map_err(error)?;
        let options = QueueDeclareOptions { exclusive: true, auto_delete: true, ..Default::default() };
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(MAX_QUEUED));
        arguments.insert("x-max-length-bytes".into(), AMQPValue::LongLongInt(MAX_QUEUED_BYTES));
        channel.queue_declare(queue.as_str().into(), options, arguments).await.map_err(error)?;
        bind(&channel, &queue, &events).await.map_err(error)?;
        channel.basic_qos(PREFETCH, BasicQosOptions::default()).await.map_err(error)?;
        let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
        let heartbeats = channel.basic_consume(queue.as_str().into(), "".into(), options, none);
        let heartbeats = heartbeats.await.map_err(error)?;
        let now = epoch_ms(SystemTime::now());
        let recorded = recorded_workers(&connection, &operator.names.lifecycle(), now).await;
        let recorded = recorded.unwrap_or_else(|failure| {
            tracing::warn!(%failure, "cannot read the lifecycle stream: workers that crashed before this console started are not shown");
            BTreeMap::new()
        });
        // Last, because a broker with an alarm reads nothing more from a connection that has published.
        if !operator.read_only {
            let body = serde_json::to_vec(&WorkerCommand::Beat).expect("a constant");
            let (exchange, key) = (operator.names.control().into(), ALL_WORKERS.into());
            let options = BasicPublishOptions::default();
            let asked =
                channel.basic_publish(exchange, key, options, &body, BasicProperties::default()).await;
            asked.map_err(|error| operator.broker.explain(&error))?;
        }
        let requested = Instant::now();
        let checks = interval_at(requested + CHECK_INTERVAL, CHECK_INTERVAL);
        let alarm = None;
        Ok(Self {
            connection,
            requested,
            recorded,
            heartbeats,
            channel,
            queue,
            events,
            control: (!operator.read_only).then(|| operator.names.control()),
            checks,
            events_of_connection,
            alarm,
        })
    }

    /// The next heartbeat, or [`None`] if [`alarm`](Self::alarm) has changed or the broker has answered a check. Messages
    /// that cannot be parsed are skipped. Fails if the connection is closed, or queue or exchange were deleted.
    pub async fn next(&mut self) -> Result<Option<Heartbeat>, Failure> {
        let ended = |error: &dyn Display| Failure::new(Exit::BrokerUnavailable, error);
        loop {
            let next = tokio::select! {
                biased;
                Some(event) = self.events_of_connection.next() => {
                    self.alarm = match event {
                        Event::ConnectionBlocked(reason) => Some(reason),
                        Event::ConnectionUnblocked => None,
                        _ => continue,
                    };
                    return Ok(None);
                }
                // The broker reads nothing from a connection that it blocks.
                _ = self.checks.tick(), if self.alarm.is_none() => {
                    bind(&self.channel, &self.queue, &self.events).await.map_err(|error| ended(&error))?;
                    if let Some(control) = &self.control {
                        probe(&self.channel, control).await.map_err(|error| ended(&error))?;
                    }
                    return Ok(None);
                }
                next = self.heartbeats.next() => next,
            };
            if let Some(Ok(message)) = &next
                && message.delivery_tag % ACK_EVERY == 0
            {
                let all = BasicAckOptions { multiple: true };
                let acked = self.channel.basic_ack(message.delivery_tag, all).await;
                acked.map_err(|error| ended(&error))?;
            }
            match next {
                Some(Ok(message))
                    if message.data.len() > MAX_BYTES || unreadable(&message.properties).is_some() => {}
                Some(Ok(message)) => match serde_json::from_slice::<Heartbeat>(&message.data) {
                    // The broker checks the routing key against the rights of the publisher, and nothing the body.
                    Ok(heartbeat) if heartbeat.routing_key() != message.routing_key.as_str() => {
                        tracing::debug!(key = %message.routing_key, id = heartbeat.id, "ignored a forged heartbeat");
                    }
                    Ok(heartbeat) => return Ok(Some(heartbeat)),
                    Err(error) => tracing::debug!(%error, "ignored a malformed heartbeat"),
                },
                Some(Err(error)) => return Err(ended(&error)),
                None => return Err(ended(&"the console's queue was deleted")),
            }
        }
    }
}

/// Publishes a message that no queue receives: the broker tells only those of an alarm who publish while it lasts.
async fn probe(channel: &Channel, control: &str) -> Result<(), lapin::Error> {
    let (options, none) = (BasicPublishOptions::default(), BasicProperties::default());
    channel.basic_publish(control.into(), UNBOUND.into(), options, b"", none).await.map(drop)
}

/// Binds the queue to the heartbeats. Nothing changes if it is bound.
async fn bind(channel: &Channel, queue: &str, events: &str) -> Result<(), lapin::Error> {
    let (options, none) = (QueueBindOptions::default(), FieldTable::default());
    channel.queue_bind(queue.into(), events.into(), BEATS.into(), options, none).await
}
