//! All faults in one run: workers are killed and stopped, the broker is restarted, the network is cut. Every task
//! still takes effect once. The report stays in `target/tmp`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use garenne_tests::harness::{
    broker::{Broker, BrokerOptions},
    cluster::Cluster,
    fault_proxy::FaultProxy,
    postgres::Postgres,
    process::Program,
    suite,
    test_env::TestEnv,
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::unix::pipe,
};

/// Nodes of a cluster: a majority survives the loss of one.
const NODES: usize = 3;

/// Number of tasks, and of faults of each kind.
struct FaultLoad {
    /// The kind of the tasks, and their payload.
    task: [&'static str; 2],
    tasks: u64,
    kills: usize,
    softs: usize,
    hards: usize,
    restarts: usize,
    cuts: usize,
    /// How long a cut network forwards nothing.
    silence: &'static str,
    timeout: Duration,
}

/// Tasks that succeed at once.
const GOOD: [&str; 2] = ["bench.sleep", r#"{"ms":2}"#];

/// For each build.
const SHORT: FaultLoad = FaultLoad {
    task: GOOD,
    tasks: 20_000,
    kills: 10,
    softs: 5,
    hards: 5,
    restarts: 2,
    cuts: 1,
    silence: "2s",
    timeout: Duration::from_secs(900),
};

/// For `./dev test --full`. The network is silent for longer than two heartbeats, so that the workers close their
/// connections before the proxy resets them.
const LONG: FaultLoad = FaultLoad {
    task: GOOD,
    tasks: 200_000,
    kills: 30,
    softs: 10,
    hards: 10,
    restarts: 5,
    cuts: 3,
    silence: "25s",
    timeout: Duration::from_secs(1800),
};

/// Each task fails once, so that its copy waits in a retry queue.
const FAILING: FaultLoad = FaultLoad {
    task: ["bench.fail", r#"{"times":1}"#],
    tasks: 5_000,
    kills: 4,
    softs: 2,
    hards: 2,
    restarts: 1,
    cuts: 1,
    silence: "2s",
    timeout: Duration::from_secs(600),
};

#[tokio::test]
async fn chaos_loses_and_doubles_no_task() -> Result<()> {
    on_one_broker(if suite::is_full() { &LONG } else { &SHORT }, "chaos").await.map(drop)
}

#[tokio::test]
async fn chaos_loses_and_doubles_no_task_that_fails_once() -> Result<()> {
    let folder = on_one_broker(&FAILING, "chaos-failing").await?;
    // Those of killed workers are unknown.
    let mut retried = 0;
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        if path.to_string_lossy().ends_with(".receipt.json") {
            let receipt: Value = serde_json::from_slice(&fs::read(path)?)?;
            retried += receipt["retried"].as_u64().context("retried")?;
        }
    }
    ensure!(retried > FAILING.tasks / 10, "only {retried} tasks are known to have failed");
    Ok(())
}

/// Returns the folder of the report.
async fn on_one_broker(load: &FaultLoad, name: &str) -> Result<PathBuf> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let mut env = TestEnv::on(&broker).await?;
    let version = broker.version();
    let urls = [env.operator_url(), env.worker_url()].map(str::to_owned);
    env.garenne(&["topology", "apply"]).await?;
    let folder = drill(load, &env, &urls, &format!("{name}-{version}"), Brokers::Single(broker)).await?;
    env.reconnect().await?;
    check_no_copies(&env).await?;
    Ok(folder)
}

/// Checks that the queues of copies are empty: an effect that is stored once does not show whether a copy of its task is
/// left.
async fn check_no_copies(env: &TestEnv) -> Result<()> {
    let queues = env.vhost().view().queues().await?;
    let names: Vec<_> = queues.iter().map(|queue| queue.name.as_str()).collect();
    let of_copies = |name: &&&str| {
        ["garenne.dead", "garenne.unroutable"].contains(name) || name.starts_with("garenne.retry.")
    };
    let of_copies: Vec<_> = names.iter().filter(of_copies).collect();
    ensure!(of_copies.len() > 2, "no retry queues among {names:?}");
    for queue in of_copies {
        env.is_empty(queue).await?;
    }
    Ok(())
}

/// The nodes of a cluster are killed one after the other; clients reach it through a load balancer.
#[tokio::test]
async fn chaos_on_a_cluster_whose_nodes_are_killed() -> Result<()> {
    if !suite::is_full() || !Cluster::available().await {
        suite::leave_out("it needs `./dev test --full` and containers");
        return Ok(());
    }
    let cluster = Cluster::start(NODES, BrokerOptions::default()).await?;
    let env = TestEnv::on(cluster.node(0)).await?;
    let urls: Vec<_> = (0..NODES).map(|node| env.vhost().amqp_url_at(cluster.node(node))).collect();
    let (balancer, _) = FaultProxy::for_urls(&urls).await?;
    let version = cluster.node(0).version();
    env.garenne(&["topology", "apply"]).await?;
    let urls = [balancer.instead_of(env.operator_url())?, balancer.instead_of(env.worker_url())?];
    drill(&LONG, &env, &urls, &format!("chaos-cluster-{version}"), Brokers::Cluster(cluster)).await.map(drop)
}

/// The broker that the drill restarts.
enum Brokers {
    Single(Broker),
    Cluster(Cluster),
}

impl Brokers {
    async fn take_down(&self, turn: usize) -> Result<()> {
        match self {
            Self::Single(broker) if turn.is_multiple_of(2) => broker.kill().await,
            Self::Single(broker) => broker.stop().await,
            Self::Cluster(cluster) => cluster.node(turn % NODES).kill().await,
        }
    }

    async fn bring_back(&self, turn: usize) -> Result<()> {
        match self {
            Self::Single(broker) => broker.restart().await,
            Self::Cluster(cluster) => {
                let node = cluster.node(turn % NODES);
                node.restart().await?;
                node.exec_ctl(&["await_online_nodes", &NODES.to_string()]).await.map(drop)
            }
        }
    }
}

/// Drills the stock worker and checks the report against the guarantees. Operator and workers have separate URLs. Returns the
/// folder of the report.
async fn drill(
    load: &FaultLoad,
    env: &TestEnv,
    [operator, worker]: &[String; 2],
    name: &str,
    brokers: Brokers,
) -> Result<PathBuf> {
    let files = tempfile::tempdir()?;
    let database = Postgres::shared().await?.database().await?;
    let folder = report_folder(name)?;
    let ended = Program::new("garenne-drill")
        .arg("run")
        .option("--amqp-url", operator)
        .option("--worker-amqp-url", worker)
        .option("--postgres-url", database.url())
        .option("--report", &folder)
        .option("--kind", load.task[0])
        .option("--payload", load.task[1])
        .option("--tasks", load.tasks.to_string())
        .option("--kills", load.kills.to_string())
        .option("--softs", load.softs.to_string())
        .option("--hards", load.hards.to_string())
        .option("--broker-restarts", load.restarts.to_string())
        .option("--broker-restart", restart_command(brokers, files.path())?)
        .option("--cuts", load.cuts.to_string())
        .option("--pause-for", load.silence)
        .option("--seed", suite::seed(1)?.to_string())
        .arg("--json")
        .start()
        .await?
        .ended_within(load.timeout)
        .await?;
    let report: Value = serde_json::from_str(&ended.stdout.join("\n"))
        .with_context(|| format!("no report: {}", ended.stderr.join("\n")))?;
    eprintln!("{}\n{:#}", folder.display(), report["totals"]);
    let count = |what: &str| report["totals"][what].as_u64();
    if count("lost") != Some(0) {
        // A task that is still in a queue is late and not lost.
        eprintln!("queues at the end: {:#?}", env.vhost().view().queues().await);
    }
    assert_eq!((count("lost"), count("doubled")), (Some(0), Some(0)), "{report:#}");
    assert_eq!((count("sent"), count("once"), count("dead")), (Some(load.tasks), Some(load.tasks), Some(0)));
    assert_eq!((ended.code, &report["witness"]), (Some(0), &"postgres".into()));
    // The run counts only if every fault took place.
    let happenings = report["timeline"]["happenings"].as_array().context("happenings")?;
    let times = |act: &str| happenings.iter().filter(|it| it["act"] == act).count();
    assert_eq!(
        ["kill", "soft", "hard", "broker-restart", "cut"].map(times),
        [load.kills, load.softs, load.hards, load.restarts, load.cuts],
        "{report:#}"
    );
    // A worker that starts without a broker exits with a code in the end and is started again; that is no crash.
    let crashed =
        |line: &&String| line.contains(" crashed (signal") || line.contains(" crashed (exit status: 101");
    let crashed: Vec<_> = ended.stderr.iter().filter(crashed).collect();
    assert!(crashed.is_empty(), "{crashed:#?}");
    // Only for these faults: a worker's replacement may itself have been killed before it ran a task.
    for away in happenings.iter().filter(|it| ["broker-restart", "cut"].map(Value::from).contains(&it["act"]))
    {
        assert!(away["recovered_after"].is_number(), "no task was started afterwards: {away}");
    }
    Ok(folder)
}

/// Creates an empty folder of this name for the report.
fn report_folder(name: &str) -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    Ok(folder)
}

/// Returns a shell command that makes this test restart the broker. The command ends when the broker is down.
fn restart_command(brokers: Brokers, folder: &Path) -> Result<String> {
    let [asked, down] = ["asked", "down"].map(|name| folder.join(name));
    for pipe in [&asked, &down] {
        ensure!(Command::new("mkfifo").arg(pipe).status()?.success(), "mkfifo {}", pipe.display());
    }
    let line = format!("echo > '{}' && read -r _ < '{}'", asked.display(), down.display());
    // This process opens both ends of each pipe: a pipe without a reader or a writer is closed.
    let asked = pipe::OpenOptions::new().read_write(true).open_receiver(asked)?;
    let mut down = pipe::OpenOptions::new().read_write(true).open_sender(down)?;
    tokio::spawn(async move {
        let mut asked = BufReader::new(asked).lines();
        for turn in 0.. {
            asked.next_line().await?;
            brokers.take_down(turn).await?;
            down.write_all(b"\n").await?;
            brokers.bring_back(turn).await?;
        }
        anyhow::Ok(())
    });
    Ok(line)
}
