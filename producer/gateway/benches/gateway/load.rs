//! Loads: simulated senders.

use std::{
    collections::VecDeque,
    fmt,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use garenne_bench::Rows;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    task::JoinSet,
    time::{interval, interval_at, sleep, timeout},
};

/// Senders that wait for each answer.
const SENDERS: usize = 64;
/// Lines in flight of a pipelining sender.
const WINDOW: usize = 64;
/// Silent connections.
const IDLE: usize = 5_000;
/// Connections that send one byte per second.
const SLOW: usize = 1_000;
/// Connections per burst.
const BURST: usize = 500;
/// Connected sensors of the load `fleet`.
const FLEET: usize = 10_000;
/// Interval between the readings of each of them: 5,000 readings per second in all.
const FLEET_EVERY: Duration = Duration::from_secs(2);
/// Senders that do not wait for answers, and their readings per second together.
const OFFERING: usize = 100;
const OFFERED: usize = 10_000;

const READING: &str = r#"{"device":"greenhouse-1","metric":"temperature","value":21.5,"unit":"Cel","time":"2026-11-20T07:30:00Z"}"#;

/// A load.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// Each sender sends a line, waits for the answer, and sends the next.
    Steady,
    /// The same over HTTP with keep-alive.
    Http,
    /// Each sender has [`WINDOW`] lines in flight.
    Pipelined,
    /// Many new connections at once, one reading each, then a pause.
    Bursty,
    /// `Steady`, with [`SLOW`] other senders that never finish a line.
    Slow,
    /// `Steady`, with [`IDLE`] silent connections.
    Idle,
    /// [`FLEET`] sensors with one reading per [`FLEET_EVERY`] each.
    Fleet,
    /// [`OFFERED`] readings per second, independent of the answers.
    Overload,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Steady => "steady",
            Self::Http => "http",
            Self::Pipelined => "pipelined",
            Self::Bursty => "bursty",
            Self::Slow => "slow",
            Self::Idle => "idle",
            Self::Fleet => "fleet",
            Self::Overload => "overload",
        })
    }
}

/// The measurements of one load.
#[derive(Default)]
pub(crate) struct LoadResult {
    pub(crate) receipts: u64,
    pub(crate) refused: u64,
    /// Lines without an answer.
    pub(crate) silent: u64,
    pub(crate) took: Duration,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) cpu: Duration,
    pub(crate) rss_mb: f64,
}

impl LoadResult {
    pub(crate) fn add_to(&self, rows: &mut Rows, name: &str) {
        let receipts = (self.receipts as f64).max(1.0);
        let cpu = self.cpu.as_secs_f64();
        for (what, unit, value) in [
            ("per_s", "readings/s", self.receipts as f64 / self.took.as_secs_f64()),
            ("p50_ms", "ms", self.p50.as_secs_f64() * 1e3),
            ("p99_ms", "ms", self.p99.as_secs_f64() * 1e3),
            ("cpu_us", "us/reading", cpu * 1e6 / receipts),
            ("per_cpu_s", "readings/cpu-s", self.receipts as f64 / cpu.max(0.01)),
            ("rss_mb", "MB", self.rss_mb),
            ("refused", "connections or lines", self.refused as f64),
            ("silent", "lines", self.silent as f64),
        ] {
            rows.add(format!("{name}/{what}"), unit, value);
        }
    }
}

#[derive(Default)]
struct Counts {
    receipts: AtomicU64,
    refused: AtomicU64,
    sent: AtomicU64,
    waits: Mutex<Vec<Duration>>,
}

impl Load {
    /// The loads that compare servers.
    pub(crate) const SERVERS: [Self; 6] =
        [Self::Steady, Self::Http, Self::Pipelined, Self::Bursty, Self::Slow, Self::Idle];

    /// Whether the senders close their connections, so that a sequential server can serve the next one.
    pub(crate) fn ends_connections(self) -> bool {
        self == Self::Bursty
    }

    pub(crate) async fn run(self, address: SocketAddr, seconds: Duration) -> LoadResult {
        garenne_gateway::raise_file_limit();
        let counts = Arc::new(Counts::default());
        let mut others = JoinSet::new();
        match self {
            Self::Idle => bystanders(&mut others, address, IDLE, b"\n").await,
            Self::Slow => bystanders(&mut others, address, SLOW, b"{").await,
            _ => {}
        }
        let begun = Instant::now();
        let until = begun + seconds;
        let mut senders = JoinSet::new();
        let count = match self {
            Self::Bursty => 1,
            Self::Fleet => FLEET,
            Self::Overload => OFFERING,
            _ => SENDERS,
        };
        for number in 0..count {
            let counts = Arc::clone(&counts);
            senders.spawn(async move {
                // Errors end the sender; refused lines are counted.
                let _ = match self {
                    Self::Bursty => bursts(address, until, &counts).await,
                    Self::Http => http(address, until, &counts).await,
                    Self::Pipelined => lines(address, until, &counts, WINDOW).await,
                    Self::Steady | Self::Slow | Self::Idle => lines(address, until, &counts, 1).await,
                    Self::Fleet => {
                        let first = FLEET_EVERY.mul_f64(number as f64 / FLEET as f64);
                        offer(address, until, &counts, first, FLEET_EVERY).await
                    }
                    Self::Overload => {
                        let every = Duration::from_secs(1) * OFFERING as u32 / OFFERED as u32;
                        offer(address, until, &counts, every.mul_f64(number as f64 / OFFERING as f64), every)
                            .await
                    }
                };
            });
        }
        while senders.join_next().await.is_some() {}
        let took = begun.elapsed();
        others.abort_all();
        let mut waits = std::mem::take(&mut *counts.waits.lock().expect("no panic while locked"));
        waits.sort_unstable();
        let at = |share: f64| waits.get((waits.len() as f64 * share) as usize).copied().unwrap_or_default();
        let (receipts, refused) = (counts.receipts.load(Relaxed), counts.refused.load(Relaxed));
        LoadResult {
            receipts,
            refused,
            silent: counts.sent.load(Relaxed).saturating_sub(receipts + refused),
            took,
            p50: at(0.5),
            p99: at(0.99),
            ..LoadResult::default()
        }
    }
}

/// Opens connections that only occupy the server. With `drip` other than a line ending they send a byte per second.
async fn bystanders(others: &mut JoinSet<()>, address: SocketAddr, count: usize, drip: &'static [u8]) {
    for _ in 0..count {
        let Ok(Ok(mut stream)) = timeout(Duration::from_secs(5), TcpStream::connect(address)).await else {
            continue;
        };
        if stream.write_all(drip).await.is_err() {
            continue;
        }
        others.spawn(async move {
            if drip == b"\n" {
                let _ = stream.read_u8().await;
                return;
            }
            let mut tick = interval(Duration::from_secs(1));
            loop {
                tick.tick().await;
                if stream.write_all(b" ").await.is_err() {
                    return;
                }
            }
        });
    }
}

/// Keeps `window` lines in flight on one connection.
async fn lines(address: SocketAddr, until: Instant, counts: &Counts, window: usize) -> std::io::Result<()> {
    let mut stream = BufReader::new(TcpStream::connect(address).await?);
    stream.get_ref().set_nodelay(true)?;
    let text = format!("{READING}\n").repeat(window);
    let mut answer = String::new();
    let mut waits = Vec::new();
    while Instant::now() < until {
        let sent = Instant::now();
        stream.write_all(text.as_bytes()).await?;
        for _ in 0..window {
            answer.clear();
            if stream.read_line(&mut answer).await? == 0 {
                break;
            }
            count(counts, answer.starts_with("ok "));
        }
        waits.push(sent.elapsed());
    }
    counts.waits.lock().expect("no panic while locked").extend(waits);
    Ok(())
}

/// Sends a line per interval, independent of the answers, and measures the time to each answer.
async fn offer(
    address: SocketAddr,
    until: Instant,
    counts: &Counts,
    first: Duration,
    every: Duration,
) -> std::io::Result<()> {
    // All senders connect before the first one sends.
    sleep(first / 4).await;
    let (reader, mut writer) = TcpStream::connect(address).await?.into_split();
    let sent_at = Mutex::new(VecDeque::new());
    let over = AtomicBool::new(false);
    let sending = async {
        let mut beat = interval_at((Instant::now() + first).into(), every);
        while Instant::now() < until {
            beat.tick().await;
            sent_at.lock().expect("no panic while locked").push_back(Instant::now());
            counts.sent.fetch_add(1, Relaxed);
            writer.write_all(format!("{READING}\n").as_bytes()).await?;
        }
        over.store(true, Relaxed);
        writer.shutdown().await
    };
    let answers = async {
        let mut waits = Vec::new();
        let mut lines = BufReader::new(reader).lines();
        while let Some(answer) = lines.next_line().await? {
            let sent = sent_at.lock().expect("no panic while locked").pop_front();
            count(counts, answer.starts_with("ok "));
            if let Some(sent) = sent.filter(|_| answer.starts_with("ok ") && !over.load(Relaxed)) {
                waits.push(sent.elapsed());
            }
        }
        counts.waits.lock().expect("no panic while locked").extend(waits);
        Ok::<_, std::io::Error>(())
    };
    tokio::try_join!(sending, answers).map(drop)
}

/// Sends one request after the other on one connection.
async fn http(address: SocketAddr, until: Instant, counts: &Counts) -> std::io::Result<()> {
    let mut stream = BufReader::new(TcpStream::connect(address).await?);
    stream.get_ref().set_nodelay(true)?;
    let request = format!(
        "POST /v1/readings HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{READING}",
        READING.len()
    );
    let mut waits = Vec::new();
    while Instant::now() < until {
        let sent = Instant::now();
        stream.write_all(request.as_bytes()).await?;
        let (mut accepted, mut length) = (false, 0);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            accepted |= line.starts_with("HTTP/1.1 202");
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        count(counts, accepted);
        waits.push(sent.elapsed());
    }
    counts.waits.lock().expect("no panic while locked").extend(waits);
    Ok(())
}

/// Opens [`BURST`] connections with one reading each, then pauses for 250 ms.
async fn bursts(address: SocketAddr, until: Instant, counts: &Arc<Counts>) -> std::io::Result<()> {
    while Instant::now() < until {
        let mut burst = JoinSet::new();
        for _ in 0..BURST {
            let counts = Arc::clone(counts);
            burst.spawn(async move {
                let begun = Instant::now();
                let receipted = timeout(Duration::from_secs(10), one(address)).await;
                let receipted = matches!(receipted, Ok(Ok(true)));
                count(&counts, receipted);
                counts.waits.lock().expect("no panic while locked").push(begun.elapsed());
            });
        }
        while burst.join_next().await.is_some() {}
        sleep(Duration::from_millis(250)).await;
    }
    Ok(())
}

async fn one(address: SocketAddr) -> std::io::Result<bool> {
    let mut stream = BufReader::new(TcpStream::connect(address).await?);
    stream.write_all(format!("{READING}\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_line(&mut answer).await?;
    Ok(answer.starts_with("ok "))
}

fn count(counts: &Counts, receipted: bool) {
    let counter = if receipted { &counts.receipts } else { &counts.refused };
    counter.fetch_add(1, Relaxed);
}
