//! Unknown senders try to exhaust a gateway's memory, time and connections. Its memory stays bounded, and a healthy
//! sensor is served throughout.

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
    suite,
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

/// Maximum of the gateway's peak memory, in MB.
const MAX_PEAK_MB: u64 = 128;
/// The healthy sensor's token, and its entry in the senders file.
const TOKEN: &str = "s3cret";
const SENDERS: &str = r#"
[[sender]]
name = "roof"
token_sha256 = "1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0"
devices = ["healthy"]
"#;

/// Hostile connections of each kind.
fn connections() -> usize {
    if suite::is_full() { 200 } else { 30 }
}

/// The pause of a hostile sender between two writes. It grows with the number of connections, so that their total rate
/// is the same in the full form: the test is about the number of connections, not about CPU time.
fn pause() -> Duration {
    Duration::from_millis(50) * u32::try_from(connections() / 30).unwrap_or(1)
}

/// Behavior of a hostile connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Attack {
    /// A body in chunks of one byte.
    ByteChunks,
    /// The same to a route that needs no body.
    StatementChunks,
    /// A compressed body that expands a thousandfold.
    Bomb,
    /// A compressed body with 10,000 tasks.
    ManyTasks,
    /// A compressed list of a million empty events.
    EmptyEvents,
    /// A compressed event with half a million attributes.
    Attributes,
    /// Compressed metrics with a million empty lists in the place of messages.
    EmptyMetrics,
    /// Compressed metrics with two million numbers in the place of one value.
    NumbersForValue,
    /// A request head, one byte at a time.
    SlowHead,
    /// A body, one byte at a time.
    SlowBody,
    /// Large bodies, which only known senders may send.
    LargeBody,
    /// Nothing.
    Idle,
    /// Blank lines.
    BlankLines,
    /// A line that does not end.
    LongLine,
    /// Requests whose answers are not read.
    Unread,
    /// Short lines whose answers are longer, and are not read.
    UnreadLines,
}

impl Attack {
    const ALL: [Self; 16] = [
        Self::ByteChunks,
        Self::StatementChunks,
        Self::Bomb,
        Self::ManyTasks,
        Self::EmptyEvents,
        Self::Attributes,
        Self::EmptyMetrics,
        Self::NumbersForValue,
        Self::SlowHead,
        Self::SlowBody,
        Self::LargeBody,
        Self::Idle,
        Self::BlankLines,
        Self::LongLine,
        Self::Unread,
        Self::UnreadLines,
    ];

    /// The bytes that are sent first, and those that are then sent repeatedly.
    fn payload(self) -> (Vec<u8>, Vec<u8>) {
        let chunk = b"1\r\nx\r\n".repeat(200);
        match self {
            Self::ByteChunks => (head("/v1/readings", "transfer-encoding: chunked\r\n"), chunk),
            Self::StatementChunks => (head("/query", "transfer-encoding: chunked\r\n"), chunk),
            Self::Bomb => {
                let request = gzipped("/v1/readings", "", &vec![b' '; 16 << 20]);
                (request.clone(), request)
            }
            Self::ManyTasks => {
                let pack = format!(r#"[{{"bn":"hostile","v":1}}{}]"#, r#",{"v":1}"#.repeat(9_999));
                let request = gzipped("/v1/readings", "", pack.as_bytes());
                (request.clone(), request)
            }
            Self::EmptyEvents => {
                let events = format!("[{}{{}}]", "{},".repeat(1_300_000));
                let request = gzipped("/v1/events", "application/cloudevents-batch+json", events.as_bytes());
                (request.clone(), request)
            }
            Self::Attributes => {
                let event = format!("{{{}}}", r#""a":1"#.to_owned() + &r#","a":1"#.repeat(600_000));
                let request = gzipped("/v1/events", "application/cloudevents+json", event.as_bytes());
                (request.clone(), request)
            }
            Self::EmptyMetrics => {
                let lists = "[],".repeat(1_300_000);
                let metrics =
                    format!(r#"{{"resourceMetrics":[{{"scopeMetrics":[{{"metrics":[{lists}[]]}}]}}]}}"#);
                let request = gzipped("/v1/metrics", "application/json", metrics.as_bytes());
                (request.clone(), request)
            }
            Self::NumbersForValue => {
                let numbers = "1,".repeat(2_000_000);
                let metric = format!(r#"{{"gauge":{{"dataPoints":[{{"asDouble":[{numbers}1]}}]}}}}"#);
                let metrics =
                    format!(r#"{{"resourceMetrics":[{{"scopeMetrics":[{{"metrics":[{metric}]}}]}}]}}"#);
                let request = gzipped("/v1/metrics", "application/json", metrics.as_bytes());
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
            Self::UnreadLines => (b"x\n".repeat(500), b"x\n".repeat(500)),
        }
    }
}

fn head(path: &str, headers: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n").into_bytes()
}

fn gzipped(path: &str, content_type: &str, plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let body = encoder.write_all(plain).and_then(|()| encoder.finish()).expect("a vector takes everything");
    let headers = format!(
        "content-type: {content_type}\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n",
        body.len()
    );
    [head(path, &headers), body].concat()
}

fn reading(n: usize) -> serde_json::Value {
    json!({"device": "healthy", "metric": "m", "value": n, "time": 1_790_000_000 + n})
}

/// Hostile connections, which are opened again whenever they are closed, until this is dropped.
struct AttackLoad {
    /// Opened connections and ended ones, by attack.
    counts: BTreeMap<Attack, Arc<[AtomicUsize; 2]>>,
    _connections: JoinSet<()>,
}

impl AttackLoad {
    fn start(gateway: &Gateway, attacks: &[Attack]) -> Self {
        let mut load = Self { counts: BTreeMap::new(), _connections: JoinSet::new() };
        for &attack in attacks {
            let sent = Arc::new(attack.payload());
            let counts = Arc::clone(load.counts.entry(attack).or_default());
            for _ in 0..connections() {
                let (address, sent) = (gateway.address().to_owned(), Arc::clone(&sent));
                let counts = Arc::clone(&counts);
                load._connections.spawn(async move {
                    loop {
                        if let Ok(stream) = TcpStream::connect(&address).await {
                            counts[0].fetch_add(1, Ordering::Relaxed);
                            let _ = attack_once(stream, attack, &sent).await;
                            counts[1].fetch_add(1, Ordering::Relaxed);
                        }
                        sleep(pause()).await;
                    }
                });
            }
        }
        load
    }

    fn count(&self, attack: Attack, which: usize) -> usize {
        self.counts[&attack][which].load(Ordering::Relaxed)
    }

    /// Waits until as many connections of each attack were opened as run at the same time.
    async fn until_connected(&self) -> Result<()> {
        eventually("all hostile connections", async || {
            let counts: Vec<_> = self.counts.keys().map(|attack| (attack, self.count(*attack, 0))).collect();
            let all = counts.iter().all(|(_, count)| *count >= connections());
            Ok(Seen::when(all, format_args!("{counts:?}")))
        })
        .await
    }

    /// Waits until the gateway has ended as many connections of this attack as run at the same time.
    async fn until_ended(&self, attack: Attack) -> Result<()> {
        eventually(format!("ended connections of {attack:?}"), async || {
            let ended = self.count(attack, 1);
            Ok(Seen::when(ended >= connections(), ended))
        })
        .await
    }
}

/// Runs one hostile connection until the gateway ends it.
async fn attack_once(
    mut stream: TcpStream,
    attack: Attack,
    (first, more): &(Vec<u8>, Vec<u8>),
) -> Result<()> {
    let (mut reader, mut writer) = stream.split();
    let sending = async {
        writer.write_all(first).await?;
        loop {
            sleep(pause()).await;
            writer.write_all(more).await?;
        }
    };
    let listening = async {
        if matches!(attack, Attack::Unread | Attack::UnreadLines) {
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

/// Sends one reading after the other, over HTTP and TCP in turns, and requires a receipt for each without a retry.
/// Returns how long each took. Each HTTP request has its own connection, so that accepting it is measured too. Ends after
/// `least` readings, but not before `time` has passed.
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
                sent.with_context(|| format!("reading {n}, {:?} after its start", begun.elapsed()))?;
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

/// A gateway, with or without tokens, with timeouts that a test can wait for.
fn plan(env: &TestEnv) -> Result<GatewayPlan> {
    Ok(GatewayPlan::new(env)?
        .env("GARENNE_GATEWAY__AUTH_TIMEOUT", "5s")
        .env("GARENNE_GATEWAY__HEADER_TIMEOUT", "5s")
        .env("GARENNE_GATEWAY__BODY_TIMEOUT", "6s")
        // All senders of the test have the same address.
        .env("GARENNE_GATEWAY__MAX_CONNECTIONS_PER_SOURCE", "0"))
}

async fn start(plan: GatewayPlan, env: &TestEnv, tokens: bool) -> Result<Gateway> {
    if !tokens {
        return plan.start().await;
    }
    let file = env.folder().join("senders.toml");
    // Once: another gateway that reads the file again would find it empty for a moment.
    if !file.exists() {
        fs::write(&file, SENDERS)?;
    }
    plan.option("--tokens", file).start().await
}

async fn check_under_attack(tokens: bool) -> Result<()> {
    let env = TestEnv::new().await?;
    let gateway = start(plan(&env)?, &env, tokens).await?;
    let load = AttackLoad::start(&gateway, &Attack::ALL);
    load.until_connected().await?;
    let readings = if suite::is_full() { 200 } else { 40 };
    healthy(&gateway, readings, Duration::ZERO).await?;
    let known_by_deadline: &[Attack] = if tokens { &[Attack::Idle, Attack::BlankLines] } else { &[] };
    for attack in [Attack::SlowHead, Attack::SlowBody, Attack::LongLine].iter().chain(known_by_deadline) {
        load.until_ended(*attack).await?;
    }
    healthy(&gateway, readings, Duration::ZERO).await?;
    let peak = gateway.process().peak_memory()? >> 20;
    println!("tokens {tokens}: peak {peak} MB, {:?} (connections, ended)", load.counts);
    ensure!(peak < MAX_PEAK_MB, "peak {peak} MB, at most {MAX_PEAK_MB} are allowed");
    drop(load);
    ensure!(gateway.stop().await?.code.is_some(), "a signal ended the gateway");
    env.is_empty("garenne.dead").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_gateway_senders_without_a_valid_token_exhaust_neither_memory_nor_connections() -> Result<()>
{
    check_under_attack(true).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_gateway_senders_that_need_no_token_exhaust_neither_memory_nor_connections() -> Result<()> {
    check_under_attack(false).await
}

/// Minimum number of readings of a healthy sensor, and how long it is measured.
const MEASURED: (usize, Duration) = (20, Duration::from_secs(10));

/// Measures a healthy sensor's latency under each attack. Attackers, gateways and broker share the machine's cores. To
/// separate that effect, a second gateway, which is not attacked, is measured at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_gateway_healthy_sensors_wait_at_most_twice_as_long() -> Result<()> {
    if !suite::is_full() {
        suite::leave_out("200 connections of each kind take minutes: it needs `./dev test --full`");
        return Ok(());
    }
    let (least, time) = MEASURED;
    let mut slow = Vec::new();
    println!("| tokens | attack | p99 alone | under attack | second gateway | readings | peak MB |");
    for tokens in [true, false] {
        for attack in Attack::ALL {
            let env = TestEnv::new().await?;
            // A debug build parses so slowly that it would be measured instead of the waiting.
            let attacked = start(plan(&env)?.optimized(), &env, tokens).await?;
            let second = start(plan(&env)?.optimized(), &env, tokens).await?;
            healthy(&attacked, 100, Duration::ZERO).await?;
            let alone = p99(healthy(&attacked, least, time).await?);
            let load = AttackLoad::start(&attacked, &[attack]);
            load.until_connected().await?;
            let (under_attack, second) =
                tokio::try_join!(healthy(&attacked, least, time), healthy(&second, least, time))?;
            let (count, under_attack, second) = (under_attack.len(), p99(under_attack), p99(second));
            let peak = attacked.process().peak_memory()? >> 20;
            println!(
                "| {tokens} | {attack:?} | {alone:.1?} | {under_attack:.1?} | {second:.1?} | {count} | {peak} |"
            );
            ensure!(peak < MAX_PEAK_MB, "{attack:?}: peak {peak} MB, at most {MAX_PEAK_MB} are allowed");
            if under_attack > alone.max(second) * 2 {
                slow.push(format!("tokens {tokens}, {attack:?}: {under_attack:.1?}"));
            }
        }
    }
    ensure!(slow.is_empty(), "p99 more than twice as long as alone and as on the second gateway: {slow:#?}");
    Ok(())
}
