//! The cost of the MQTT bridge: `garenne-producer mqtt` against the smallest program with the same client libraries, which
//! publishes each payload as it is. Both receive the same messages of Zigbee2MQTT with QoS 1 from the same broker, publish
//! to the same quorum queue with confirms, and acknowledge in order.
//!
//! `./dev bench bridge [--rounds N] [--messages N] [--only LOAD] [--among NAME,…] [--before PROGRAM] [--json FILE]`;
//! `--before` is an older `garenne-producer` to compare with.

use std::{
    collections::HashSet,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use garenne_bench::{Rows, Usage, number, option};
use lapin::BasicProperties;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    broker::{Broker, LANE, QueueType},
    garenne::{Garenne, address},
    mqtt::Mosquitto,
    race::APPLIED,
};

const CLIENT_ID: &str = "garenne-bench-bridge";
const FILTER: &str = "zigbee2mqtt/#";
const DEVICES: usize = 50;
/// Fields of a message that the map makes a reading of.
const READINGS: usize = 6;
/// Limit for a subscriber to become ready, to stop, or to make progress.
const SUBSCRIBER_TIMEOUT: Duration = Duration::from_secs(60);
/// Poll intervals of the queue until the first message, and until the last one.
const FIRST: Duration = Duration::from_millis(1);
const LAST: Duration = Duration::from_millis(5);
/// If the queue has not grown for so long, the subscriber may be done.
const QUIET: Duration = Duration::from_millis(100);

/// How messages arrive.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    /// Messages per second that devices send. Without it, all messages wait in the session before the start.
    rate: Option<f64>,
}

const LOADS: [Load; 2] =
    [Load { name: "backlog", rate: None }, Load { name: "live-1000", rate: Some(1000.0) }];
/// Most messages that Mosquitto sends without a PUBACK, as many as the bridge takes by default.
const IN_FLIGHT: u16 = 256;
/// Share of the messages that devices send in a run with a rate, which takes longer.
const LIVE_SHARE: usize = 4;

/// A subscriber.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Bare,
    Garenne,
    /// An older program, of `--before`.
    Before,
}

const CONTESTANTS: [(&str, Who); 3] =
    [("bare", Who::Bare), ("garenne", Who::Garenne), ("garenne-before", Who::Before)];

pub(crate) async fn run(rows: &mut Rows) -> Result<()> {
    let rounds = number("--rounds", 10).map_err(anyhow::Error::msg)?;
    let messages = number("--messages", 30_000).map_err(anyhow::Error::msg)?;
    let broker = Broker::fresh(QueueType::Quorum).await?;
    rows.version("garenne", Garenne::version().await?);
    rows.version("rabbitmq", broker.version().await?);
    rows.version("mosquitto", Mosquitto::version().await?);
    Garenne::declare_topology(&broker, 1).await?;
    let mosquitto = Mosquitto::start(IN_FLIGHT).await?;
    let contestants: Vec<_> = CONTESTANTS.into_iter().filter(|(name, who)| takes_part(name, *who)).collect();
    for load in LOADS {
        if option("--only").is_some_and(|only| only != load.name) {
            continue;
        }
        let messages = if load.rate.is_some() { messages / LIVE_SHARE } else { messages };
        let under = format!("bridge/{}", load.name);
        for round in 0..rounds {
            for (name, who) in &contestants {
                let name = format!("{under}/{name}");
                let seen = run_once(&broker, &mosquitto, *who, load, messages).await;
                let seen = seen.with_context(|| name.clone())?;
                eprintln!("{name} {round}: {seen:?}");
                rows.add(format!("{name}/cpu_us"), "us/message", seen.cpu_us);
                rows.add(format!("{name}/messages_per_s"), "messages/s", seen.messages_per_s);
                rows.add(format!("{name}/rss_mb"), "MB", seen.rss_mb);
            }
        }
        for (name, _) in contestants.iter().filter(|(_, who)| *who != Who::Garenne) {
            for what in ["cpu_us", "messages_per_s", "rss_mb"] {
                let row = |name| format!("{under}/{name}/{what}");
                rows.compare(format!("{under}/garenne-to-{name}/{what}"), &row("garenne"), &row(name));
            }
        }
    }
    broker.clear().await
}

/// Whether a contestant takes part: `--among` selects it or is not given. An older program needs `--before`.
fn takes_part(name: &str, who: Who) -> bool {
    let there = who != Who::Before || option("--before").is_some();
    there && option("--among").is_none_or(|among| among.split(',').any(|one| one == name))
}

/// The measured values of one run.
#[derive(Debug)]
struct Measured {
    messages_per_s: f64,
    cpu_us: f64,
    rss_mb: f64,
}

/// Lets a subscriber move all messages to the queue, and checks that each of them is there once and is acknowledged. From
/// a backlog, the measurement begins with the first message in the queue, so that the start does not count.
async fn run_once(
    broker: &Broker,
    mosquitto: &Mosquitto,
    who: Who,
    load: Load,
    count: usize,
) -> Result<Measured> {
    let queues = [LANE.to_owned()];
    mosquitto.open_session(CLIENT_ID, FILTER).await?;
    if load.rate.is_none() {
        mosquitto.publish(messages(count), None).await?;
    }
    let mut subscriber = Subscriber::start(who, mosquitto, broker, count).await?;
    let (begun, before) = if let Some(rate) = load.rate {
        subscriber.ready().await?;
        let start = (Instant::now(), subscriber.usage());
        mosquitto.publish(messages(count), Some(rate)).await?;
        start
    } else {
        broker.until(&queues, FIRST, |ready| ready > 0).await?;
        (Instant::now(), subscriber.usage())
    };
    let ended = subscriber.until_done(broker, count).await?;
    sleep(APPLIED).await;
    let usage = subscriber.usage();
    subscriber.stop().await?;
    mosquitto.close_session(CLIENT_ID).await?;
    check(who, count, &broker.take_all(LANE).await?)?;
    let cpu = usage.cpu.saturating_sub(before.cpu).as_secs_f64();
    let (took, each) = ((ended - begun).as_secs_f64(), count as f64);
    Ok(Measured { messages_per_s: each / took, cpu_us: cpu * 1e6 / each, rss_mb: usage.rss_mb })
}

/// Messages of climate sensors, each with a time of its own.
fn messages(count: usize) -> impl ExactSizeIterator<Item = (String, Vec<u8>)> {
    (0..count).map(|number| {
        let (minutes, seconds) = (number / 60, number % 60);
        let (hours, minutes) = (minutes / 60, minutes % 60);
        let (day, hours) = (1 + hours / 24, hours % 24);
        let payload = format!(
            r#"{{"battery":91,"humidity":44.72,"last_seen":"2024-11-{day:02}T{hours:02}:{minutes:02}:{seconds:02}+01:00","linkquality":105,"pressure":1001.2,"temperature":27.34,"voltage":2995}}"#
        );
        (format!("zigbee2mqtt/greenhouse-{}", number % DEVICES), payload.into_bytes())
    })
}

/// Checks that each message is in the queue once: as it is, or as its readings with different ids.
fn check(who: Who, count: usize, messages: &[(BasicProperties, Vec<u8>)]) -> Result<()> {
    let (mut records, mut different) = (0, HashSet::new());
    let mut add = |record: String| {
        records += 1;
        different.insert(record);
    };
    for (_, body) in messages {
        match serde_json::from_slice(body)? {
            Value::Array(batch) => batch.iter().for_each(|record| add(record["id"].to_string())),
            message => add(message.to_string()),
        }
    }
    let expected = if who == Who::Bare { count } else { count * READINGS };
    ensure!(
        (records, different.len()) == (expected, expected),
        "{expected} records were expected; the queue has {records}, {} of them different",
        different.len()
    );
    Ok(())
}

/// A running subscriber. It is killed when the value is dropped.
struct Subscriber {
    process: Child,
    pid: u32,
    /// The URL of the admin port, for Garenne.
    admin: Option<String>,
    http: reqwest::Client,
    /// The standard output of the bare subscriber.
    output: Lines<BufReader<ChildStdout>>,
    // Reads the log to the end, because a full pipe would block the process.
    _log: Option<JoinHandle<()>>,
}

impl Subscriber {
    async fn start(who: Who, mosquitto: &Mosquitto, broker: &Broker, count: usize) -> Result<Self> {
        let port = mosquitto.port();
        let given = |name, default: &str| option(name).unwrap_or_else(|| default.to_owned());
        let mut command = match who {
            Who::Bare => {
                let mut command = Command::new(given("--bare-bridge", "target/dist/examples/bare_bridge"));
                command.args(["--mqtt-port", &port.to_string(), "--queue", LANE]);
                command.args(["--count", &count.to_string()]);
                command
            }
            Who::Garenne | Who::Before => {
                let option = if who == Who::Before { "--before" } else { "--producer" };
                let mut command = Command::new(given(option, "target/dist/garenne-producer"));
                command.args(["mqtt", "--url", &format!("mqtt://127.0.0.1:{port}")]);
                command.args([
                    "--maps",
                    "builtin:zigbee2mqtt",
                    "--admin",
                    "127.0.0.1:0",
                    "--log-format",
                    "json",
                ]);
                command
            }
        };
        let mut process = command
            .args(["--amqp-url", broker.amqp_url(), "--client-id", CLIENT_ID, "--subscribe", FILTER])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(if who == Who::Bare { Stdio::inherit() } else { Stdio::piped() })
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the subscriber")?;
        let pid = process.id().context("it runs")?;
        let output = BufReader::new(process.stdout.take().context("it is piped")?).lines();
        let (admin, log) = match process.stderr.take() {
            Some(log) => {
                let (admin, log) = admin_of(log).await?;
                (Some(admin), Some(log))
            }
            None => (None, None),
        };
        Ok(Self { process, pid, admin, http: reqwest::Client::new(), output, _log: log })
    }

    /// Waits until it is subscribed.
    async fn ready(&mut self) -> Result<()> {
        if self.admin.is_none() {
            return self.says("subscribed").await;
        }
        let until = Instant::now() + SUBSCRIBER_TIMEOUT;
        while !self.get("readyz").await.is_ok_and(|answer| answer.status().is_success()) {
            ensure!(Instant::now() < until, "garenne-producer did not become ready");
            sleep(LAST).await;
        }
        Ok(())
    }

    /// Waits until the bare subscriber prints this line.
    async fn says(&mut self, wanted: &str) -> Result<()> {
        loop {
            let line = timeout(SUBSCRIBER_TIMEOUT, self.output.next_line()).await??;
            if line.context("the bare subscriber ended")? == wanted {
                return Ok(());
            }
        }
    }

    fn usage(&self) -> Usage {
        Usage::of(self.pid)
    }

    /// Waits until all messages are stored. Returns when the queue grew for the last time.
    async fn until_done(&mut self, broker: &Broker, count: usize) -> Result<Instant> {
        let (mut ready, mut grown) = (0, Instant::now());
        loop {
            let now = broker.ready(LANE).await?;
            if now != ready {
                (ready, grown) = (now, Instant::now());
            }
            // A poll of the metrics costs the process CPU time, so there are few.
            if grown.elapsed() >= QUIET && self.stored(ready).await? >= count {
                if self.admin.is_none() {
                    self.says("done").await?;
                }
                return Ok(grown);
            }
            if let Some(status) = self.process.try_wait()? {
                bail!("the subscriber ended with {status}");
            }
            ensure!(grown.elapsed() < SUBSCRIBER_TIMEOUT, "the queue still has {ready} messages");
            sleep(LAST).await;
        }
    }

    /// How many messages are stored, if the queue has so many.
    async fn stored(&self, ready: u32) -> Result<usize> {
        if self.admin.is_none() {
            return Ok(ready.try_into()?);
        }
        let metrics = self.get("metrics").await?.error_for_status()?.text().await?;
        let metric = |name: &str| {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse::<usize>().ok()).unwrap_or(0)
        };
        let mapped = metric("garenne_mqtt_messages_total{outcome=\"mapped\"}");
        Ok(mapped.saturating_sub(metric("garenne_mqtt_in_flight ")))
    }

    /// Stops it with SIGTERM. Garenne has to end cleanly.
    async fn stop(mut self) -> Result<()> {
        let pid = Pid::from_raw(self.pid.try_into()?).context("a process id")?;
        kill_process(pid, Signal::TERM)?;
        let ended = timeout(SUBSCRIBER_TIMEOUT, self.process.wait()).await??;
        ensure!(self.admin.is_none() || ended.success(), "garenne-producer ended with {ended}");
        Ok(())
    }

    async fn get(&self, path: &str) -> Result<reqwest::Response> {
        let admin = self.admin.as_deref().context("it has an admin port")?;
        Ok(self.http.get(format!("{admin}/{path}")).send().await?)
    }
}

/// The URL of the admin port, from the log, and the task that reads the rest of it.
async fn admin_of(log: impl AsyncRead + Unpin + Send + 'static) -> Result<(String, JoinHandle<()>)> {
    let mut log = BufReader::new(log).lines();
    let mut last = String::new();
    let admin = loop {
        let Some(line) = log.next_line().await? else { bail!("the subscriber ended: {last}") };
        if let Some(address) = address(&line) {
            break format!("http://{address}");
        }
        last = line;
    };
    Ok((admin, tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} })))
}
