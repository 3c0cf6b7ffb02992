//! The shutdown receipt is complete and agrees with the broker's queues, whatever state tasks were in at the stop:
//! queued, running, being settled, waiting for their copy's confirm, or buffered for a sink.

use anyhow::Result;
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

/// How many tasks are in each state when the worker stops.
const BUFFERED: u64 = 6;
const RETRYING: u64 = 4;
const RUNNING: u64 = 4;
const QUEUED: u64 = 20;
const ALL: u64 = BUFFERED + RETRYING + RUNNING + QUEUED;

/// The servers of one test, and the proxy between worker and broker.
struct Servers {
    broker: Broker,
    env: TestEnv,
    postgres: Postgres,
    database: Database,
    proxy: FaultProxy,
}

/// Starts a worker that stops in this mode and waits until it holds tasks in every state. Postgres is frozen, and an
/// alarm delays the confirms of copies.
async fn worker_with_tasks_in_every_state(mode: &str) -> Result<(Servers, Worker)> {
    let (broker, postgres) = tokio::try_join!(Broker::start(BrokerOptions::default()), Postgres::start())?;
    let (env, database) = (TestEnv::on(&broker).await?, postgres.database().await?);
    let (proxy, url) = FaultProxy::for_url(env.worker_url()).await?;
    let plan = env.worker_through(mode, &url)?.lane("fast:prefetch=50,concurrency=4..4");
    let plan = plan.option("--sink", "postgres").option("--postgres-url", database.url());
    let plan = plan.option("--shutdown-mode", mode).option("--shutdown-timeout", "120s");
    // With this delay, copies stay in the retry queue and can be counted.
    let plan = plan.option("--hard-grace", "500ms").env("GARENNE_RETRY__DELAYS", "1h");
    let worker = plan.start().await?;
    worker.signal(Signal::TSTP)?;
    env.until_no_consumer("fast").await?;
    env.publish("bench.noop", &json!({}), "buffered", BUFFERED as usize).await?;
    env.publish("bench.fail", &json!({"times": 1}), "retrying", RETRYING as usize).await?;
    env.publish("bench.sleep", &json!({"ms": 8000}), "running", RUNNING as usize).await?;
    env.publish("bench.noop", &json!({}), "queued", QUEUED as usize).await?;
    broker.set_memory_alarm(true).await?;
    postgres.pause().await?;
    worker.signal(Signal::CONT)?;
    worker.until_holds("fast", RUNNING as usize, QUEUED as usize).await?;
    Ok((Servers { broker, env, postgres, database, proxy }, worker))
}

impl Servers {
    /// Checks that the queues of the lane and of retries and the stored results agree with the receipt.
    async fn check_receipt(&self, receipt: &Receipt) -> Result<()> {
        assert_eq!((receipt.delivered, receipt.lost_settlements), (ALL, 0), "{receipt:?}");
        assert_eq!(receipt.dead + receipt.quarantined + receipt.abandoned, 0, "{receipt:?}");
        self.env.until_queue("garenne.retry.fast.1h", receipt.retried as usize, 0).await?;
        self.env.check_receipt(receipt, ALL).await?;
        let stored = u64::try_from(self.database.count("garenne_results").await?)?;
        assert!(stored >= receipt.acked, "{stored} stored, {receipt:?}");
        Ok(())
    }

    /// Makes all servers work again while the worker stops; the proxy delays its settlements meanwhile.
    async fn restore(&self, worker: &Worker) -> Result<()> {
        worker.until_logged("\"message\":\"stopping\"").await?;
        self.proxy.stall();
        self.postgres.unpause().await?;
        // Sent, but the broker has not received them yet.
        let acked = ["lane=\"fast\"", "settlement=\"acked\""];
        eventually("the buffered results are stored and settled", async || {
            let settled = worker.metric("garenne_settlements_total", &acked).await?;
            Ok(Seen::when(settled >= BUFFERED as f64, settled))
        })
        .await?;
        self.broker.set_memory_alarm(false).await?;
        self.proxy.heal();
        Ok(())
    }
}

/// Stops in a mode that waits for running tasks, while sink and broker become available again. This number of tasks
/// must be done, and none twice.
async fn check_waiting_stop(mode: &str, finishes: u64) -> Result<()> {
    let (servers, worker) = worker_with_tasks_in_every_state(mode).await?;
    worker.signal(Signal::TERM)?;
    servers.restore(&worker).await?;
    let stopped = worker.stopped().await?;
    let receipt = &stopped.receipt;
    let expected = (finishes, RETRYING, ALL - finishes - RETRYING);
    assert_eq!((receipt.acked, receipt.retried, receipt.requeued), expected, "{receipt:?}");
    assert_eq!((stopped.code, receipt.escalated), (0, false), "{receipt:?}");
    servers.check_receipt(receipt).await
}

#[tokio::test]
async fn receipt_of_a_light_stop_with_tasks_in_every_state() -> Result<()> {
    check_waiting_stop("light", BUFFERED + RUNNING + QUEUED).await
}

#[tokio::test]
async fn receipt_of_a_soft_stop_with_tasks_in_every_state() -> Result<()> {
    check_waiting_stop("soft", BUFFERED + RUNNING).await
}

#[tokio::test]
async fn receipt_of_a_soft_timeout_stop_with_tasks_in_every_state() -> Result<()> {
    check_waiting_stop("soft-timeout", BUFFERED + RUNNING).await
}

/// The broker's host hangs while its kernel still accepts data, so requeues are sent and never processed.
#[tokio::test]
async fn receipt_counts_settlements_to_a_silent_broker_as_lost() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let env = TestEnv::on(&broker).await?;
    let plan = env.worker("w")?.option("--shutdown-mode", "hard");
    let worker = env.start_holding(plan, (4, 600_000), 16).await?;
    broker.pause().await?;
    let stopped = worker.stop().await?;
    let receipt = &stopped.receipt;
    assert_eq!((receipt.delivered, receipt.requeued, receipt.lost_settlements), (20, 0, 20), "{receipt:?}");
    broker.unpause().await?;
    env.until_lane("fast", 20, 0).await
}

/// A hard stop does not wait for servers: tasks whose result is not stored or whose copy is not confirmed are requeued.
#[tokio::test]
async fn receipt_of_a_hard_stop_with_tasks_in_every_state() -> Result<()> {
    let (servers, worker) = worker_with_tasks_in_every_state("hard").await?;
    let stopped = worker.stop().await?;
    let receipt = &stopped.receipt;
    assert_eq!((stopped.code, receipt.acked, receipt.requeued), (0, 0, ALL), "{receipt:?}");
    assert!(receipt.seconds < 25.0, "it waited for a server: {receipt:?}");
    servers.postgres.unpause().await?;
    servers.broker.set_memory_alarm(false).await?;
    // A copy in transit at the stop would be a duplicate with the same id; here there was none.
    servers.check_receipt(receipt).await
}
