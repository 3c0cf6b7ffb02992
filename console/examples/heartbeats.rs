//! Sends heartbeats of synthetic workers, to measure the cost of a console with a large fleet:
//!
//! ```sh
//! cargo run --example heartbeats -- amqp://guest:guest@127.0.0.1:5672/%2f 200 60   # workers, seconds
//! ```
//!
//! Each worker sends one every two seconds, with two lanes, eight kinds and ten tasks, and one when it is asked.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result};
use futures_util::StreamExt;
use garenne_protocol::{
    heartbeat::{ConnectionBeat, Heartbeat, KindBeat, LaneBeat, Program, SinkBeat, Stance, TaskBeat},
    task::epoch_ms,
};
use lapin::{
    BasicProperties, Connection, ConnectionProperties,
    options::{BasicConsumeOptions, BasicPublishOptions, QueueBindOptions, QueueDeclareOptions},
    types::FieldTable,
};
use tokio::time::{Instant, interval};

/// Time between two heartbeats of one worker.
const EVERY: Duration = Duration::from_secs(2);

fn beat(worker: usize, round: u64, started_at: i64) -> Heartbeat {
    let lane = |busy| LaneBeat {
        slots: 8,
        busy,
        queued: 40,
        capacity: 200,
        open: true,
        delivered: round * 100,
        held: 48,
        removed: round * 100,
        ..LaneBeat::default()
    };
    let kind = |n: u64| KindBeat {
        started: round * n,
        outcomes: [("success".to_owned(), round * n), ("error".to_owned(), round)].into(),
        seconds: (round * n) as f64 * 0.02,
        buckets: vec![0, 0, round, round * n, round, 0, round, round, round, 1],
        ..KindBeat::default()
    };
    let kinds = [
        "reading.process",
        "window.analyze",
        "spectrum.analyze",
        "alert.notify",
        "image.resize",
        "report.render",
        "mail.send",
        "import.rows",
    ];
    let task = |n: usize| TaskBeat {
        id: format!("0199c5c2-7f31-7c1a-9c6e-{worker:06}{n:06}"),
        kind: kinds[n % kinds.len()].to_owned(),
        lane: "fast".to_owned(),
        seconds: n as f64 * 1.7,
        progress: (n == 0).then_some(0.4),
        group: None,
        stopping: false,
    };
    Heartbeat {
        program: Program::Worker,
        id: format!("synthetic-{worker:03}"),
        incarnation: format!("incarnation-{worker}"),
        host: format!("host-{:02}", worker / 10),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at,
        at: epoch_ms(SystemTime::now()),
        every_ms: EVERY.as_millis() as u64,
        stance: Stance::Open,
        lanes: [("fast".to_owned(), lane(6)), ("slow".to_owned(), lane(4))].into(),
        paused: Vec::new(),
        paused_kinds: Vec::new(),
        unhandled: Vec::new(),
        not_ready: Default::default(),
        groups: Default::default(),
        running: 10,
        tasks: (0..10).map(task).collect(),
        kinds: kinds.iter().zip(1..).map(|(name, n)| ((*name).to_owned(), kind(n))).collect(),
        connections: ["consume", "publish"]
            .map(|role| (role.to_owned(), ConnectionBeat { up: true, epoch: 0 }))
            .into(),
        blocked: false,
        denied: None,
        sinks: [("postgres".to_owned(), SinkBeat { up: true, ..SinkBeat::default() })].into(),
        gateway: None,
        bridge: None,
        spool: None,
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [url, workers, seconds] = arguments.as_slice() else {
        anyhow::bail!("expected the URL of a broker, a number of workers, and a duration in seconds");
    };
    let workers: usize = workers.parse().context("workers")?;
    let until = Instant::now() + Duration::from_secs(seconds.parse().context("seconds")?);
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let exclusive = QueueDeclareOptions { exclusive: true, ..Default::default() };
    let queue = channel.queue_declare("".into(), exclusive, FieldTable::default()).await?.name().clone();
    // With their own keys too: a console looks for the control queue of each worker.
    let own = (0..workers).map(|worker| format!("worker.synthetic-{worker:03}"));
    for key in own.chain(["workers".to_owned()]) {
        let (none, bind) = (FieldTable::default(), QueueBindOptions::default());
        channel.queue_bind(queue.clone(), "garenne.control".into(), key.into(), bind, none).await?;
    }
    let no_ack = BasicConsumeOptions { no_ack: true, ..Default::default() };
    let mut asked = channel.basic_consume(queue, "".into(), no_ack, FieldTable::default()).await?;

    let started_at = epoch_ms(SystemTime::now());
    let mut rounds: BTreeMap<usize, u64> = BTreeMap::new();
    let (mut next, mut size) = (0, 0);
    let mut tick = interval(EVERY / u32::try_from(workers.max(1))?);
    while Instant::now() < until {
        let due = tokio::select! {
            _ = tick.tick() => {
                next = (next + 1) % workers;
                next..next + 1
            }
            Some(Ok(_)) = asked.next() => 0..workers,
        };
        for worker in due {
            let round = rounds.entry(worker).or_default();
            *round += 1;
            let beat = beat(worker, *round, started_at);
            let body = serde_json::to_vec(&beat)?;
            size = body.len();
            let (key, options) = (beat.routing_key(), BasicPublishOptions::default());
            let exchange = "garenne.events".into();
            channel
                .basic_publish(exchange, key.as_str().into(), options, &body, BasicProperties::default())
                .await?;
        }
    }
    println!("{} heartbeats of {size} bytes", rounds.values().sum::<u64>());
    Ok(connection.close(200, "done".into()).await?)
}
