//! Strangers take what they can of a gateway: memory, time and places. It stays small, and a healthy sensor is served
//! throughout.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use flate2::{Compression, write::GzEncoder};
use garenne_tests::harness::{
    gateway::{Gateway, GatewayPlan},
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    task::JoinSet,
    time::{sleep, timeout},
};

/// The most that the gateway may ever have had, in MB.
const MEMORY: u64 = 128;
/// The healthy sensor's token, and its line in the file.
const TOKEN: &str = "s3cret";
const TOKENS: &str = "roof 1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0\n";

fn full() -> bool {
    std::env::var_os("GARENNE_TEST_FULL").is_some()
}

/// Hostile connections of each kind.
fn connections() -> usize {
    if full() { 200 } else { 30 }
}

/// How long a hostile sender waits before it goes on. All of them together are as fast in the full form: it is about
/// how many there are, not about who has more cores.
fn pause() -> Duration {
    Duration::from_millis(50) * u32::try_from(connections() / 30).unwrap_or(1)
}

/// What a hostile connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Attack {
    /// A body in chunks of one byte.
    ByteChunks,
    /// The same to a route that needs no body.
    StatementChunks,
    /// Compressed bytes that become a thousand times as many.
    Bomb,
    /// Compressed bytes that become 10,000 tasks.
    ManyTasks,
    /// A head, a byte at a time.
    SlowHead,
    /// A body, a byte at a time.
    SlowBody,
    /// Large bodies, with or without being known.
    LargeBody,
    /// Nothing.
    Idle,
    /// Blank lines.
    BlankLines,
    /// A line that does not end.
    LongLine,
    /// Requests whose answers are not read.
    Unread,
}

impl Attack {
    const ALL: [Self; 11] = [
        Self::ByteChunks,
        Self::StatementChunks,
        Self::Bomb,
        Self::ManyTasks,
        Self::SlowHead,
        Self::SlowBody,
        Self::LargeBody,
        Self::Idle,
        Self::BlankLines,
        Self::LongLine,
        Self::Unread,
    ];

    /// What is sent at once, and what is then sent again and again.
    fn sent(self) -> (Vec<u8>, Vec<u8>) {
        let chunk = b"1\r\nx\r\n".repeat(200);
        match self {
            Self::ByteChunks => (head("/v1/readings", "transfer-encoding: chunked\r\n"), chunk),
            Self::StatementChunks => (head("/query", "transfer-encoding: chunked\r\n"), chunk),
            Self::Bomb => {
                let request = gzipped("/v1/readings", &vec![b' '; 16 << 20]);
                (request.clone(), request)
            }
            Self::ManyTasks => {
                let pack = format!(r#"[{{"bn":"hostile","v":1}}{}]"#, r#",{"v":1}"#.repeat(9_999));
                let request = gzipped("/v1/readings", pack.as_bytes());
                (request.clone(), request)
            }
            Self::SlowHead => (b"POST /v1/readings HTTP/1.1\r\nhost: x\r\nx: ".to_vec(), b"x".to_vec()),
            Self::SlowBody => (head("/v1/readings", "content-length: 4000000\r\n"), b" ".to_vec()),
            Self::LargeBody => {
                let body = json!([reading(0).to_string().repeat(10_000)]).to_string();
                let mut request = head("/v1/readings", &format!("content-length: {}\r\n", body.len()));
                request.extend_from_slice(body.as_bytes());
                (request.clone(), request)
            }
            Self::Idle => (Vec::new(), Vec::new()),
            Self::BlankLines => (b"\n".to_vec(), b"\n".to_vec()),
            Self::LongLine => (vec![b'x'; 60_000], b"x".to_vec()),
            Self::Unread => {
                let requests = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(20);
                (requests.clone(), requests)
            }
        }
    }
}

fn head(path: &str, headers: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n").into_bytes()
}

fn gzipped(path: &str, plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let body = encoder.write_all(plain).and_then(|()| encoder.finish()).expect("a vector takes everything");
    let headers = format!("content-encoding: gzip\r\ncontent-length: {}\r\n", body.len());
    [head(path, &headers), body].concat()
}

fn reading(n: usize) -> serde_json::Value {
    json!({"device": "healthy", "metric": "m", "value": n, "time": 1_790_000_000 + n})
}

/// Hostile connections that come again whenever they are closed, until this is dropped.
struct Siege {
    /// Connections that were made, and those that the gateway ended, by what they do.
    counts: BTreeMap<Attack, Arc<[AtomicUsize; 2]>>,
    _connections: JoinSet<()>,
}

impl Siege {
    fn begin(gateway: &Gateway, attacks: &[Attack]) -> Self {
        let mut siege = Self { counts: BTreeMap::new(), _connections: JoinSet::new() };
        for &attack in attacks {
            let sent = Arc::new(attack.sent());
            let counts = Arc::clone(siege.counts.entry(attack).or_default());
            for _ in 0..connections() {
                let (address, sent) = (gateway.address().to_owned(), Arc::clone(&sent));
                let counts = Arc::clone(&counts);
                siege._connections.spawn(async move {
                    loop {
                        if let Ok(stream) = TcpStream::connect(&address).await {
                            counts[0].fetch_add(1, Ordering::Relaxed);
                            let _ = assail(stream, attack, &sent).await;
                            counts[1].fetch_add(1, Ordering::Relaxed);
                        }
                        sleep(pause()).await;
                    }
                });
            }
        }
        siege
    }

    fn count(&self, attack: Attack, which: usize) -> usize {
        self.counts[&attack][which].load(Ordering::Relaxed)
    }

    /// Waits until every hostile connection is there.
    async fn complete(&self) -> Result<()> {
        eventually("all hostile connections", async || {
            let counts: Vec<_> = self.counts.keys().map(|attack| (attack, self.count(*attack, 0))).collect();
            let all = counts.iter().all(|(_, count)| *count >= connections());
            Ok(Seen::when(all, format_args!("{counts:?}")))
        })
        .await
    }

    /// Waits until the gateway has ended as many connections of this kind as there are at once.
    async fn ended(&self, attack: Attack) -> Result<()> {
        eventually(format!("{attack:?} is ended"), async || {
            let ended = self.count(attack, 1);
            Ok(Seen::when(ended >= connections(), ended))
        })
        .await
    }
}

/// One hostile connection, until the gateway ends it.
async fn assail(mut stream: TcpStream, attack: Attack, (first, more): &(Vec<u8>, Vec<u8>)) -> Result<()> {
    let (mut reader, mut writer) = stream.split();
    let sending = async {
        writer.write_all(first).await?;
        loop {
            sleep(pause()).await;
            writer.write_all(more).await?;
        }
    };
    let listening = async {
        if attack == Attack::Unread {
            return std::future::pending().await;
        }
        let mut answers = [0; 4096];
        while reader.read(&mut answers).await? > 0 {}
        anyhow::Ok(())
    };
    tokio::select! {
        ended = sending => ended,
        ended = listening => ended,
    }
}

/// A sensor that sends one reading after the other, over HTTP and as lines in turns, and gets a receipt for each.
/// Nothing is repeated. Each HTTP request has a connection of its own: a kept one may be closed between two requests by
/// the header timeout, which the gateway of this test has short.
/// It ends after `least` readings and not before `time` is up.
async fn healthy(gateway: &Gateway, least: usize, time: Duration) -> Result<Vec<Duration>> {
    let http = reqwest::Client::builder().pool_max_idle_per_host(0).build()?;
    let mut lines = BufReader::new(TcpStream::connect(gateway.address()).await?);
    lines.write_all(format!("auth {TOKEN}\n").as_bytes()).await?;
    let mut welcome = String::new();
    lines.read_line(&mut welcome).await?;
    let (start, mut times) = (Instant::now(), Vec::with_capacity(least));
    while times.len() < least || start.elapsed() < time {
        let (n, begun) = (times.len(), Instant::now());
        if n % 2 == 0 {
            let post = http.post(format!("{}/v1/readings", gateway.url())).bearer_auth(TOKEN);
            let sent = post.body(reading(n).to_string()).send().await;
            let answer =
                sent.with_context(|| format!("reading {n}, {:?} after it was begun", begun.elapsed()))?;
            let status = answer.status();
            ensure!(status == 202, "reading {n}: {status} {}", answer.text().await?);
        } else {
            lines.write_all(format!("{}\n", reading(n)).as_bytes()).await?;
            let mut answer = String::new();
            timeout(Duration::from_secs(60), lines.read_line(&mut answer)).await??;
            ensure!(answer.starts_with("ok "), "reading {n}: {answer:?}");
        }
        times.push(begun.elapsed());
    }
    Ok(times)
}

fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

/// The most memory that the process ever had, in MB.
fn peak_mb(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("a peak")?;
    let kib: u64 = peak.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib >> 10)
}

/// A gateway, with or without tokens, with deadlines that a test can wait for.
fn plan(env: &TestEnv) -> Result<GatewayPlan> {
    Ok(GatewayPlan::new(env)?
        .env("GARENNE_GATEWAY__AUTH_TIMEOUT", "2s")
        .env("GARENNE_GATEWAY__HEADER_TIMEOUT", "2s")
        .env("GARENNE_GATEWAY__BODY_TIMEOUT", "4s")
        // All of these senders have one address.
        .env("GARENNE_GATEWAY__MAX_CONNECTIONS_PER_SOURCE", "0"))
}

async fn start(plan: GatewayPlan, env: &TestEnv, tokens: bool) -> Result<Gateway> {
    if !tokens {
        return plan.start().await;
    }
    let file = env.folder().join("tokens");
    fs::write(&file, TOKENS)?;
    plan.option("--tokens", file).start().await
}

async fn besieged(tokens: bool) -> Result<()> {
    let env = TestEnv::new().await?;
    let gateway = start(plan(&env)?, &env, tokens).await?;
    let siege = Siege::begin(&gateway, &Attack::ALL);
    siege.complete().await?;
    healthy(&gateway, 200, Duration::ZERO).await?;
    let known_by_deadline: &[Attack] = if tokens { &[Attack::Idle, Attack::BlankLines] } else { &[] };
    for attack in [Attack::SlowHead, Attack::SlowBody, Attack::LongLine].iter().chain(known_by_deadline) {
        siege.ended(*attack).await?;
    }
    healthy(&gateway, 200, Duration::ZERO).await?;
    let peak = peak_mb(gateway.process().id())?;
    println!("tokens {tokens}: {peak} MB at most, {:?} (connections, ended)", siege.counts);
    ensure!(peak < MEMORY, "{peak} MB, {MEMORY} are allowed");
    drop(siege);
    ensure!(gateway.stop().await?.code.is_some(), "it ended by a signal");
    env.is_empty("garenne.dead").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_gateway_strangers_without_a_token_take_neither_memory_nor_service() -> Result<()> {
    besieged(true).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_gateway_senders_that_need_no_token_take_neither_memory_nor_service() -> Result<()> {
    besieged(false).await
}

/// How long a healthy sensor is measured, and how many readings it sends at least.
const MEASURED: (usize, Duration) = (20, Duration::from_secs(10));

/// Each kind by itself, and what a healthy sensor waits then. Attackers, gateway and broker share the machine's cores:
/// what that costs is measured at the same time by a sensor of a second gateway, which is not attacked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_gateway_healthy_sensors_wait_at_most_twice_as_long() -> Result<()> {
    if !full() {
        println!("left out: 200 connections of each kind take minutes; set GARENNE_TEST_FULL");
        return Ok(());
    }
    let (least, time) = MEASURED;
    let mut slow = Vec::new();
    println!("| tokens | kind | p99 alone | besieged | second gateway | readings | MB at most |");
    for tokens in [true, false] {
        for attack in Attack::ALL {
            let env = TestEnv::new().await?;
            // A debug build parses so slowly that it would be measured instead of the waiting.
            let attacked = start(plan(&env)?.optimized(), &env, tokens).await?;
            let second = start(plan(&env)?.optimized(), &env, tokens).await?;
            healthy(&attacked, 100, Duration::ZERO).await?;
            let alone = p99(healthy(&attacked, least, time).await?);
            let siege = Siege::begin(&attacked, &[attack]);
            siege.complete().await?;
            let (besieged, beside) =
                tokio::try_join!(healthy(&attacked, least, time), healthy(&second, least, time))?;
            let (count, besieged, beside) = (besieged.len(), p99(besieged), p99(beside));
            let peak = peak_mb(attacked.process().id())?;
            println!(
                "| {tokens} | {attack:?} | {alone:.1?} | {besieged:.1?} | {beside:.1?} | {count} | {peak} |"
            );
            ensure!(peak < MEMORY, "{attack:?}: {peak} MB, {MEMORY} are allowed");
            if besieged > alone.max(beside) * 2 {
                slow.push(format!("tokens {tokens}, {attack:?}: {besieged:.1?}"));
            }
        }
    }
    ensure!(slow.is_empty(), "more than twice as long as alone and as beside: {slow:#?}");
    Ok(())
}
