//! From a sensor's request to a row in Postgres: the number of rows per second of CPU time, with a gateway that groups
//! readings into batches, and with one message per reading.
//!
//! `./dev bench end-to-end [--rounds N] [--seconds N] [--json FILE]`

use std::{
    net::SocketAddr,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use garenne_bench::{Rows, Usage, number, option};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    task::JoinSet,
};
use tokio_postgres::{Client, NoTls};

use crate::{
    broker::{Broker, LANE, QueueType},
    garenne::{Build, Garenne},
};

/// Lines that a TCP sensor sends before it reads the answers.
const WINDOW: usize = 64;
/// Timeout of the gateway's start, and for readings with a receipt to become rows.
const ROWS_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http,
    Tcp,
}

/// Name, protocol, and number of sensors, each with its own connection. The more requests are in flight, the more
/// readings can be grouped.
const LOADS: [(&str, Protocol, usize); 3] =
    [("http", Protocol::Http, 64), ("http-1000", Protocol::Http, 1000), ("tcp", Protocol::Tcp, 64)];

pub(crate) async fn run(rows: &mut Rows) -> Result<()> {
    let rounds = number("--rounds", 3).map_err(anyhow::Error::msg)?;
    let seconds = Duration::from_secs(number("--seconds", 4).map_err(anyhow::Error::msg)?.try_into()?);
    let url = option("--postgres-url").context("--postgres-url is missing; ./dev bench gives it")?;
    let database = connect(&url).await?;
    let broker = Broker::fresh(QueueType::Quorum).await?;
    rows.version("garenne", Garenne::version().await?);
    rows.version("rabbitmq", broker.version().await?);
    let version: String = database.query_one("SHOW server_version", &[]).await?.get(0);
    rows.version("postgres", version);
    Garenne::declare_topology(&broker, 1).await?;
    for round in 0..rounds {
        for (named, protocol, sensors) in LOADS {
            for (records, gathered) in [("500", "gathered"), ("1", "single")] {
                let name = format!("end-to-end/{named}/{gathered}");
                let seen = run_once(&broker, &database, &url, (protocol, sensors), records, seconds)
                    .await
                    .context(name.clone())?;
                eprintln!("{name} {round}: {seen:?}");
                rows.add(format!("{name}/rows_per_s"), "rows/s", seen.rows / seen.took);
                let Spent { gateway, worker, servers } = seen.spent;
                let ours = seen.spent.ours();
                rows.add(format!("{name}/gateway_cpu_us"), "us/row", gateway * 1e6 / seen.rows);
                rows.add(format!("{name}/worker_cpu_us"), "us/row", worker * 1e6 / seen.rows);
                rows.add(format!("{name}/rows_per_cpu_s"), "rows/cpu-s", seen.rows / ours);
                if servers > 0.0 {
                    let all = ours + servers;
                    rows.add(format!("{name}/rows_per_cpu_s_of_all"), "rows/cpu-s", seen.rows / all);
                }
            }
        }
    }
    for (named, ..) in LOADS {
        for what in ["rows_per_s", "rows_per_cpu_s", "rows_per_cpu_s_of_all"] {
            let of = |gathered| format!("end-to-end/{named}/{gathered}/{what}");
            let name = format!("end-to-end/{named}/gathered-to-single/{what}");
            rows.compare(name, &of("gathered"), &of("single"));
        }
    }
    broker.clear().await
}

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// The measured values of one run, in rows and seconds.
#[derive(Debug)]
struct Measured {
    rows: f64,
    took: f64,
    spent: Spent,
}

/// CPU time in seconds.
#[derive(Debug)]
struct Spent {
    gateway: f64,
    worker: f64,
    /// CPU time of broker and database if `--servers` names their processes, else 0.
    servers: f64,
}

impl Spent {
    fn until_now(gateway: u32, worker: &Garenne) -> Self {
        let servers = option("--servers").unwrap_or_default();
        let servers: Duration =
            servers.split(',').filter_map(|pid| pid.parse().ok()).map(|pid| Usage::of(pid).cpu).sum();
        Self {
            gateway: Usage::of(gateway).cpu.as_secs_f64(),
            worker: worker.usage().cpu.as_secs_f64(),
            servers: servers.as_secs_f64(),
        }
    }

    fn since(self, before: &Self) -> Self {
        Self {
            gateway: self.gateway - before.gateway,
            worker: self.worker - before.worker,
            servers: self.servers - before.servers,
        }
    }

    fn ours(&self) -> f64 {
        self.gateway + self.worker
    }
}

async fn run_once(
    broker: &Broker,
    database: &Client,
    url: &str,
    (protocol, sensors): (Protocol, usize),
    records: &str,
    seconds: Duration,
) -> Result<Measured> {
    let sink =
        ["--sink", "postgres", "--postgres-url", url, "--lane", "fast:prefetch=1000"].map(str::to_owned);
    let worker = Garenne::start(Build::Now, broker.amqp_url(), &sink).await?;
    worker.ready().await?;
    database.batch_execute("TRUNCATE garenne_readings, garenne_results").await?;
    let (gateway, address) = gateway(broker, records).await?;
    let pid = gateway.id().context("the gateway runs")?;
    let (begun, before) = (Instant::now(), Spent::until_now(pid, &worker));
    let receipts = load(protocol, sensors, address, seconds).await?;
    ensure!(receipts > 0, "no receipt");
    let until = Instant::now() + ROWS_TIMEOUT;
    loop {
        if broker.ready(LANE).await? == 0 {
            let stored: i64 = database.query_one("SELECT count(*) FROM garenne_readings", &[]).await?.get(0);
            if stored >= receipts {
                break;
            }
            ensure!(Instant::now() < until, "{receipts} receipts and {stored} rows");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (took, spent) = (begun.elapsed().as_secs_f64(), Spent::until_now(pid, &worker).since(&before));
    drop(gateway);
    worker.stop().await?;
    Ok(Measured { rows: receipts as f64, took, spent })
}

async fn gateway(broker: &Broker, records: &str) -> Result<(Child, SocketAddr)> {
    let address = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
    let program = option("--producer").unwrap_or_else(|| "target/dist/garenne-producer".to_owned());
    let gateway = Command::new(program)
        .args(["serve", "--amqp-url", broker.amqp_url(), "--listen", &address.to_string()])
        .args(["--admin", "127.0.0.1:0"])
        .env("GARENNE_GROUP_COMMIT__RECORDS", records)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start the gateway")?;
    let until = Instant::now() + ROWS_TIMEOUT;
    while TcpStream::connect(address).await.is_err() {
        ensure!(Instant::now() < until, "the gateway does not listen");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok((gateway, address))
}

/// Sends different readings and returns the number of receipts.
async fn load(protocol: Protocol, sensors: usize, address: SocketAddr, seconds: Duration) -> Result<i64> {
    let until = Instant::now() + seconds;
    let mut senders = JoinSet::new();
    for sensor in 0..sensors {
        senders.spawn(async move {
            match protocol {
                Protocol::Http => http(address, sensor, until).await,
                Protocol::Tcp => tcp(address, sensor, until).await,
            }
        });
    }
    let mut receipts = 0;
    while let Some(sent) = senders.join_next().await {
        receipts += sent??;
    }
    Ok(receipts)
}

fn reading(sensor: usize, number: i64) -> String {
    let time = 1_760_000_000.0 + number as f64 / 1000.0;
    format!(
        r#"{{"device":"greenhouse-{sensor}","metric":"temperature","value":21.5,"unit":"Cel","time":{time:.3}}}"#
    )
}

/// Sends one request after the other on a persistent connection.
async fn http(address: SocketAddr, sensor: usize, until: Instant) -> Result<i64> {
    let mut stream = BufReader::new(TcpStream::connect(address).await?);
    stream.get_ref().set_nodelay(true)?;
    let (mut sent, mut line, mut body) = (0, String::new(), Vec::new());
    while Instant::now() < until {
        let reading = reading(sensor, sent);
        let head = "POST /v1/readings HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n";
        let request = format!("{head}content-length: {}\r\n\r\n{reading}", reading.len());
        stream.write_all(request.as_bytes()).await?;
        let (mut accepted, mut length) = (false, 0);
        while line != "\r\n" {
            line.clear();
            ensure!(stream.read_line(&mut line).await? > 0, "the gateway closed the connection");
            accepted |= line.starts_with("HTTP/1.1 202");
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
        }
        line.clear();
        body.resize(length, 0);
        stream.read_exact(&mut body).await?;
        ensure!(accepted, "refused: {}", String::from_utf8_lossy(&body));
        sent += 1;
    }
    Ok(sent)
}

/// Sends many lines at a time and then reads their answers.
async fn tcp(address: SocketAddr, sensor: usize, until: Instant) -> Result<i64> {
    let mut stream = BufReader::new(TcpStream::connect(address).await?);
    stream.get_ref().set_nodelay(true)?;
    let (mut sent, mut answer, mut lines) = (0, String::new(), String::new());
    while Instant::now() < until {
        lines.clear();
        for _ in 0..WINDOW {
            lines.push_str(&reading(sensor, sent));
            lines.push('\n');
            sent += 1;
        }
        stream.write_all(lines.as_bytes()).await?;
        for _ in 0..WINDOW {
            answer.clear();
            ensure!(stream.read_line(&mut answer).await? > 0, "the gateway closed the connection");
            ensure!(answer.starts_with("ok "), "refused: {answer}");
        }
    }
    Ok(sent)
}
