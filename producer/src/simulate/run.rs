//! Runs virtual sensors. Each measures on time, however long its requests take.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use garenne_common::{
    exit::{Exit, Failure},
    shutdown::Mode,
};
use garenne_gateway::BrokerSettings;
use garenne_protocol::sensor::Timestamp;
use serde::Serialize;
use time::OffsetDateTime;
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Faults, SensorModel, latency_histogram::LatencyHistogram};
use crate::{
    destination::{Destination, Endpoint, ReceiptFile, RetryingSender, TcpDestination},
    progress::Progress,
    stop::{self, stop_requested},
};

/// Options of `simulate`.
#[derive(Clone, Debug)]
pub struct SimulateOptions {
    /// Number of sensors.
    pub sensors: usize,
    /// Readings per second of each sensor; above 0.
    pub rate: f64,
    /// Duration; `None` until interrupted.
    pub duration: Option<Duration>,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Time of the first readings; `None` for now.
    pub start: Option<Timestamp>,
    /// Faults of the sensors.
    pub faults: Faults,
    /// The URL of a gateway; `None` for the broker. With `tcp://` each sensor has a connection of its own.
    pub to: Option<String>,
    /// The token for the gateway.
    pub token: Option<String>,
    /// File to which receipts are appended.
    pub receipts: Option<PathBuf>,
    /// Most readings that a sensor sends in one request when it is behind; 1 or more.
    pub batch: usize,
    /// How long a request is repeated.
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
/// The destination is not available.
pub async fn run(settings: BrokerSettings, options: SimulateOptions) -> Result<Exit, Failure> {
    let receipts = options.receipts.as_deref().map(|path| {
        ReceiptFile::open(path).map_err(|error| {
            Failure::new(Exit::Failed, format!("receipts file {} cannot be written: {error}", path.display()))
        })
    });
    let receipts = receipts.transpose()?;
    let (_sender, mut commands) = stop::commands(Mode::Soft)?;
    let endpoint = Endpoint::open(options.to.as_deref(), options.token.clone(), &settings).await?;
    let sender = Arc::new(RetryingSender::new(receipts, options.retry_for));
    let latency = Arc::new(LatencyHistogram::default());
    let progress = Progress::new("simulate", None);
    let stop = CancellationToken::new();
    let sensors = TaskTracker::new();
    let started = Instant::now();
    for number in 0..options.sensors {
        let sensor = VirtualSensor {
            model: SensorModel::new(options.seed, number, options.faults),
            destination: destination(&options, &endpoint),
            sender: Arc::clone(&sender),
            latency: Arc::clone(&latency),
            clock: MeasurementClock::new(&options, number, started),
            batch: options.batch,
            stop: stop.clone(),
        };
        sensors.spawn(sensor.run());
    }
    sensors.close();

    let figures = || {
        let counts = sender.counts();
        let delivered = counts.delivered.load(Relaxed);
        let per_second = delivered as f64 / started.elapsed().as_secs_f64().max(1e-3);
        let ms = |share| latency.percentile(share).as_secs_f64() * 1000.0;
        let (p50, p99) = (ms(0.5), ms(0.99));
        let retries = counts.retries.load(Relaxed);
        format!(
            "{delivered} confirmed, {per_second:.0}/s, latency p50 {p50:.1} ms p99 {p99:.1} ms, {retries} retried"
        )
    };
    let watching = async {
        let mut tick = tokio::time::interval(Duration::from_millis(500));
        loop {
            tick.tick().await;
            progress.update(0, figures());
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
        () = sender.failed().cancelled() => {}
        () = stop_requested(&mut commands) => {}
    }
    stop.cancel();
    let measured = started.elapsed();
    tokio::select! {
        () = sensors.wait() => {}
        () = stop_requested(&mut commands) => return Ok(Exit::Interrupted),
    }
    progress.finish(figures());
    let summary = summarize(&options, &endpoint, &sender, &latency, measured);
    endpoint.close().await;
    println!("{}", serde_json::to_string(&summary).expect("a summary is plain JSON"));
    match sender.failure() {
        Some((reason, exit)) => Err(Failure::new(exit, reason)),
        None if summary.refused + summary.undelivered > 0 => Ok(Exit::Failed),
        None => Ok(Exit::Done),
    }
}

fn destination(options: &SimulateOptions, endpoint: &Endpoint) -> Arc<dyn Destination> {
    match options.to.as_deref().and_then(|to| to.strip_prefix("tcp://")) {
        Some(address) => Arc::new(TcpDestination::new(address)),
        None => Arc::clone(&endpoint.destination),
    }
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
            self.sender.send(&*self.destination, batch).await;
            if self.sender.failed().is_cancelled() {
                return;
            }
            self.latency.record(began.elapsed());
        }
    }
}

fn summarize(
    options: &SimulateOptions,
    endpoint: &Endpoint,
    sender: &RetryingSender,
    latency: &LatencyHistogram,
    measured: Duration,
) -> Summary {
    let counts = sender.counts();
    let delivered = counts.delivered.load(Relaxed);
    let round = |number: f64| (number * 1000.0).round() / 1000.0;
    let ms = |share| round(latency.percentile(share).as_secs_f64() * 1000.0);
    Summary {
        event: "simulate_summary",
        to: endpoint.name.clone(),
        sensors: options.sensors,
        delivered,
        refused: counts.refused.load(Relaxed),
        undelivered: counts.undelivered.load(Relaxed),
        retries: counts.retries.load(Relaxed),
        seconds: round(measured.as_secs_f64()),
        per_second: round(delivered as f64 / measured.as_secs_f64().max(1e-3)),
        p50_ms: ms(0.5),
        p99_ms: ms(0.99),
        max_ms: ms(1.0),
    }
}
