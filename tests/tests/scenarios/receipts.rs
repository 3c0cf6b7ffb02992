//! The receipt adds up, and says what the broker has left, whatever a task was at when the worker was told to
//! stop: queued, running, settling, waiting for its copy's confirm, or batched in a sink.

use anyhow::{Context, Result};
use garenne_common::shutdown::Receipt;
use garenne_tests::harness::{
    broker::{Broker, BrokerOptions},
    fault_proxy::FaultProxy,
    postgres::{Database, Postgres},
    process::Signal,
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::Worker,
};
use serde_json::json;

/// How many tasks are at what when the worker is told to stop.
const BATCHED: u64 = 6;
const RETRYING: u64 = 4;
const RUNNING: u64 = 4;
const QUEUED: u64 = 20;
const ALL: u64 = BATCHED + RETRYING + RUNNING + QUEUED;

/// The servers, which every mode hurts and heals again, and a worker's way to them.
struct Stage {
    broker: Broker,
    env: TestEnv,
    postgres: Postgres,
    database: Database,
    proxy: FaultProxy,
}

/// Starts a worker that will stop in this mode and lets it come to hold tasks in every state: Postgres is
/// frozen, and an alarm keeps copies from being confirmed.
async fn holding(mode: &str) -> Result<(Stage, Worker)> {
    let (broker, postgres) = tokio::try_join!(Broker::start(BrokerOptions::default()), Postgres::start())?;
    let (env, database) = (TestEnv::on(&broker).await?, postgres.database().await?);
    let (proxy, url) = FaultProxy::for_url(env.worker_url()).await?;
    let plan = env.worker_through(mode, &url)?.lane("fast:prefetch=50,concurrency=4..4");
    let plan = plan.option("--sink", "postgres").option("--postgres-url", database.url());
    let plan = plan.option("--shutdown-mode", mode).option("--shutdown-timeout", "30s");
    // Copies stay where they wait, to be counted.
    let plan = plan.option("--hard-grace", "500ms").env("GARENNE_RETRY__DELAYS", "1h");
    let worker = plan.start().await?;
    worker.signal(Signal::TSTP)?;
    env.until_no_consumer("fast").await?;
    env.publish("bench.noop", &json!({}), "batched", BATCHED as usize).await?;
    env.publish("bench.fail", &json!({"times": 1}), "retrying", RETRYING as usize).await?;
    env.publish("bench.sleep", &json!({"ms": 8000}), "running", RUNNING as usize).await?;
    env.publish("bench.noop", &json!({}), "queued", QUEUED as usize).await?;
    broker.set_memory_alarm(true).await?;
    postgres.pause().await?;
    worker.signal(Signal::CONT)?;
    worker.until_holds("fast", RUNNING as usize, QUEUED as usize).await?;
    Ok((Stage { broker, env, postgres, database, proxy }, worker))
}

impl Stage {
    /// What is left in the lane and waits on the ladder, and what is stored, say the same as the receipt.
    async fn agrees(&self, receipt: &Receipt) -> Result<()> {
        assert_eq!((receipt.delivered, receipt.lost_settlements), (ALL, 0), "{receipt:?}");
        assert_eq!(receipt.dead + receipt.quarantined + receipt.abandoned, 0, "{receipt:?}");
        self.env.until_queue("garenne.retry.fast.1h", receipt.retried as usize, 0).await?;
        self.env.agrees_with(receipt, ALL).await?;
        let client = self.database.connect().await?;
        let row = client.query_one("SELECT count(*) FROM garenne_results", &[]).await?;
        let stored = u64::try_from(row.get::<_, i64>(0)).context("a count")?;
        assert!(stored >= receipt.acked, "{stored} stored, {receipt:?}");
        Ok(())
    }

    /// Everything comes back to life while the worker stops; its settlements are held up on their way.
    async fn heal(&self, worker: &Worker) -> Result<()> {
        worker.until_logged("\"message\":\"stopping\"").await?;
        self.proxy.stall();
        self.postgres.unpause().await?;
        // Told to the broker, who cannot have heard of it yet.
        let acked = ["lane=\"fast\"", "settlement=\"acked\""];
        eventually("the batch is stored and settled", async || {
            let settled = worker.metric("garenne_settlements_total", &acked).await?;
            Ok(Seen::when(settled >= BATCHED as f64, settled))
        })
        .await?;
        self.broker.set_memory_alarm(false).await?;
        self.proxy.heal();
        Ok(())
    }
}

/// A stop that waits for what runs finds sink and broker well again: nothing is done twice or in vain.
async fn waits(mode: &str, finishes: u64) -> Result<()> {
    let (stage, worker) = holding(mode).await?;
    worker.signal(Signal::TERM)?;
    stage.heal(&worker).await?;
    let stopped = worker.stopped().await?;
    let receipt = &stopped.receipt;
    let expected = (finishes, RETRYING, ALL - finishes - RETRYING);
    assert_eq!((receipt.acked, receipt.retried, receipt.requeued), expected, "{receipt:?}");
    assert_eq!((stopped.code, receipt.escalated), (0, false), "{receipt:?}");
    stage.agrees(receipt).await
}

#[tokio::test]
async fn receipt_of_a_light_stop_amid_everything() -> Result<()> {
    waits("light", BATCHED + RUNNING + QUEUED).await
}

#[tokio::test]
async fn receipt_of_a_soft_stop_amid_everything() -> Result<()> {
    waits("soft", BATCHED + RUNNING).await
}

#[tokio::test]
async fn receipt_of_a_soft_timeout_stop_amid_everything() -> Result<()> {
    waits("soft-timeout", BATCHED + RUNNING).await
}

/// The broker's host hangs, and the kernel takes whatever is sent to it: what was handed back nobody has heard of.
#[tokio::test]
async fn receipt_counts_what_a_silent_broker_never_heard_as_lost() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let env = TestEnv::on(&broker).await?;
    let plan = env.worker("unheard")?.stdout().lane("fast:prefetch=20,concurrency=4..4");
    let worker = plan.option("--shutdown-mode", "hard").start().await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), "task", 20).await?;
    worker.until_holds("fast", 4, 16).await?;
    broker.pause().await?;
    let stopped = worker.stop().await?;
    let receipt = &stopped.receipt;
    assert_eq!((receipt.delivered, receipt.requeued, receipt.lost_settlements), (20, 0, 20), "{receipt:?}");
    broker.unpause().await?;
    env.until_lane("fast", 20, 0).await
}

/// A hard stop waits for nobody: what was not stored and what was not confirmed goes back.
#[tokio::test]
async fn receipt_of_a_hard_stop_amid_everything() -> Result<()> {
    let (stage, worker) = holding("hard").await?;
    let stopped = worker.stop().await?;
    let receipt = &stopped.receipt;
    assert_eq!((stopped.code, receipt.acked, receipt.requeued), (0, 0, ALL), "{receipt:?}");
    assert!(receipt.seconds < 10.0, "it waited for who does not answer: {receipt:?}");
    stage.postgres.unpause().await?;
    stage.broker.set_memory_alarm(false).await?;
    // Whatever copy was on its way when the worker gave up is detectable by its id; here there was none.
    stage.agrees(receipt).await
}
