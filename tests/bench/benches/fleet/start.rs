//! How long a worker's start takes: from the start of the process, and from the end of the AMQP handshake, until the
//! result of a waiting task is written.
//!
//! `./dev bench start [--rounds N] [--before PROGRAM] [--json FILE]`

use std::time::Instant;

use anyhow::{Context, Result};
use garenne_bench::{Rows, number};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

use crate::{
    broker::{Broker, LANE, QueueType, body, task},
    garenne::{Build, Garenne},
    race::APPLIED,
};

/// `connection.open-ok`: the end of AMQP's handshake.
const OPEN_OK: [u8; 11] = [1, 0, 0, 0, 0, 0, 5, 0, 10, 0, 41];

pub(crate) async fn run(rows: &mut Rows) -> Result<()> {
    let rounds = number("--rounds", 20).map_err(anyhow::Error::msg)?;
    let broker = Broker::fresh(QueueType::Quorum).await?;
    rows.version("garenne", Garenne::version().await?);
    rows.version("rabbitmq", broker.version().await?);
    Garenne::declare_topology(&broker, 1).await?;
    let (url, mut opened) = handshake_proxy(broker.amqp_url()).await?;
    for _ in 0..rounds {
        for (build, name) in Build::compared("start") {
            broker.fill(LANE, std::iter::once(task("bench.noop", body(200)))).await?;
            let begun = Instant::now();
            let arguments = ["--sink", "stdout"].map(str::to_owned);
            let mut worker = Garenne::start(build, &url, &arguments).await?;
            worker.result().await?;
            let done = Instant::now();
            // The first of several connections.
            let open = opened.recv().await.context("no handshake was seen")?;
            let ms = |from: Instant| (done - from).as_secs_f64() * 1e3;
            rows.add(format!("{name}/first-result/after-spawn_ms"), "ms", ms(begun));
            rows.add(format!("{name}/first-result/after-handshake_ms"), "ms", ms(open));
            worker.stop().await?;
            tokio::time::sleep(APPLIED).await;
            while opened.try_recv().is_ok() {}
        }
    }
    broker.clear().await
}

/// Starts a proxy in front of the broker that reports the end of each connection's handshake.
async fn handshake_proxy(amqp_url: &str) -> Result<(String, mpsc::UnboundedReceiver<Instant>)> {
    let host =
        amqp_url.split('@').nth(1).and_then(|rest| rest.split('/').next()).context("a host")?.to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = amqp_url.replace(&host, &listener.local_addr()?.to_string());
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (host, sender) = (host.clone(), sender.clone());
            tokio::spawn(async move { forward(client, &host, sender).await });
        }
    });
    Ok((url, receiver))
}

async fn forward(client: TcpStream, host: &str, sender: mpsc::UnboundedSender<Instant>) -> Result<()> {
    let broker = TcpStream::connect(host).await?;
    client.set_nodelay(true)?;
    broker.set_nodelay(true)?;
    let ((mut from_client, mut to_client), (mut from_broker, mut to_broker)) =
        (client.into_split(), broker.into_split());
    let there = async {
        tokio::io::copy(&mut from_client, &mut to_broker).await?;
        to_broker.shutdown().await
    };
    let back = async {
        let (mut buffer, mut seen) = (vec![0; 64 * 1024], false);
        loop {
            let read = from_broker.read(&mut buffer).await?;
            if read == 0 {
                return to_client.shutdown().await;
            }
            if !seen && buffer[..read].windows(OPEN_OK.len()).any(|window| window == OPEN_OK) {
                seen = true;
                let _ = sender.send(Instant::now());
            }
            to_client.write_all(&buffer[..read]).await?;
        }
    };
    tokio::try_join!(there, back)?;
    Ok(())
}
