//! Many virtual sensors, each measuring on time whatever its sending does.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use garenne_common::{
    exit::{Exit, Failure},
    shutdown::Command,
};
use garenne_gateway::BrokerSettings;
use garenne_protocol::sensor::Timestamp;
use serde::Serialize;
use time::OffsetDateTime;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Faults, Model, latency::Latency};
use crate::{
    deliver::{Carrier, Destination, Receipts, Target, TcpDestination},
    progress::Progress,
    stop::stop_requested,
};

/// Which sensors, for how long, where to.
#[derive(Clone, Debug)]
pub struct SimulateOptions {
    /// How many sensors.
    pub sensors: usize,
    /// Readings a second of each; over 0.
    pub rate: f64,
    /// How long; until interrupted when not given.
    pub duration: Option<Duration>,
    /// Makes them repeatable.
    pub seed: u64,
    /// Time of the first readings; now when not given.
    pub start: Option<Timestamp>,
    /// What is wrong with them.
    pub faults: Faults,
    /// A gateway's URL; the broker itself when not given. Over `tcp://` each sensor has a connection
    /// of its own.
    pub to: Option<String>,
    /// The gateway's token.
    pub token: Option<String>,
    /// Where receipts are appended.
    pub receipts: Option<PathBuf>,
    /// Readings that a sensor sends at once when it is behind, 1 or more.
    pub batch: usize,
    /// How long they are repeated.
    pub retry_for: Duration,
}

#[derive(Debug, Serialize)]
struct Summary {
    event: &'static str,
    to: String,
    sensors: usize,
    delivered: u64,
    refused: u64,
    undelivered: u64,
    retries: u64,
    seconds: f64,
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
}

/// Runs the sensors and writes a summary, one JSON line, to stdout.
///
/// # Errors
/// The destination cannot be had.
pub async fn run(
    settings: BrokerSettings,
    options: SimulateOptions,
    mut commands: mpsc::Receiver<Command>,
) -> Result<Exit, Failure> {
    let receipts = options.receipts.as_deref().map(|path| {
        Receipts::open(path).map_err(|error| {
            Failure::new(Exit::Failed, format!("receipts file {} cannot be written: {error}", path.display()))
        })
    });
    let receipts = receipts.transpose()?;
    let target = Target::open(options.to.as_deref(), options.token.clone(), &settings).await?;
    let carrier = Arc::new(Carrier::new(receipts, options.retry_for));
    let latency = Arc::new(Latency::default());
    let progress = Progress::new("simulate", None);
    let stop = CancellationToken::new();
    let sensors = TaskTracker::new();
    let started = Instant::now();
    for number in 0..options.sensors {
        let sensor = Sensor {
            model: Model::new(options.seed, number, options.faults),
            destination: destination(&options, &target),
            carrier: Arc::clone(&carrier),
            latency: Arc::clone(&latency),
            clock: Clock::new(&options, number, started),
            batch: options.batch,
            stop: stop.clone(),
        };
        sensors.spawn(sensor.run());
    }
    sensors.close();

    let figures = || {
        let tally = carrier.tally();
        let delivered = tally.delivered.load(Relaxed);
        let per_second = delivered as f64 / started.elapsed().as_secs_f64().max(1e-3);
        let ms = |share| latency.percentile(share).as_secs_f64() * 1000.0;
        let (p50, p99) = (ms(0.5), ms(0.99));
        let retries = tally.retries.load(Relaxed);
        format!(
            "{delivered} safe, {per_second:.0}/s, receipt p50 {p50:.1} ms p99 {p99:.1} ms, {retries} retried"
        )
    };
    let watching = async {
        let mut tick = tokio::time::interval(Duration::from_millis(500));
        loop {
            tick.tick().await;
            progress.at(0, figures());
        }
    };
    let over = async {
        match options.duration {
            Some(duration) => tokio::time::sleep_until(started + duration).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = watching => {}
        () = over => {}
        () = carrier.broken().cancelled() => {}
        () = stop_requested(&mut commands) => {}
    }
    stop.cancel();
    let measured = started.elapsed();
    tokio::select! {
        () = sensors.wait() => {}
        () = stop_requested(&mut commands) => return Ok(Exit::Interrupted),
    }
    progress.finish(figures());
    let summary = summarize(&options, &target, &carrier, &latency, measured);
    target.close().await;
    println!("{}", serde_json::to_string(&summary).expect("a summary is plain JSON"));
    match carrier.failure() {
        Some((why, exit)) => Err(Failure::new(exit, why)),
        None if summary.refused + summary.undelivered > 0 => Ok(Exit::Failed),
        None => Ok(Exit::Done),
    }
}

fn destination(options: &SimulateOptions, target: &Target) -> Arc<dyn Destination> {
    match options.to.as_deref().and_then(|to| to.strip_prefix("tcp://")) {
        Some(address) => Arc::new(TcpDestination::new(address)),
        None => Arc::clone(&target.destination),
    }
}

/// When a sensor measures: evenly, and not all sensors at once.
struct Clock {
    started: Instant,
    first: Timestamp,
    interval: f64,
    phase: f64,
    next: u64,
}

impl Clock {
    fn new(options: &SimulateOptions, number: usize, started: Instant) -> Self {
        let interval = 1.0 / options.rate;
        let phase = interval * number as f64 / options.sensors as f64;
        let first = options.start.unwrap_or_else(|| OffsetDateTime::now_utc().into());
        Self { started, first, interval, phase, next: 0 }
    }

    fn seconds(&self) -> f64 {
        self.phase + self.next as f64 * self.interval
    }

    fn due(&self) -> Instant {
        self.started + Duration::from_secs_f64(self.seconds())
    }

    /// The time of the next measurement; `None` past the calendar's end.
    fn take(&mut self) -> Option<Timestamp> {
        let time = self.first.plus_seconds(self.seconds()).ok();
        self.next += 1;
        time
    }
}

struct Sensor {
    model: Model,
    destination: Arc<dyn Destination>,
    carrier: Arc<Carrier>,
    latency: Arc<Latency>,
    clock: Clock,
    batch: usize,
    stop: CancellationToken,
}

impl Sensor {
    /// Measures and sends until stopped. While a sending takes long, the readings that fall due wait
    /// and go out together.
    async fn run(mut self) {
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(self.clock.due()) => {}
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
            self.carrier.carry(&*self.destination, batch).await;
            if self.carrier.broken().is_cancelled() {
                return;
            }
            self.latency.record(began.elapsed());
        }
    }
}

fn summarize(
    options: &SimulateOptions,
    target: &Target,
    carrier: &Carrier,
    latency: &Latency,
    measured: Duration,
) -> Summary {
    let tally = carrier.tally();
    let delivered = tally.delivered.load(Relaxed);
    let round = |number: f64| (number * 1000.0).round() / 1000.0;
    let ms = |share| round(latency.percentile(share).as_secs_f64() * 1000.0);
    Summary {
        event: "simulate_summary",
        to: target.name.clone(),
        sensors: options.sensors,
        delivered,
        refused: tally.refused.load(Relaxed),
        undelivered: tally.undelivered.load(Relaxed),
        retries: tally.retries.load(Relaxed),
        seconds: round(measured.as_secs_f64()),
        per_second: round(delivered as f64 / measured.as_secs_f64().max(1e-3)),
        p50_ms: ms(0.5),
        p99_ms: ms(0.99),
        max_ms: ms(1.0),
    }
}
