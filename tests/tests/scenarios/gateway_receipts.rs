//! A receipt means safe, whatever is killed when.

use std::{collections::BTreeSet, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use garenne_tests::harness::{
    broker::{Broker, BrokerOptions},
    client::Taken,
    gateway::GatewayPlan,
    postgres::Postgres,
    process::{Process, Program},
    suite,
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::WorkerPlan,
};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde_json::{Value, json};
use tokio::time::timeout;

const ROWS: usize = 1000;
/// Rows that are replayed while one worker is killed or stopped.
const PHASE: usize = 250;

/// What is offered to a gateway whose broker is blocked: senders at a time, posts of each, readings in a post.
const SENDERS: usize = 20;
const POSTS: usize = 20;
const READINGS: usize = 1000;

/// How much more memory it may have had for that, bytes: what the senders have on their way at a time.
const MEMORY: u64 = 20 << 20;

fn recording(path: &Path, rows: usize) -> Result<()> {
    let rows = (0..rows).map(|n| format!("{},{},{}\n", 1_767_225_600 + n * 60, n % 40, n % 100));
    let text: String =
        std::iter::once("timestamp,temperature_C,humidity_pct\n".to_owned()).chain(rows).collect();
    Ok(std::fs::write(path, text)?)
}

async fn until_receipts(path: &Path, count: usize) -> Result<()> {
    eventually(format!("{count} receipts"), async || {
        let lines = std::fs::read_to_string(path)?.lines().count();
        Ok(Seen::when(lines >= count, lines))
    })
    .await
}

/// Sends the recording in small batches, so that the gateway has something to gather.
async fn replay(to: &str, file: &Path, receipts: &Path) -> Result<Process> {
    let replay = Program::new("garenne-producer").arg("replay").arg(file).option("--to", to);
    replay.option("--receipts", receipts).option("--rate", "400").option("--batch", "10").start().await
}

/// Its summary says that nothing was given up, and its receipts are one for each reading.
async fn promised(replay: Process, receipts: &Path, rows: usize) -> Result<(Value, BTreeSet<String>)> {
    let ended = replay.ended().await?;
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
    let summary: Value = serde_json::from_str(&ended.stdout.join(""))?;
    assert_eq!((&summary["delivered"], &summary["undelivered"]), (&json!(2 * rows), &json!(0)), "{summary}");
    let promised: BTreeSet<String> = std::fs::read_to_string(receipts)?
        .lines()
        .map(|line| Ok(serde_json::from_str::<Value>(line)?["id"].as_str().unwrap_or_default().to_owned()))
        .collect::<Result<_>>()?;
    assert_eq!(promised.len(), 2 * rows, "a receipt per reading");
    Ok((summary, promised))
}

/// The tasks of a message: its own, or its records'.
fn tasks(taken: &Taken) -> Result<Vec<String>> {
    let written = taken.properties.content_type().as_ref().map(|it| it.as_str());
    if written != Some("application/vnd.garenne.batch+json") {
        return Ok(vec![taken.id().to_owned()]);
    }
    let records: Vec<Value> = serde_json::from_slice(&taken.body)?;
    Ok(records.iter().filter_map(|record| record["id"].as_str().map(str::to_owned)).collect())
}

/// What happens to the way of a reading.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    GatewayKilled,
    GatewayStopped,
    BrokerKilled,
    BrokerStopped,
}

/// Troubles at random moments, which are numbers of receipts: a slow machine sees the same.
fn schedule(seed: u64) -> Vec<(usize, Trouble)> {
    use Trouble::*;
    let mut random = StdRng::seed_from_u64(seed);
    let mut troubles = [GatewayKilled, GatewayKilled, GatewayStopped, BrokerKilled, BrokerStopped];
    troubles.shuffle(&mut random);
    // A queue that was just declared may not outlive a kill: that is the broker's limit.
    let mut moments = troubles.map(|_| random.random_range(ROWS / 4..ROWS * 9 / 5));
    moments.sort_unstable();
    moments.into_iter().zip(troubles).collect()
}

#[tokio::test]
async fn gateway_receipts_survive_deaths_of_gateway_and_broker_at_random() -> Result<()> {
    let rounds = if suite::is_full() { 5 } else { 1 };
    let first = suite::seed(1)?;
    for seed in (0..rounds).map(|round| first.wrapping_add(round)) {
        let schedule = schedule(seed);
        println!("seed {seed}: {schedule:?}");
        survives(schedule).await.with_context(|| format!("seed {seed}"))?;
    }
    Ok(())
}

/// Over HTTP and over lines, nothing that was receipted is missing in the end.
async fn survives(schedule: Vec<(usize, Trouble)>) -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let mut env = TestEnv::on(&broker).await?;
    let plan = GatewayPlan::new(&env)?;
    let gateway = plan.start().await?;
    let (file, receipts) = (env.folder().join("barn.csv"), env.folder().join("receipts.ndjson"));
    recording(&file, ROWS)?;
    let (other, others) = (env.folder().join("shed.csv"), env.folder().join("others.ndjson"));
    std::fs::copy(&file, &other)?;
    let over_http = replay(&gateway.url(), &file, &receipts).await?;
    let over_tcp = replay(&format!("tcp://{}", plan.address()), &other, &others).await?;

    let mut gateway = gateway;
    for (moment, trouble) in schedule {
        until_receipts(&receipts, moment).await?;
        match trouble {
            Trouble::GatewayKilled => {
                gateway.kill().await?;
                gateway = plan.start().await?;
            }
            Trouble::GatewayStopped => {
                gateway.stop().await?;
                gateway = plan.start().await?;
            }
            Trouble::BrokerKilled => {
                broker.kill().await?;
                broker.restart().await?;
            }
            Trouble::BrokerStopped => {
                broker.stop().await?;
                broker.restart().await?;
            }
        }
        gateway.until_ready(true).await?;
    }

    let (summary, mut promised_ids) = promised(over_http, &receipts, ROWS).await?;
    assert!(summary["retries"].as_u64() > Some(0), "nothing was in the way: {summary}");
    promised_ids.extend(promised(over_tcp, &others, ROWS).await?.1);
    assert_eq!(promised_ids.len(), 4 * ROWS);
    gateway.stop().await?;

    env.reconnect().await?;
    let mut kept = BTreeSet::new();
    let mut messages = 0;
    while let Some(taken) = env.client().take("garenne.tasks.fast").await? {
        kept.extend(tasks(&taken)?);
        messages += 1;
    }
    assert_eq!(promised_ids.difference(&kept).count(), 0, "promised and not kept");
    // A repetition carries the same ids; there is no other task.
    assert_eq!(kept.len(), 4 * ROWS);
    assert!(messages < 2 * ROWS, "{messages} messages: nothing was gathered");
    Ok(())
}

/// From the sensor to the row, while workers are killed and stopped: nothing lost, nothing twice.
#[tokio::test]
async fn gateway_receipts_are_rows_whatever_happens_to_the_workers() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let storing = |name: &str| -> Result<WorkerPlan> {
        let plan = env.worker(name)?.option("--sink", "postgres").option("--postgres-url", database.url());
        Ok(plan.lane("fast:prefetch=20,concurrency=2..2"))
    };
    let gateway = GatewayPlan::new(&env)?.start().await?;
    let steady = storing("steady")?.start().await?;
    let mut promised_ids = BTreeSet::new();
    for how in ["killed", "soft", "hard", "soft-timeout"] {
        let mut plan = storing(how)?;
        if how != "killed" {
            plan = plan.option("--shutdown-mode", how);
        }
        let worker = plan.start().await?;
        let (file, receipts) = (env.folder().join(format!("{how}.csv")), env.folder().join(how));
        recording(&file, PHASE)?;
        let replay = replay(&gateway.url(), &file, &receipts).await?;
        until_receipts(&receipts, PHASE / 5).await?;
        // Most is still to come, and it gets its share of that.
        env.freeze_holding(&worker, 1).await?;
        if how == "killed" {
            worker.kill().await?;
            eventually("what it held comes again", async || {
                let again = steady.metric("garenne_redeliveries_total", &[]).await?;
                Ok(Seen::when(again > 0.0, again))
            })
            .await?;
        } else {
            env.stop_frozen(&worker)?;
            let receipt = worker.stopped().await?.receipt;
            assert_eq!((receipt.mode.as_str(), receipt.abandoned), (how, 0), "{receipt:?}");
            assert!(receipt.delivered > 0, "{receipt:?}");
        }
        promised_ids.extend(promised(replay, &receipts, PHASE).await?.1);
    }
    gateway.stop().await?;
    env.until_lane("fast", 0, 0).await?;
    steady.stop().await?;

    let client = database.connect().await?;
    let rows = client.query("SELECT task_id FROM garenne_results", &[]).await?;
    let stored: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!((rows.len(), &stored), (4 * 2 * PHASE, &promised_ids));
    let readings: i64 =
        client.query_one("SELECT count(*) FROM garenne_readings WHERE raw IS NOT NULL", &[]).await?.get(0);
    assert_eq!(readings, 4 * 2 * PHASE as i64);
    env.is_empty("garenne.dead").await
}

#[tokio::test]
async fn gateway_a_blocked_broker_is_pushed_back_and_memory_stays_bounded() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let env = TestEnv::on(&broker).await?;
    let gateway = GatewayPlan::new(&env)?.start().await?;
    let reading = json!({"device": "a", "metric": "m", "value": 1}).to_string();
    assert_eq!(gateway.post("/v1/readings", "application/json", reading.as_str()).await?.status, 202);
    let before = gateway.process().peak_memory()?;
    broker.set_memory_alarm(true).await?;
    let refused = gateway.post("/v1/readings", "application/json", reading.as_str()).await?;
    assert_eq!((refused.status, refused.retry_after), (503, Some(1)), "{}", refused.body);
    // What it cannot pass on it does not keep: far more is offered than it may take.
    let many: Vec<_> = (0..READINGS)
        .map(|n| json!({"device": format!("device-{n}"), "metric": "temperature", "value": n, "time": n}))
        .collect();
    let body = json!(many).to_string();
    let offered = body.len() * SENDERS * POSTS;
    let sending = (0..SENDERS).map(async |_| {
        for _ in 0..POSTS {
            let answer = gateway.post("/v1/readings", "application/json", body.as_str()).await?;
            ensure!(answer.status == 503, "{} {}", answer.status, answer.body);
        }
        Ok(())
    });
    try_join_all(sending).await?;
    let grown = gateway.process().peak_memory()?.saturating_sub(before);
    println!("{} MiB offered, {} MiB more at the peak", offered >> 20, grown >> 20);
    ensure!(grown < MEMORY && offered as u64 > MEMORY, "{grown} bytes more of {offered} offered");
    broker.set_memory_alarm(false).await?;
    eventually("the gateway takes readings again", async || {
        let answer = gateway.post("/v1/readings", "application/json", reading.as_str()).await?;
        Ok(Seen::when(answer.status == 202, answer.status))
    })
    .await?;
    gateway.stop().await?;
    Ok(())
}

/// A broker that takes readings and confirms none: whoever comes is told so at once, and the readings whose
/// confirms came in the end have their receipts.
#[tokio::test]
async fn gateway_refuses_at_once_while_a_confirm_is_overdue() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let mut env = TestEnv::on(&broker).await?;
    let plan = GatewayPlan::new(&env)?.env("GARENNE_GATEWAY__MAX_CONFIRM_LATENCY", "1s");
    let gateway = plan.start().await?;
    let reading = |n: u32| json!({"device": "a", "metric": "m", "value": n, "time": n}).to_string();
    let post = async |n| gateway.post("/v1/readings", "application/json", reading(n)).await;
    let mut receipted: BTreeSet<String> = post(1).await?.ids()?.into_iter().collect();
    broker.pause().await?;
    let meanwhile = async {
        eventually("it is overdue", async || {
            // One that came before it was overdue waits as the first does.
            let answer =
                timeout(Duration::from_millis(500), post(3)).await.context("no answer at once")??;
            Ok(Seen::when(answer.status == 503, format_args!("{answer:?}")))
        })
        .await?;
        let refused = post(4).await?;
        assert_eq!((refused.status, refused.retry_after), (503, Some(1)), "{}", refused.body);
        assert_eq!(refused.body["code"], "busy", "{}", refused.body);
        let line = gateway.lines(&[&reading(5)]).await?.remove(0);
        let words = "error busy publisher is busy: no confirm of an earlier message within 1s";
        assert_eq!(line, words);
        broker.unpause().await
    };
    let (waited, refused) = tokio::join!(post(2), meanwhile);
    refused?;
    receipted.extend(waited?.ids()?);
    eventually("the gateway takes readings again", async || {
        let answer = post(6).await?;
        Ok(Seen::when(answer.status == 202, answer.status))
    })
    .await?;
    receipted.extend(post(7).await?.ids()?);
    gateway.stop().await?;
    env.reconnect().await?;
    let mut kept = BTreeSet::new();
    while let Some(taken) = env.client().take("garenne.tasks.fast").await? {
        kept.extend(tasks(&taken)?);
    }
    assert_eq!(receipted.len(), 3);
    assert_eq!(receipted.difference(&kept).count(), 0, "promised and not kept");
    Ok(())
}

#[tokio::test]
async fn gateway_finds_its_broker_again_when_nobody_sends() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let env = TestEnv::on(&broker).await?;
    let mut gateway = GatewayPlan::new(&env)?.start().await?;
    gateway.until_ready(true).await?;
    broker.stop().await?;
    gateway.until_ready(false).await?;
    broker.restart().await?;
    gateway.until_ready(true).await?;
    let reading = json!({"device": "a", "metric": "m", "value": 1}).to_string();
    assert_eq!(gateway.post("/v1/readings", "application/json", reading).await?.status, 202);
    gateway.stop().await?;
    Ok(())
}
