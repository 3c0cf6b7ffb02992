//! A worker for drills that can be told to be wrong, so that a drill can be seen to notice.
//!
//! `drilled-worker FAULT [ADDR…]` consumes the lane `fast`. Each task takes 5 ms, then takes effect (a
//! line in the file `DRILL_EFFECTS`), then is reported on standard output, then acknowledged; eight at
//! a time are acknowledged together, as a worker that batches does. `FAULT` is one of
//!
//! - `none`: what came back is looked up before it takes effect again;
//! - `acks-first`: acknowledges what it has not done yet;
//! - `drops-on-shutdown`: at SIGTERM it acknowledges what it holds and goes;
//! - `no-unique-key`: what came back takes effect again.

use std::{env, fs::OpenOptions, io::Write, time::Duration};

use anyhow::{Context, Result, bail};
use futures_util::StreamExt;
use lapin::{
    Channel, Connection, ConnectionProperties,
    message::Delivery,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::sleep,
};

/// Delivered and not acknowledged at once.
const PREFETCH: u16 = 32;
/// Acknowledged together.
const BATCH: u64 = 8;
/// What a task takes.
const WORK: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    AcksFirst,
    DropsOnShutdown,
    NoUniqueKey,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let fault = match env::args().nth(1).as_deref() {
        Some("none") => Fault::None,
        Some("acks-first") => Fault::AcksFirst,
        Some("drops-on-shutdown") => Fault::DropsOnShutdown,
        Some("no-unique-key") => Fault::NoUniqueKey,
        other => bail!("none, acks-first, drops-on-shutdown or no-unique-key, not {other:?}"),
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
    loop {
        let delivery = tokio::select! {
            task = tasks.next() => task.context("the broker ended it")??,
            _ = terminate.recv() => break,
        };
        last = delivery.delivery_tag;
        let at_once = fault == Fault::AcksFirst;
        if at_once {
            ack(&channel, 0).await?;
        }
        work(&delivery, fault, &effects).await?;
        if !at_once && last.is_multiple_of(BATCH) {
            ack(&channel, last).await?;
        }
    }
    match fault {
        // Everything delivered, the tasks that wait here unseen included.
        Fault::DropsOnShutdown => ack(&channel, 0).await?,
        Fault::None | Fault::NoUniqueKey if last > 0 => ack(&channel, last).await?,
        _ => {}
    }
    // Long enough for the broker to have applied it.
    sleep(Duration::from_millis(200)).await;
    connection.close(200, "done".into()).await?;
    Ok(())
}

async fn ack(channel: &Channel, up_to: u64) -> Result<()> {
    Ok(channel.basic_ack(up_to, BasicAckOptions { multiple: true }).await?)
}

async fn work(delivery: &Delivery, fault: Fault, effects: &str) -> Result<()> {
    sleep(WORK).await;
    let id = delivery.properties.message_id().as_ref().context("a task without an id")?.as_str();
    let line = format!("{{\"task_id\":\"{id}\"}}\n");
    let look = delivery.redelivered && fault != Fault::NoUniqueKey;
    if !look || !std::fs::read_to_string(effects).unwrap_or_default().contains(&line) {
        // One write: a kill leaves the whole line or none.
        OpenOptions::new().create(true).append(true).open(effects)?.write_all(line.as_bytes())?;
    }
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(line.as_bytes())?;
    Ok(stdout.flush()?)
}
