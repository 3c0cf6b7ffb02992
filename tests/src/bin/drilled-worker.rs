//! A worker with a selectable fault, to test that a drill detects the fault.
//!
//! `drilled-worker FAULT [ADDR…]` consumes the lane `fast`. Each task runs for 5 ms, takes effect (a line in the file
//! `DRILL_EFFECTS`), and is reported on standard output. Every eighth ack acknowledges all tasks before it. `FAULT` is
//! one of
//!
//! - `none`: a redelivered task takes effect only if it has not before;
//! - `acks-first`: acknowledges tasks before they run;
//! - `drops-on-shutdown`: on SIGTERM acknowledges all held tasks and exits;
//! - `no-unique-key`: a redelivered task takes effect again;
//! - `fails-first`: reports a first delivery without an effect and requeues it after [`REQUEUE_AFTER`]. No fault: an
//!   execution is not yet an effect.

use std::{collections::VecDeque, env, fs::OpenOptions, io::Write, time::Duration};

use anyhow::{Context, Result, bail};
use futures_util::StreamExt;
use lapin::{
    Channel, Connection, ConnectionProperties,
    message::Delivery,
    options::{BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions},
    types::FieldTable,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep, sleep_until},
};

/// Maximum number of unacknowledged deliveries.
const PREFETCH: u16 = 32;
/// Deliveries per ack.
const ACK_EVERY: u64 = 8;
/// Duration of a task.
const WORK: Duration = Duration::from_millis(5);
/// Time from a failed execution to its requeue.
const REQUEUE_AFTER: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    AcksFirst,
    DropsOnShutdown,
    NoUniqueKey,
    FailsFirst,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let fault = match env::args().nth(1).as_deref() {
        Some("none") => Fault::None,
        Some("acks-first") => Fault::AcksFirst,
        Some("drops-on-shutdown") => Fault::DropsOnShutdown,
        Some("no-unique-key") => Fault::NoUniqueKey,
        Some("fails-first") => Fault::FailsFirst,
        other => bail!("none, acks-first, drops-on-shutdown, no-unique-key or fails-first, not {other:?}"),
    };
    let effects = env::var("DRILL_EFFECTS").context("DRILL_EFFECTS")?;
    let queue = format!("{}.tasks.fast", env::var("GARENNE_PREFIX").context("GARENNE_PREFIX")?);
    let url = env::var("GARENNE_AMQP_URL").context("GARENNE_AMQP_URL")?;
    let mut terminate = signal(SignalKind::terminate())?;
    let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    let mut tasks = channel
        .basic_consume(
            queue.as_str().into(),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await?;
    let mut last = 0;
    let mut failed: VecDeque<(Instant, u64)> = VecDeque::new();
    loop {
        let requeue = failed.front().copied();
        let delivery = tokio::select! {
            task = tasks.next() => task.context("the broker cancelled the consumer")??,
            _ = terminate.recv() => break,
            () = sleep_until(requeue.map_or_else(Instant::now, |(at, _)| at)), if requeue.is_some() => {
                let (_, tag) = failed.pop_front().context("nothing to requeue")?;
                channel.basic_nack(tag, BasicNackOptions { requeue: true, multiple: false }).await?;
                continue;
            }
        };
        if fault == Fault::FailsFirst {
            if delivery.redelivered {
                work(&delivery, fault, &effects).await?;
                channel.basic_ack(delivery.delivery_tag, BasicAckOptions::default()).await?;
            } else {
                report(&delivery)?;
                failed.push_back((Instant::now() + REQUEUE_AFTER, delivery.delivery_tag));
            }
            continue;
        }
        last = delivery.delivery_tag;
        let at_once = fault == Fault::AcksFirst;
        if at_once {
            ack(&channel, 0).await?;
        }
        work(&delivery, fault, &effects).await?;
        if !at_once && last.is_multiple_of(ACK_EVERY) {
            ack(&channel, last).await?;
        }
    }
    match fault {
        // All deliveries, including those that have not started.
        Fault::DropsOnShutdown => ack(&channel, 0).await?,
        Fault::None | Fault::NoUniqueKey if last > 0 => ack(&channel, last).await?,
        _ => {}
    }
    // Long enough for the broker to apply the acks.
    sleep(Duration::from_millis(200)).await;
    connection.close(200, "done".into()).await?;
    Ok(())
}

async fn ack(channel: &Channel, up_to: u64) -> Result<()> {
    Ok(channel.basic_ack(up_to, BasicAckOptions { multiple: true }).await?)
}

async fn work(delivery: &Delivery, fault: Fault, effects: &str) -> Result<()> {
    sleep(WORK).await;
    let line = line(delivery)?;
    let check = delivery.redelivered && fault != Fault::NoUniqueKey;
    if !check || !std::fs::read_to_string(effects).unwrap_or_default().contains(&line) {
        // One write: a kill leaves the whole line or none.
        OpenOptions::new().create(true).append(true).open(effects)?.write_all(line.as_bytes())?;
    }
    report(delivery)
}

/// Reports an execution.
fn report(delivery: &Delivery) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(line(delivery)?.as_bytes())?;
    Ok(stdout.flush()?)
}

fn line(delivery: &Delivery) -> Result<String> {
    let id = delivery.properties.message_id().as_ref().context("a task without an id")?.as_str();
    Ok(format!("{{\"task_id\":\"{id}\"}}\n"))
}
