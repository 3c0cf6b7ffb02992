//! `simulate`: virtual sensors with typical sensor faults. Each measures on time, however long its requests take.

mod latency_histogram;
mod sensor_model;

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use anyhow::Context;
use clap::{Args, builder::RangedU64ValueParser};
use garenne_common::{
    exit::{Exit, Failure},
    shutdown::{Mode, signal, stop_requested},
    supervise,
};
use garenne_protocol::sensor::Timestamp;
use garenne_publish::{BrokerSettings, SpoolCounts, SpoolSettings};
use serde::Serialize;
use time::OffsetDateTime;
use tokio::{
    task::JoinSet,
    time::{Instant, interval, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    args::{SendingArgs, positive},
    destination::{DeliveryCounts, Destination, Endpoint, RetryingSender},
    progress::{Progress, print_summary, thousandths},
};
use latency_histogram::LatencyHistogram;
use sensor_model::{Faults, SensorModel};

/// Flags of `simulate`.
#[derive(Debug, Clone, Args)]
pub(crate) struct SimulateArgs {
    /// Number of sensors; four consecutive ones are one device with four metrics
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    sensors: usize,
    /// Readings per second of each sensor
    #[arg(long, value_name = "R", default_value = "1", value_parser = positive)]
    rate: f64,
    /// Duration [default: until interrupted]
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// Seed of the random values; the same seed gives the same values
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Time of the first readings [default: now]
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse)]
    start: Option<Timestamp>,
    #[command(flatten)]
    faults: Faults,
    #[command(flatten)]
    sending: SendingArgs,
}

#[derive(Debug, Serialize)]
struct Summary<'a> {
    event: &'static str,
    to: &'a str,
    sensors: usize,
    #[serde(flatten)]
    counts: &'a DeliveryCounts,
    #[serde(flatten)]
    spool: Option<SpoolCounts>,
    seconds: f64,
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
}

/// Runs the sensors and writes a summary, one JSON line, to stdout.
pub(crate) async fn run(
    settings: BrokerSettings,
    spool: SpoolSettings,
    args: SimulateArgs,
) -> Result<Exit, Failure> {
    let sender = RetryingSender::open(&args.sending)?;
    let (_sender, mut commands) = signal::commands(Mode::Soft).context("cannot install signal handlers")?;
    let endpoint = Endpoint::open(&args.sending, &settings, spool).await?;
    let latency = Arc::new(LatencyHistogram::default());
    let progress = Progress::new("simulate", None);
    let stop = CancellationToken::new();
    let mut sensors = JoinSet::new();
    let started = Instant::now();
    for number in 0..args.sensors {
        let sensor = VirtualSensor {
            model: SensorModel::new(args.seed, number, args.faults),
            destination: endpoint.for_sender(),
            sender: Arc::clone(&sender),
            latency: Arc::clone(&latency),
            clock: MeasurementClock::new(&args, number, started),
            batch: args.sending.batch,
            stop: stop.clone(),
        };
        supervise::isolated("sensor", sensor.run()).spawn_into(&mut sensors);
    }

    let counts = &sender.counts;
    let figures = || {
        let (delivered, retries) = (counts.delivered.load(Relaxed), counts.retries.load(Relaxed));
        let per_second = counts.per_second(started.elapsed());
        let (p50, p99) = (latency.percentile_ms(0.5), latency.percentile_ms(0.99));
        format!(
            "{delivered} confirmed, {per_second:.0}/s, latency p50 {p50:.1} ms p99 {p99:.1} ms, {retries} retried"
        )
    };
    let mut tick = interval(Duration::from_millis(500));
    loop {
        tokio::select! {
            _ = tick.tick() => progress.update(0, figures()),
            () = sleep_until(started + args.duration.unwrap_or_default()), if args.duration.is_some() => break,
            () = sender.failed.cancelled() => break,
            () = stop_requested(&mut commands) => {
                sender.stopped.cancel();
                break;
            }
        }
    }
    stop.cancel();
    let measured = started.elapsed();
    let sensors = tokio::select! {
        sensors = sensors.join_all() => sensors,
        () = stop_requested(&mut commands) => return Ok(Exit::Interrupted),
    };
    progress.finish(figures());
    let ms = |share| thousandths(latency.percentile_ms(share));
    let to = endpoint.name.clone();
    let spool = endpoint.close().await;
    progress.spooled(spool.as_ref());
    print_summary(&Summary {
        event: "simulate_summary",
        to: &to,
        sensors: args.sensors,
        counts,
        spool,
        seconds: thousandths(measured.as_secs_f64()),
        per_second: thousandths(counts.per_second(measured)),
        p50_ms: ms(0.5),
        p99_ms: ms(0.99),
        max_ms: ms(1.0),
    })?;
    if let Some(failure) = sender.failure() {
        return Err(failure);
    }
    for sensor in sensors {
        sensor.context("a sensor")?;
    }
    Ok(if counts.complete() { Exit::Done } else { Exit::Failed })
}

/// When a sensor measures: at a fixed interval, with the sensors spread over it.
struct MeasurementClock {
    started: Instant,
    first: Timestamp,
    interval: f64,
    phase: f64,
    next: u64,
}

impl MeasurementClock {
    fn new(args: &SimulateArgs, number: usize, started: Instant) -> Self {
        let interval = 1.0 / args.rate;
        let phase = interval * number as f64 / args.sensors as f64;
        let first = args.start.unwrap_or_else(|| OffsetDateTime::now_utc().into());
        Self { started, first, interval, phase, next: 0 }
    }

    fn seconds(&self) -> f64 {
        self.phase + self.next as f64 * self.interval
    }

    fn due(&self) -> Instant {
        self.started + Duration::from_secs_f64(self.seconds())
    }

    /// The time of the next reading; `None` if it is out of range.
    fn take(&mut self) -> Option<Timestamp> {
        let time = self.first.plus_seconds(self.seconds()).ok();
        self.next += 1;
        time
    }
}

/// A virtual sensor and its connection.
struct VirtualSensor {
    model: SensorModel,
    destination: Arc<dyn Destination>,
    sender: Arc<RetryingSender>,
    latency: Arc<LatencyHistogram>,
    clock: MeasurementClock,
    batch: usize,
    stop: CancellationToken,
}

impl VirtualSensor {
    /// Measures and sends until stopped. Readings that become due during a request go into the next one.
    async fn run(mut self) {
        loop {
            tokio::select! {
                () = sleep_until(self.clock.due()) => {}
                () = self.stop.cancelled() => return,
            }
            let mut batch = Vec::new();
            while batch.len() < self.batch && self.clock.due() <= Instant::now() {
                let Some(time) = self.clock.take() else { return };
                batch.extend(self.model.measure(time));
            }
            if batch.is_empty() {
                continue;
            }
            let began = Instant::now();
            self.sender.send(&*self.destination, batch).await;
            if self.sender.failed.is_cancelled() {
                return;
            }
            self.latency.record(began.elapsed());
        }
    }
}
