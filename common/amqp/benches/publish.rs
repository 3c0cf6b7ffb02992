//! Cost of publishing 200 B messages with confirms, 1,000 in flight: Garenne's publisher, which reports unroutable
//! and refused messages, against raw lapin calls.
//!
//! `./dev bench publish [--rounds N] [--messages N] [--json FILE]`

use std::{process::Stdio, time::Instant};

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use garenne_amqp::{Broker, Message, Publisher, PublisherConfig, Target};
use garenne_bench::{Rows, Usage, flag, number, option};
use garenne_common::telemetry::metrics::Role;
use garenne_protocol::task::{ContentType, Kind, NewTask};
use lapin::{
    BasicProperties, Channel, Confirmation,
    options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions},
    types::{AMQPValue, FieldTable},
};
use tokio::process::Command;

/// Most unconfirmed messages.
const IN_FLIGHT: usize = 1000;
/// Size of a body, in bytes.
const BODY: usize = 200;
const QUEUE: &str = "garenne-bench-publish";
const WAYS: [&str; 2] = ["raw-lapin", "garenne"];

#[tokio::main]
async fn main() -> Result<()> {
    if flag("--child") {
        return child().await;
    }
    let rounds = number("--rounds", 5).map_err(anyhow::Error::msg)?;
    let messages = number("--messages", 100_000).map_err(anyhow::Error::msg)?;
    let url = option("--amqp-url").context("--amqp-url is missing; ./dev bench sets it")?;
    let mut rows = Rows::default();
    let broker = Broker::new(&url, "publish bench")?;
    rows.version("rabbitmq", broker.version().await?.to_string());
    let connection = broker.connect(Role::Operate).await?;
    let channel = connection.create_channel().await?;
    for round in 0..rounds {
        for way in WAYS {
            empty_queue(&channel).await?;
            // A process of its own, so that its CPU time is measured alone.
            let child = Command::new(std::env::current_exe()?)
                .args(["--child", way, "--amqp-url", &url, "--messages", &messages.to_string()])
                .stderr(Stdio::inherit())
                .output()
                .await?;
            ensure!(child.status.success(), "{way} ended with {}", child.status);
            let text = String::from_utf8(child.stdout)?;
            let (rate, cpu) = text.trim().split_once(' ').context("two numbers")?;
            eprintln!("publish/{way} {round}: {rate}/s, {cpu} us");
            rows.add(format!("publish/{way}/messages_per_s"), "messages/s", rate.parse()?);
            rows.add(format!("publish/{way}/cpu_us"), "us/message", cpu.parse()?);
        }
    }
    channel.queue_delete(QUEUE.into(), QueueDeleteOptions::default()).await?;
    for what in ["messages_per_s", "cpu_us"] {
        let (ours, theirs) = (format!("publish/garenne/{what}"), format!("publish/raw-lapin/{what}"));
        rows.compare(format!("publish/garenne-to-raw-lapin/{what}"), &ours, &theirs);
    }
    rows.publish()?;
    Ok(())
}

/// Replaces the quorum queue with an empty one.
async fn empty_queue(channel: &Channel) -> Result<()> {
    channel.queue_delete(QUEUE.into(), QueueDeleteOptions::default()).await?;
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    channel.queue_declare(QUEUE.into(), options, arguments).await?;
    Ok(())
}

/// A task as Garenne's producer writes it.
fn task() -> (BasicProperties, Vec<u8>) {
    let kind = Kind::parse("bench.noop").expect("a constant");
    let body = format!(r#"{{"pad":"{}"}}"#, "x".repeat(BODY - 10)).into_bytes();
    let task = NewTask::new(kind, ContentType::Json, body);
    (task.properties(std::time::SystemTime::UNIX_EPOCH), task.body)
}

/// Publishes, and prints messages per second and microseconds of CPU time per message.
async fn child() -> Result<()> {
    let url = option("--amqp-url").context("--amqp-url")?;
    let messages = number("--messages", 0).map_err(anyhow::Error::msg)?;
    let broker = Broker::new(&url, "publish bench")?;
    let (took, cpu) = match option("--child").as_deref() {
        Some("garenne") => {
            let config = PublisherConfig { in_flight: IN_FLIGHT, ..PublisherConfig::default() };
            let publisher = Publisher::new(broker, config);
            publisher.connect().await?;
            measured(messages, async |(properties, body)| {
                let message =
                    Message { target: Target::queue(QUEUE.to_owned()), properties, body: body.into() };
                publisher.publish(message).await.map_err(anyhow::Error::from)
            })
            .await?
        }
        _ => {
            let connection = broker.connect(Role::Publish).await?;
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            measured(messages, async |(properties, body): (_, Vec<u8>)| {
                let options = BasicPublishOptions { mandatory: true, immediate: false };
                let sent = channel.basic_publish("".into(), QUEUE.into(), options, &body, properties);
                let confirmation = sent.await?.await?;
                ensure!(confirmation == Confirmation::Ack(None), "not stored: {confirmation:?}");
                Ok(())
            })
            .await?
        }
    };
    let each = messages as f64;
    println!("{} {}", each / took, cpu * 1e6 / each);
    Ok(())
}

/// Elapsed seconds, and seconds of CPU time.
async fn measured(
    messages: usize,
    publish: impl AsyncFn((BasicProperties, Vec<u8>)) -> Result<()>,
) -> Result<(f64, f64)> {
    let me = std::process::id();
    let (begun, before) = (Instant::now(), Usage::of(me).cpu);
    stream::iter(0..messages)
        .map(|_| publish(task()))
        .buffer_unordered(IN_FLIGHT)
        .try_for_each(async |()| Ok(()))
        .await?;
    Ok((begun.elapsed().as_secs_f64(), (Usage::of(me).cpu - before).as_secs_f64()))
}
