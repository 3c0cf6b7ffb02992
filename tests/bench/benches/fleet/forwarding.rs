//! A site's gateway with a full spool that forwards to a central gateway: readings per second, and the CPU time of both,
//! against the central gateway that gets the same readings directly, and a gateway that drains such a spool to the broker.
//!
//! `./dev bench forwarding [--rounds N] [--readings N] [--json FILE]`
//!
//! The gateways are processes of `garenne-producer`, as operators run them, without a limit of the drain's rate. The broker
//! stores the readings in a quorum queue. After each run every reading must be in the queue.

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use garenne_bench::{Rows, Usage, number, option};
use reqwest::{Client, StatusCode, header::CONTENT_TYPE};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    net::{TcpListener, TcpStream},
    process::{Child, Command},
};

use crate::broker::{Broker, LANE, QueueType};

/// Readings of a request; also the most tasks of a request that a site forwards.
const REQUEST: usize = 500;
/// Connections that fill the spool, and of the row `direct-8`.
const CONNECTIONS: usize = 8;
/// Timeout of a start, a stop and a run.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);
/// How often the counter of drained records is read. A read takes a tenth of a millisecond of the gateway's CPU time.
const POLL: Duration = Duration::from_millis(20);

/// The measurements of a run.
struct Run {
    per_s: f64,
    /// CPU time per reading of the gateway that has the spool, if there is one.
    site_us: Option<f64>,
    /// CPU time per reading of the gateway that publishes, if it is another one.
    central_us: Option<f64>,
}

impl Run {
    fn add_to(&self, rows: &mut Rows, name: &str) {
        rows.add(format!("forwarding/{name}/per_s"), "readings/s", self.per_s);
        let costs = [("site", self.site_us), ("central", self.central_us)];
        for (gateway, cost) in costs.into_iter().filter_map(|(gateway, us)| Some((gateway, us?))) {
            rows.add(format!("forwarding/{name}/{gateway}_cpu_us"), "us/reading", cost);
        }
        let total = self.site_us.unwrap_or(0.0) + self.central_us.unwrap_or(0.0);
        rows.add(format!("forwarding/{name}/cpu_us"), "us/reading", total);
    }
}

pub(crate) async fn run(rows: &mut Rows) -> Result<()> {
    let rounds = number("--rounds", 5).map_err(anyhow::Error::msg)?;
    let readings = number("--readings", 200_000).map_err(anyhow::Error::msg)?.next_multiple_of(REQUEST);
    let broker = Broker::fresh(QueueType::Quorum).await?;
    rows.version("rabbitmq", broker.version().await?);
    let requests: Vec<String> = (0..readings).step_by(REQUEST).map(request).collect();
    // The first gateway declares the topology.
    Gateway::to_broker(&broker).await?.stop().await?;
    for round in 0..rounds {
        let spool = tempfile::tempdir()?;
        fill(spool.path(), &requests).await?.add_to(rows, "accept");
        let copy = copied(spool.path())?;
        let runs = [
            ("forward", forward(&broker, spool.path(), readings).await?),
            ("direct", direct(&broker, &requests, 1).await?),
            ("drain", drain(&broker, copy.path(), readings).await?),
            ("direct-8", direct(&broker, &requests, CONNECTIONS).await?),
        ];
        for (name, run) in runs {
            eprintln!("forwarding/{name} {round}: {:.0} readings/s", run.per_s);
            run.add_to(rows, name);
        }
    }
    for other in ["direct", "direct-8", "drain"] {
        for what in ["per_s", "cpu_us"] {
            let of = |name: &str| format!("forwarding/{name}/{what}");
            rows.compare(format!("forwarding/forward ÷ {other}/{what}"), &of("forward"), &of(other));
        }
    }
    broker.clear().await
}

/// The body of the request with the readings from this number on.
fn request(first: usize) -> String {
    let readings = (first..first + REQUEST).map(|number| {
        let device = format!("greenhouse-{}", number % 100);
        let time = 1_760_000_000.0 + number as f64 / 1000.0;
        json!({"device": device, "metric": "temperature", "value": 21.5, "unit": "Cel", "time": time})
    });
    Value::Array(readings.collect()).to_string()
}

/// Fills the spool of a site whose central gateway cannot be reached.
async fn fill(spool: &Path, requests: &[String]) -> Result<Run> {
    let nowhere = free_address().await?;
    let site = Gateway::site(spool, &["--forward", &format!("http://{nowhere}")]).await?;
    let (begun, before) = (Instant::now(), site.cpu());
    post_all(site.listen, requests, CONNECTIONS).await?;
    let run =
        Run { per_s: per_s(requests, begun), site_us: Some(site.us(before, requests)), central_us: None };
    site.stop().await?;
    Ok(run)
}

async fn forward(broker: &Broker, spool: &Path, readings: usize) -> Result<Run> {
    let central = Gateway::to_broker(broker).await?;
    let before = central.cpu();
    let begun = Instant::now();
    let site = Gateway::site(spool, &["--forward", &format!("http://{}", central.listen)]).await?;
    site.drained(readings).await?;
    let took = begun.elapsed().as_secs_f64();
    let us = |seconds: f64| seconds * 1e6 / readings as f64;
    let run = Run {
        per_s: readings as f64 / took,
        site_us: Some(us(site.cpu())),
        central_us: Some(us(central.cpu() - before)),
    };
    site.stop().await?;
    central.stop().await?;
    account(broker, readings).await?;
    Ok(run)
}

/// Drains a spool to the broker.
async fn drain(broker: &Broker, spool: &Path, readings: usize) -> Result<Run> {
    let begun = Instant::now();
    let site = Gateway::site(spool, &["--amqp-url", broker.amqp_url()]).await?;
    site.drained(readings).await?;
    let per_s = readings as f64 / begun.elapsed().as_secs_f64();
    let run = Run { per_s, site_us: Some(site.cpu() * 1e6 / readings as f64), central_us: None };
    site.stop().await?;
    account(broker, readings).await?;
    Ok(run)
}

/// Sends the readings to the central gateway, one request at a time on each connection.
async fn direct(broker: &Broker, requests: &[String], connections: usize) -> Result<Run> {
    let central = Gateway::to_broker(broker).await?;
    let (begun, before) = (Instant::now(), central.cpu());
    post_all(central.listen, requests, connections).await?;
    let run =
        Run { per_s: per_s(requests, begun), site_us: None, central_us: Some(central.us(before, requests)) };
    central.stop().await?;
    account(broker, requests.len() * REQUEST).await?;
    Ok(run)
}

fn per_s(requests: &[String], begun: Instant) -> f64 {
    (requests.len() * REQUEST) as f64 / begun.elapsed().as_secs_f64()
}

async fn post_all(gateway: SocketAddr, requests: &[String], connections: usize) -> Result<()> {
    let client = Client::new();
    stream::iter(requests)
        .map(|body| {
            let post = client.post(format!("http://{gateway}/v1/readings"));
            let post = post.header(CONTENT_TYPE, "application/json").body(body.clone());
            async move {
                let answer = post.send().await?;
                let status = answer.status();
                // The connection is used again once the body is read.
                let answer = answer.text().await?;
                ensure!(status == StatusCode::ACCEPTED, "{status}: {answer}");
                Ok(())
            }
        })
        .buffer_unordered(connections)
        .try_collect()
        .await
}

/// Takes everything from the lane's queue, which must be each reading once.
async fn account(broker: &Broker, readings: usize) -> Result<()> {
    let mut ids = BTreeSet::new();
    let mut stored = 0;
    for (properties, body) in broker.take_all(LANE).await? {
        match serde_json::from_slice(&body)? {
            Value::Array(records) => {
                stored += records.len();
                ids.extend(records.into_iter().filter_map(|record| Some(record["id"].as_str()?.to_owned())));
            }
            _ => {
                stored += 1;
                ids.extend(properties.message_id().as_ref().map(|id| id.to_string()));
            }
        }
    }
    let distinct = ids.len();
    ensure!(
        stored == readings && distinct == readings,
        "{stored} readings, {distinct} distinct of {readings}"
    );
    Ok(())
}

fn copied(folder: &Path) -> Result<TempDir> {
    let copy = tempfile::tempdir()?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), copy.path().join(entry.file_name()))?;
        }
    }
    Ok(copy)
}

async fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0").await?.local_addr()?)
}

/// A process of `garenne-producer serve`. It is killed when the value is dropped.
struct Gateway {
    process: Child,
    pid: u32,
    listen: SocketAddr,
    admin: SocketAddr,
    http: Client,
}

impl Gateway {
    async fn to_broker(broker: &Broker) -> Result<Self> {
        Self::start(&["--amqp-url", broker.amqp_url()]).await
    }

    async fn site(spool: &Path, to: &[&str]) -> Result<Self> {
        let spool = spool.to_str().context("the spool's path is UTF-8")?;
        Self::start(&[&["--spool", spool, "--spool-drain-rate", "0"], to].concat()).await
    }

    async fn start(arguments: &[&str]) -> Result<Self> {
        let (listen, admin) = (free_address().await?, free_address().await?);
        let program = option("--producer").unwrap_or_else(|| "target/dist/garenne-producer".to_owned());
        let process = Command::new(program)
            .args(["serve", "--listen", &listen.to_string(), "--admin", &admin.to_string()])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start garenne-producer")?;
        let pid = process.id().context("it runs")?;
        let mut gateway = Self { process, pid, listen, admin, http: Client::new() };
        let until = Instant::now() + RUN_TIMEOUT;
        while TcpStream::connect(listen).await.is_err() {
            ensure!(gateway.process.try_wait()?.is_none(), "the gateway ended: {arguments:?}");
            ensure!(Instant::now() < until, "the gateway does not listen");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(gateway)
    }

    /// CPU time since its start, in seconds.
    fn cpu(&self) -> f64 {
        Usage::of(self.pid).cpu.as_secs_f64()
    }

    /// Microseconds of CPU time per reading of `requests` since its CPU time was `before`.
    fn us(&self, before: f64, requests: &[String]) -> f64 {
        (self.cpu() - before) * 1e6 / (requests.len() * REQUEST) as f64
    }

    /// Waits until so many records of the spool are confirmed.
    async fn drained(&self, readings: usize) -> Result<()> {
        let until = Instant::now() + RUN_TIMEOUT;
        loop {
            let metrics =
                self.http.get(format!("http://{}/metrics", self.admin)).send().await?.text().await?;
            let drained = metrics.lines().find_map(|line| {
                line.strip_prefix("garenne_spool_records_total{event=\"drained\"} ")?.parse::<usize>().ok()
            });
            // The counter is registered after the port is open.
            let drained = drained.unwrap_or(0);
            if drained >= readings {
                return Ok(());
            }
            ensure!(Instant::now() < until, "{drained} of {readings} readings are drained");
            tokio::time::sleep(POLL).await;
        }
    }

    async fn stop(mut self) -> Result<()> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).context("a process id")?;
        kill_process(pid, Signal::TERM)?;
        let status = tokio::time::timeout(RUN_TIMEOUT, self.process.wait()).await??;
        ensure!(status.success(), "the gateway ended with {status}");
        Ok(())
    }
}
