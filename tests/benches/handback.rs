//! How long it takes until what a stopping worker held is delivered elsewhere.
//!
//! `cargo bench -p garenne-tests --bench handback -- [--runs N] [--json FILE]`
//!
//! In each run a worker holds 1,000 tasks when SIGTERM comes, and somebody else has credit for as many. The
//! clock runs from the signal to each delivery there. That nothing of it is counted as an attempt is checked
//! on every message.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use garenne_bench::{Rows, number};
use garenne_tests::harness::{client::Client, process::Signal, test_env::TestEnv};
use lapin::{
    options::{BasicConsumeOptions, BasicQosOptions, QueuePurgeOptions},
    types::FieldTable,
};
use serde_json::json;

/// Tasks held, and credit elsewhere.
const HELD: usize = 1000;
/// Of the goal.
const RUNS: usize = 20;

#[tokio::main]
async fn main() -> Result<()> {
    let runs = number("--runs", RUNS).map_err(anyhow::Error::msg)?;
    let env = TestEnv::new().await?;
    let mut rows = Rows::default();
    for run in 0..runs {
        let mut waits = hand_back(&env, run).await?;
        waits.sort_by(f64::total_cmp);
        for (name, place) in [("p50_ms", HELD / 2), ("p99_ms", HELD * 99 / 100)] {
            rows.add(format!("handback/{HELD}/{name}"), "ms", waits[place - 1]);
        }
    }
    rows.publish()?;
    Ok(())
}

/// One stop; milliseconds from the signal to each delivery elsewhere.
async fn hand_back(env: &TestEnv, run: usize) -> Result<Vec<f64>> {
    // The one that runs is interrupted after the default mode's timeout and comes last.
    let stopping = env
        .worker(&format!("stopping-{run}"))?
        .stdout()
        .lane(&format!("fast:prefetch={HELD},concurrency=1..1"))
        .option("--shutdown-timeout", "1s")
        .start()
        .await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), &format!("run-{run}"), HELD).await?;
    stopping.until_holds("fast", 1, HELD - 1).await?;

    let elsewhere = Client::connect(&env.vhost().amqp_url()).await?;
    let channel = elsewhere.channel();
    channel.basic_qos(u16::try_from(HELD)?, BasicQosOptions::default()).await?;
    let (queue, options) = ("garenne.tasks.fast", BasicConsumeOptions::default());
    let mut deliveries =
        channel.basic_consume(queue.into(), "elsewhere".into(), options, FieldTable::default()).await?;

    let signalled = Instant::now();
    stopping.signal(Signal::TERM)?;
    let mut waits = Vec::with_capacity(HELD);
    while waits.len() < HELD {
        let delivery = deliveries.next().await.context("the broker ended it")??;
        waits.push(signalled.elapsed().as_secs_f64() * 1e3);
        let headers = delivery.properties.headers().as_ref();
        let spent = headers.is_some_and(|headers| headers.inner().contains_key("garenne-attempt"));
        ensure!(!spent, "a hand-back was counted as an attempt: {:?}", delivery.properties);
    }
    let receipt = stopping.stopped().await?.receipt;
    ensure!((receipt.delivered, receipt.requeued) == (HELD as u64, HELD as u64), "{receipt:?}");
    // Not acknowledged: they come back when this connection is gone, and the next run wants none of them.
    channel.close(200, "done".into()).await?;
    drop(elsewhere);
    env.until_ready("fast", HELD).await?;
    env.client().channel().queue_purge(queue.into(), QueuePurgeOptions::default()).await?;
    Ok(waits)
}
