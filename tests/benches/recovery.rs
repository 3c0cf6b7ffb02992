//! How long after a broker's restart a worker starts a task again.
//!
//! `cargo bench -p garenne-tests --bench recovery -- [--runs N] [--json FILE]`
//!
//! The broker is killed and stopped in turns and started again. The time is measured from the first accepted connection
//! to the start of a task on the worker. The task is published as soon as the broker accepts it.

use std::time::SystemTime;

use anyhow::{Context, Result};
use garenne_bench::{Rows, number};
use garenne_protocol::task::epoch_ms;
use garenne_tests::harness::{
    broker::{Broker, BrokerOptions},
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use serde_json::json;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::time::Instant;

const RUNS: usize = 10;

#[tokio::main]
async fn main() -> Result<()> {
    let runs = number("--runs", RUNS).map_err(anyhow::Error::msg)?;
    let broker = Broker::start(BrokerOptions::default()).await?;
    let mut env = TestEnv::on(&broker).await?;
    let worker = env.worker("recovering")?.stdout().lane("fast:prefetch=20,concurrency=2..2").start().await?;
    env.publish("bench.noop", &json!({}), "before", 1).await?;
    worker.until_done(1).await?;
    let mut rows = Rows::default();
    for run in 0..runs {
        let (how, down) =
            if run % 2 == 0 { ("kill", broker.kill().await) } else { ("stop", broker.stop().await) };
        down?;
        let accepted = broker.restart_until_it_accepts_clients().await?;
        let accepted = SystemTime::now() - (Instant::now() - accepted);
        eventually("a task is published", async || {
            env.reconnect().await?;
            env.publish("bench.noop", &json!({}), &format!("run-{run}"), 1).await?;
            Ok(Seen::Wanted(()))
        })
        .await?;
        let done = worker.until_done_with(&format!("run-{run}-0")).await?;
        let begun = OffsetDateTime::parse(&done.started_at, &Rfc3339).context("started_at")?;
        let wait = epoch_ms(begun.into()) - epoch_ms(accepted);
        rows.add(format!("recovery/{how}/ms"), "ms", wait as f64);
    }
    rows.publish()?;
    Ok(())
}
