//! `spool drain`: publishes the records of a spool and removes them.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use clap::Args;
use garenne_common::{
    backoff::Backoff,
    exit::{Exit, Failure},
    shutdown::{Command, Mode, signal, stop_requested},
};
use garenne_mqtt::letter_of;
use garenne_publish::{BrokerSettings, DrainError, Sending, SpoolDrain, SpoolSettings};
use garenne_spool::{Spool, SpoolConfig};
use serde::Serialize;
use tokio::{sync::mpsc, time::Instant};

use crate::{
    args::positive,
    destination::{BrokerConnection, SendError, send_error},
    progress::{Progress, print_summary, thousandths},
};

/// Most unconfirmed messages.
const IN_FLIGHT: usize = 1000;

/// Flags of `spool drain`.
#[derive(Debug, Clone, Args)]
pub(super) struct DrainArgs {
    /// Directory of the spool
    directory: PathBuf,
    /// Most records per second [default: as fast as the broker confirms]
    #[arg(long, value_name = "N", value_parser = positive)]
    rate: Option<f64>,
    /// How long a refused batch is published again
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    retry_for: Duration,
}

#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Summary {
    event: &'static str,
    /// Records that the broker has confirmed, and that left the spool.
    pub(super) confirmed: u64,
    /// Records that still wait.
    pub(super) remaining: u64,
    /// Segments that are set aside, also earlier ones.
    pub(super) set_aside: usize,
    /// Records that could not be read.
    pub(super) unreadable: u64,
    /// Records that were set aside because they can never be published.
    pub(super) unpublishable: u64,
    pub(super) retries: u64,
    seconds: f64,
    interrupted: bool,
}

/// Publishes everything, and writes a summary, one JSON line, to stdout.
pub(super) async fn run(settings: BrokerSettings, args: DrainArgs) -> Result<Exit, Failure> {
    // Opening it would create it.
    super::inspect(&args.directory)?;
    let (_sender, mut commands) = signal::commands(Mode::Soft).context("cannot install signal handlers")?;
    let opened = Spool::open(&args.directory, SpoolConfig::default()).await;
    let spool = opened.map_err(|error| Failure::new(Exit::Failed, error))?;
    let sending = Sending { letter_of: Some(letter_of), ..Sending::command(IN_FLIGHT) };
    let broker = BrokerConnection::open(&settings, sending, &SpoolSettings::default()).await?;
    let sender = broker.uplink.sender().expect("there is a broker");
    let drain = SpoolDrain::new(spool.clone(), sender, args.rate);
    let progress = Progress::new("drain", None);
    let (summary, failure) = drain_all(drain, &spool, args.retry_for, &progress, &mut commands).await;
    broker.close().await;
    progress.finish(format_args!("{} confirmed, {} remain", summary.confirmed, summary.remaining));
    print_summary(&summary)?;
    spool.close().await;
    match failure {
        Some(failure) => Err(failure),
        None if summary.interrupted || summary.unreadable + summary.unpublishable > 0 => Ok(Exit::Failed),
        None => Ok(Exit::Done),
    }
}

/// Drains until the spool is empty, a stop command, or the first failure that lasts.
pub(super) async fn drain_all(
    mut drain: SpoolDrain,
    spool: &Spool,
    retry_for: Duration,
    progress: &Progress,
    commands: &mut mpsc::Receiver<Command>,
) -> (Summary, Option<Failure>) {
    let started = Instant::now();
    let mut summary = Summary { event: "drain_summary", ..Summary::default() };
    let (mut backoff, mut deadline) = (Backoff::default(), started + retry_for);
    let failure = loop {
        let outcome = tokio::select! {
            outcome = drain.next_batch() => outcome,
            () = stop_requested(commands) => {
                summary.interrupted = true;
                break None;
            }
        };
        let failure = match outcome {
            Ok(0) => break None,
            Ok(_) => {
                let status = spool.status();
                let status = status.borrow();
                let confirmed = drain.confirmed();
                progress.update(0, format_args!("{confirmed} confirmed, {} remain", status.records()));
                (backoff, deadline) = (Backoff::default(), Instant::now() + retry_for);
                continue;
            }
            Err(DrainError::Publish(error)) => match send_error(&error) {
                SendError::Fatal(failure) => break Some(failure),
                _ => Failure::new(Exit::Failed, error),
            },
            Err(error) => Failure::new(Exit::Failed, error),
        };
        let wait = backoff.next_wait();
        if Instant::now() + wait >= deadline {
            break Some(failure);
        }
        summary.retries += 1;
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop_requested(commands) => {
                summary.interrupted = true;
                break Some(failure);
            }
        }
    };
    let status = spool.status().borrow().clone();
    summary.confirmed = drain.confirmed();
    summary.remaining = status.records();
    summary.set_aside = status.set_aside;
    summary.unreadable = status.unreadable;
    summary.unpublishable = status.unpublishable;
    summary.seconds = thousandths(started.elapsed().as_secs_f64());
    (summary, failure)
}
