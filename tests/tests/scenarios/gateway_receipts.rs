//! A reading with a receipt is stored, whichever process is killed or stopped at whatever time.

use std::{collections::BTreeSet, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use garenne_tests::harness::{
    broker::{Broker, BrokerOptions},
    client::Taken,
    gateway::{Answer, GatewayPlan},
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
const PHASE: usize = 750;

/// Load on a gateway whose broker is blocked: concurrent senders, requests per sender, readings per request.
const SENDERS: usize = 20;
const POSTS: usize = 20;
const READINGS: usize = 1000;

/// Maximum growth of the gateway's peak memory in bytes: the requests that are in transit at the same time.
const MAX_GROWTH: u64 = 20 << 20;

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

/// Sends the recording in small batches, so that the gateway can group readings into messages.
async fn replay(to: &str, file: &Path, receipts: &Path) -> Result<Process> {
    let replay = Program::new("garenne-producer").arg("replay").arg(file).option("--to", to);
    replay
        .option("--receipts", receipts)
        .option("--rate", "400")
        .option("--batch", "10")
        .option("--retry-for", "10m")
        .start()
        .await
}

/// Checks that the replay delivered every reading and has a receipt for each. Returns its summary and the task ids.
async fn finished_replay(replay: Process, receipts: &Path, rows: usize) -> Result<(Value, BTreeSet<String>)> {
    let ended = replay.ended().await?;
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
    let summary: Value = serde_json::from_str(&ended.stdout.join(""))?;
    assert_eq!((&summary["delivered"], &summary["undelivered"]), (&json!(2 * rows), &json!(0)), "{summary}");
    let ids: BTreeSet<String> = std::fs::read_to_string(receipts)?
        .lines()
        .map(|line| Ok(serde_json::from_str::<Value>(line)?["id"].as_str().unwrap_or_default().to_owned()))
        .collect::<Result<_>>()?;
    assert_eq!(ids.len(), 2 * rows, "each reading has a receipt");
    Ok((summary, ids))
}

/// The task ids of a message: its own, or those of its records.
fn tasks(taken: &Taken) -> Result<Vec<String>> {
    let written = taken.properties.content_type().as_ref().map(|it| it.as_str());
    if written != Some("application/vnd.garenne.batch+json") {
        return Ok(vec![taken.id().to_owned()]);
    }
    let records: Vec<Value> = serde_json::from_slice(&taken.body)?;
    Ok(records.iter().filter_map(|record| record["id"].as_str().map(str::to_owned)).collect())
}

/// A fault of the gateway or the broker.
#[derive(Clone, Copy, Debug)]
enum Fault {
    GatewayKilled,
    GatewayStopped,
    BrokerKilled,
    BrokerStopped,
}

/// Faults at random times. A time is a number of receipts, so that a slow machine has the same schedule.
fn schedule(seed: u64) -> Vec<(usize, Fault)> {
    use Fault::*;
    let mut random = StdRng::seed_from_u64(seed);
    let mut faults = [GatewayKilled, GatewayKilled, GatewayStopped, BrokerKilled, BrokerStopped];
    faults.shuffle(&mut random);
    // Not earlier: a broker that is killed just after a queue's declaration can lose the queue.
    let mut times = faults.map(|_| random.random_range(ROWS / 4..ROWS * 9 / 5));
    times.sort_unstable();
    times.into_iter().zip(faults).collect()
}

#[tokio::test]
async fn gateway_receipts_survive_kills_and_stops_of_gateway_and_broker() -> Result<()> {
    let rounds = if suite::is_full() { 5 } else { 1 };
    let first = suite::seed(1)?;
    for seed in (0..rounds).map(|round| first.wrapping_add(round)) {
        let schedule = schedule(seed);
        println!("seed {seed}: {schedule:?}");
        check_receipts(schedule).await.with_context(|| format!("seed {seed}"))?;
    }
    Ok(())
}

/// Replays over HTTP and over TCP through these faults and checks that every reading with a receipt is stored.
async fn check_receipts(schedule: Vec<(usize, Fault)>) -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let mut env = TestEnv::on(&broker).await?;
    let plan = GatewayPlan::new(&env)?;
    let gateway = plan.start().await?;
    broker.sync_declarations().await?;
    let (file, receipts) = (env.folder().join("barn.csv"), env.folder().join("receipts.ndjson"));
    recording(&file, ROWS)?;
    let (other, others) = (env.folder().join("shed.csv"), env.folder().join("others.ndjson"));
    std::fs::copy(&file, &other)?;
    let over_http = replay(&gateway.url(), &file, &receipts).await?;
    let over_tcp = replay(&format!("tcp://{}", plan.address()), &other, &others).await?;

    let mut gateway = gateway;
    for (time, fault) in schedule {
        until_receipts(&receipts, time).await?;
        match fault {
            Fault::GatewayKilled => {
                gateway.kill().await?;
                gateway = plan.start().await?;
            }
            Fault::GatewayStopped => {
                gateway.stop().await?;
                gateway = plan.start().await?;
            }
            Fault::BrokerKilled => {
                broker.kill().await?;
                broker.restart().await?;
            }
            Fault::BrokerStopped => {
                broker.stop().await?;
                broker.restart().await?;
            }
        }
        gateway.until_ready(true).await?;
    }

    let (summary, mut receipted) = finished_replay(over_http, &receipts, ROWS).await?;
    assert!(summary["retries"].as_u64() > Some(0), "no request was repeated: {summary}");
    receipted.extend(finished_replay(over_tcp, &others, ROWS).await?.1);
    assert_eq!(receipted.len(), 4 * ROWS);
    gateway.stop().await?;

    env.reconnect().await?;
    let mut kept = BTreeSet::new();
    let mut messages = 0;
    while let Some(taken) = env.client().take("garenne.tasks.fast").await? {
        kept.extend(tasks(&taken)?);
        messages += 1;
    }
    assert_eq!(receipted.difference(&kept).count(), 0, "readings with a receipt are not stored");
    // A repetition has the same ids, so the queue contains no other tasks.
    assert_eq!(kept.len(), 4 * ROWS);
    assert!(messages < 2 * ROWS, "{messages} messages: readings were not grouped");
    Ok(())
}

/// From the sensor to the database, while workers are killed and stopped: no reading is lost or stored twice.
#[tokio::test]
async fn gateway_receipts_become_rows_while_workers_are_killed_and_stopped() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let storing = |name: &str| -> Result<WorkerPlan> {
        let plan = env.worker(name)?.option("--sink", "postgres").option("--postgres-url", database.url());
        Ok(plan.lane("fast:prefetch=20,concurrency=2..2"))
    };
    let gateway = GatewayPlan::new(&env)?.start().await?;
    let steady = storing("steady")?.start().await?;
    let mut receipted = BTreeSet::new();
    for how in ["killed", "soft", "hard", "soft-timeout"] {
        let mut plan = storing(how)?;
        if how != "killed" {
            plan = plan.option("--shutdown-mode", how);
        }
        let worker = plan.start().await?;
        let (file, receipts) = (env.folder().join(format!("{how}.csv")), env.folder().join(how));
        recording(&file, PHASE)?;
        let replay = replay(&gateway.url(), &file, &receipts).await?;
        until_receipts(&receipts, PHASE / 15).await?;
        // Most readings follow later, and this worker receives a part of them.
        env.freeze_holding(&worker, 1).await?;
        if how == "killed" {
            worker.kill().await?;
            eventually("its deliveries are redelivered", async || {
                let redelivered = steady.metric("garenne_redeliveries_total", &[]).await?;
                Ok(Seen::when(redelivered > 0.0, redelivered))
            })
            .await?;
        } else {
            env.stop_frozen(&worker)?;
            let receipt = worker.stopped().await?.receipt;
            assert_eq!((receipt.mode.as_str(), receipt.abandoned), (how, 0), "{receipt:?}");
            assert!(receipt.delivered > 0, "{receipt:?}");
        }
        receipted.extend(finished_replay(replay, &receipts, PHASE).await?.1);
    }
    gateway.stop().await?;
    database.until_count("garenne_results", 4 * 2 * PHASE as i64).await?;
    env.until_lane("fast", 0, 0).await?;
    steady.stop().await?;

    let rows = database.connect().await?.query("SELECT task_id FROM garenne_results", &[]).await?;
    let stored: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!((rows.len(), &stored), (4 * 2 * PHASE, &receipted));
    assert_eq!(database.count("garenne_readings WHERE raw IS NOT NULL").await?, 4 * 2 * PHASE as i64);
    env.is_empty("garenne.dead").await
}

/// Whether a gateway that refused readings accepts them again.
fn accepted(answer: Answer) -> Result<Seen<()>> {
    Ok(match answer.status {
        202 => Seen::Wanted(()),
        503 => Seen::Other("503".to_owned()),
        _ => Seen::Never(format!("{answer:?}")),
    })
}

#[tokio::test]
async fn gateway_refuses_readings_while_the_broker_is_blocked_and_bounds_its_memory() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let env = TestEnv::on(&broker).await?;
    let gateway = GatewayPlan::new(&env)?.start().await?;
    let reading = json!({"device": "a", "metric": "m", "value": 1}).to_string();
    assert_eq!(gateway.post("/v1/readings", "application/json", reading.as_str()).await?.status, 202);
    let before = gateway.process().peak_memory()?;
    broker.set_memory_alarm(true).await?;
    let refused = eventually("a refusal: the alarm reaches connections a little later", async || {
        let answer = gateway.post("/v1/readings", "application/json", reading.as_str()).await?;
        Ok(if answer.status == 503 { Seen::Wanted(answer) } else { Seen::Other(answer.status.to_string()) })
    })
    .await?;
    assert_eq!(refused.retry_after, Some(1), "{}", refused.body);
    // The senders offer much more than the gateway's memory may grow by; it must not keep refused readings.
    let many: Vec<_> = (0..READINGS)
        .map(|n| json!({"device": format!("device-{n}"), "metric": "temperature", "value": n, "time": 1_790_000_000 + n}))
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
    ensure!(grown < MAX_GROWTH && offered as u64 > MAX_GROWTH, "{grown} bytes more of {offered} offered");
    broker.set_memory_alarm(false).await?;
    eventually("the gateway accepts readings again", async || {
        accepted(gateway.post("/v1/readings", "application/json", reading.as_str()).await?)
    })
    .await?;
    gateway.stop().await?;
    Ok(())
}

/// A broker that accepts messages and confirms none. New readings are refused at once, and readings that are
/// confirmed later get their receipts.
#[tokio::test]
async fn gateway_refuses_at_once_while_a_confirm_is_overdue() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let mut env = TestEnv::on(&broker).await?;
    let plan = GatewayPlan::new(&env)?.env("GARENNE_GATEWAY__MAX_CONFIRM_LATENCY", "1s");
    let gateway = plan.start().await?;
    let reading =
        |n: u32| json!({"device": "a", "metric": "m", "value": n, "time": 1_790_000_000 + n}).to_string();
    let post = async |n| gateway.post("/v1/readings", "application/json", reading(n)).await;
    let mut receipted: BTreeSet<String> = post(1).await?.ids()?.into_iter().collect();
    broker.pause().await?;
    let meanwhile = async {
        eventually("a confirm is overdue", async || {
            // A reading that arrives before the confirm is overdue waits for its own confirm.
            let answer =
                timeout(Duration::from_millis(500), post(3)).await.context("no answer at once")??;
            Ok(match answer.status {
                503 => Seen::Wanted(()),
                _ => Seen::Never(format!("an answer without a confirm: {answer:?}")),
            })
        })
        .await?;
        let refused = post(4).await?;
        assert_eq!((refused.status, refused.retry_after), (503, Some(1)), "{}", refused.body);
        assert_eq!(refused.body["code"], "busy", "{}", refused.body);
        let line = gateway.lines(&[&reading(5)]).await?.remove(0);
        let expected = "error busy publisher is busy: no confirm of an earlier message within 1s";
        assert_eq!(line, expected);
        broker.unpause().await
    };
    let (waited, refused) = tokio::join!(post(2), meanwhile);
    refused?;
    receipted.extend(waited?.ids()?);
    eventually("the gateway accepts readings again", async || accepted(post(6).await?)).await?;
    receipted.extend(post(7).await?.ids()?);
    gateway.stop().await?;
    env.reconnect().await?;
    let mut kept = BTreeSet::new();
    while let Some(taken) = env.client().take("garenne.tasks.fast").await? {
        kept.extend(tasks(&taken)?);
    }
    assert_eq!(receipted.len(), 3);
    assert_eq!(receipted.difference(&kept).count(), 0, "readings with a receipt are not stored");
    Ok(())
}

#[tokio::test]
async fn gateway_reconnects_to_the_broker_without_any_request() -> Result<()> {
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
