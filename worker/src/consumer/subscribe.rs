//! Consumes one queue, for as long as the worker wants it, over as many channels as that takes.

use std::{future::Future, sync::Arc};

use futures_util::StreamExt;
use garenne_common::broker::Backoff;
use lapin::{
    Channel, Consumer,
    options::{BasicCancelOptions, BasicConsumeOptions},
    types::FieldTable,
};
use tokio::sync::watch;

use super::{delivery::Delivery, epoch::Epoch, link::Link, meter::Meter, settle::Settler};

/// Whether new messages are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intake {
    /// Yes.
    Open,
    /// Not now: the channel stays, and what was delivered goes on.
    Quiet,
    /// Never again.
    Closed,
}

/// A queue to consume.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    pub(crate) queue: String,
    /// Messages delivered and not settled, at most.
    pub(crate) prefetch: u16,
    /// Shown in the broker's listings.
    pub(crate) tag: String,
}

/// How a channel came to its end.
enum End {
    /// Everything is settled, the channel is closed, nothing more is wanted.
    Drained,
    /// The channel or its connection died.
    Broken(String),
}

/// Consumes until the intake is closed and everything delivered is settled. `accept` takes each
/// delivery; while it waits nothing more is taken, and the prefetch bounds what piles up.
pub(crate) async fn run<F, R>(
    link: Link,
    subscription: Subscription,
    meter: Meter,
    mut intake: watch::Receiver<Intake>,
    up: watch::Sender<bool>,
    accept: F,
) where
    F: Fn(Delivery) -> R,
    R: Future<Output = ()>,
{
    let mut backoff = Backoff::default();
    loop {
        if wanted(&intake) == Intake::Closed {
            return;
        }
        let problem = match link.channel(subscription.prefetch).await {
            Ok((_connection, channel)) => {
                match one_epoch(channel, &subscription, &meter, &mut intake, &up, &mut backoff, &accept).await
                {
                    End::Drained => return,
                    End::Broken(problem) => problem,
                }
            }
            Err(error) => error.to_string(),
        };
        up.send_replace(false);
        let wait = backoff.next_wait();
        tracing::warn!(queue = subscription.queue, problem, ?wait, "not consuming, will try again");
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = until(&mut intake, |intake| intake == Intake::Closed) => return,
        }
    }
}

async fn one_epoch<F, R>(
    channel: Channel,
    subscription: &Subscription,
    meter: &Meter,
    intake: &mut watch::Receiver<Intake>,
    up: &watch::Sender<bool>,
    backoff: &mut Backoff,
    accept: &F,
) -> End
where
    F: Fn(Delivery) -> R,
    R: Future<Output = ()>,
{
    let (epoch, orders) = Epoch::new();
    let epoch = Arc::new(epoch);
    let (drain, draining) = watch::channel(false);
    let settler = Settler::new(
        channel.clone(),
        Arc::clone(&epoch),
        meter.clone(),
        orders,
        subscription.prefetch,
        draining,
    );
    let settling = tokio::spawn(settler.run());

    let ended = loop {
        let ended = match wanted(intake) {
            Intake::Closed => break Ok(()),
            Intake::Quiet => idle(&channel, intake).await,
            Intake::Open => match start(&channel, subscription).await {
                Ok(consumer) => {
                    up.send_replace(true);
                    backoff.reset();
                    consume(&channel, consumer, &epoch, meter, intake, accept).await
                }
                Err(error) => Err(error.to_string()),
            },
        };
        if ended.is_err() {
            break ended;
        }
    };
    if ended.is_err() {
        epoch.end();
    }
    drain.send_replace(true);
    // The settler is no library's task: it ends by itself and a panic in it is a bug worth seeing.
    let settled = settling.await;
    match (ended, settled) {
        (Ok(()), Ok(())) => match channel.close(200, "drained".into()).await {
            Ok(()) => End::Drained,
            Err(error) => End::Broken(error.to_string()),
        },
        (Err(problem), _) => End::Broken(problem),
        (_, Err(panic)) => End::Broken(panic.to_string()),
    }
}

async fn start(channel: &Channel, subscription: &Subscription) -> Result<Consumer, lapin::Error> {
    let (queue, tag) = (subscription.queue.as_str().into(), subscription.tag.as_str().into());
    channel.basic_consume(queue, tag, BasicConsumeOptions::default(), FieldTable::default()).await
}

/// Takes deliveries until another intake is wanted; then cancels and takes what was on its way.
async fn consume<F, R>(
    channel: &Channel,
    mut consumer: Consumer,
    epoch: &Arc<Epoch>,
    meter: &Meter,
    intake: &mut watch::Receiver<Intake>,
    accept: &F,
) -> Result<(), String>
where
    F: Fn(Delivery) -> R,
    R: Future<Output = ()>,
{
    let mut cancelled = false;
    loop {
        let message = tokio::select! {
            biased;
            () = until(intake, |intake| intake != Intake::Open), if !cancelled => None,
            message = consumer.next() => Some(message),
        };
        let Some(message) = message else {
            cancelled = true;
            let tag = consumer.tag();
            channel.basic_cancel(tag, BasicCancelOptions::default()).await.map_err(|e| e.to_string())?;
            continue;
        };
        match message {
            Some(Ok(message)) => accept(Delivery::new(Arc::clone(epoch), meter.clone(), message)).await,
            Some(Err(error)) => return Err(error.to_string()),
            None if cancelled => return Ok(()),
            None => return Err("the broker cancelled the consumer (was the queue deleted?)".into()),
        }
    }
}

/// Waits for another intake, or for the channel to die.
async fn idle(channel: &Channel, intake: &mut watch::Receiver<Intake>) -> Result<(), String> {
    let mut pulse = tokio::time::interval(std::time::Duration::from_secs(1));
    loop {
        tokio::select! {
            () = until(intake, |intake| intake != Intake::Quiet) => return Ok(()),
            _ = pulse.tick() => if !channel.status().connected() {
                return Err("the channel ended while quiet".into());
            }
        }
    }
}

/// What is wanted now; a worker that is gone wants nothing more.
fn wanted(intake: &watch::Receiver<Intake>) -> Intake {
    if intake.has_changed().is_err() { Intake::Closed } else { *intake.borrow() }
}

async fn until(intake: &mut watch::Receiver<Intake>, holds: impl Fn(Intake) -> bool) {
    // An error means that the worker is gone, which is as good as closed.
    let _ = intake.wait_for(|intake| holds(*intake)).await;
}
