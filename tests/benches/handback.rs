//! How long it takes until the deliveries of a stopping worker are delivered to another consumer.
//!
//! `cargo bench -p garenne-tests --bench handback -- [--runs N] [--json FILE]`
//!
//! In each run a worker holds 1,000 tasks at SIGTERM, and another consumer has credit for as many. The time is measured
//! from the signal to each delivery at that consumer. Every message is checked: a requeue must not spend an attempt.

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

/// Tasks that the worker holds, and prefetch of the other consumer.
const HELD: usize = 1000;
/// Default number of runs, which the documented goal refers to.
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

/// One stop. Returns the milliseconds from the signal to each delivery at the other consumer.
async fn hand_back(env: &TestEnv, run: usize) -> Result<Vec<f64>> {
    // The running task is interrupted after the default mode's timeout, so it is delivered last.
    let stopping = env
        .worker(&format!("stopping-{run}"))?
        .stdout()
        .lane(&format!("fast:prefetch={HELD},concurrency=1..1"))
        .option("--shutdown-timeout", "1s")
        .start()
        .await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), &format!("run-{run}"), HELD).await?;
    stopping.until_holds("fast", 1, HELD - 1).await?;

    let other = Client::connect(&env.vhost().amqp_url()).await?;
    let channel = other.channel();
    channel.basic_qos(u16::try_from(HELD)?, BasicQosOptions::default()).await?;
    let (queue, options) = ("garenne.tasks.fast", BasicConsumeOptions::default());
    let mut deliveries =
        channel.basic_consume(queue.into(), "other".into(), options, FieldTable::default()).await?;

    let signalled = Instant::now();
    stopping.signal(Signal::TERM)?;
    let mut waits = Vec::with_capacity(HELD);
    while waits.len() < HELD {
        let delivery = deliveries.next().await.context("the broker cancelled the consumer")??;
        waits.push(signalled.elapsed().as_secs_f64() * 1e3);
        let headers = delivery.properties.headers().as_ref();
        let spent = headers.is_some_and(|headers| headers.inner().contains_key("garenne-attempt"));
        ensure!(!spent, "a requeue was counted as an attempt: {:?}", delivery.properties);
    }
    let receipt = stopping.stopped().await?.receipt;
    ensure!((receipt.delivered, receipt.requeued) == (HELD as u64, HELD as u64), "{receipt:?}");
    // The deliveries are not acknowledged, so the broker requeues them; they are purged before the next run.
    channel.close(200, "done".into()).await?;
    drop(other);
    env.until_ready("fast", HELD).await?;
    env.client().channel().queue_purge(queue.into(), QueuePurgeOptions::default()).await?;
    Ok(waits)
}
