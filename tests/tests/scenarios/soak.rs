//! Repeated connection losses leak neither memory nor file descriptors.

use std::{collections::BTreeSet, fs, time::Duration};

use anyhow::{Context, Result};
use garenne_tests::harness::{
    fault_proxy::FaultProxy,
    suite,
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use serde_json::json;
use tokio::time::interval;

/// Seconds of the measurement, and between two connection losses.
const DURATION: usize = 300;
const RECONNECT_EVERY: usize = 10;
/// Seconds before the measurement, with as many connection losses as during it: each connection has its own threads,
/// and the allocator reserves a few MB for each new thread.
const WARM_UP: usize = 60;
const WARM_RECONNECT_EVERY: usize = 2;
/// Tasks a second.
const RATE: usize = 100;
/// Maximum growth of resident memory in ten minutes, MB.
const MAX_GROWTH_MB: f64 = 1.0;
/// Maximum difference of the number of file descriptors from its median.
const MAX_FILES_DIFFERENCE: usize = 2;

/// The worker's resources at one second.
#[derive(Debug)]
struct Sample {
    second: f64,
    mb: f64,
    files: usize,
}

fn sample(second: usize, process: u32) -> Result<Sample> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kib: f64 = rss.split_whitespace().next().context("a number")?.parse()?;
    let files = fs::read_dir(format!("/proc/{process}/fd"))?.count();
    Ok(Sample { second: second as f64, mb: kib / 1024.0, files })
}

/// MB a second, by least squares.
fn slope(samples: &[Sample]) -> f64 {
    let count = samples.len() as f64;
    let mean = |of: fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>() / count;
    let (second, mb) = (mean(|it| it.second), mean(|it| it.mb));
    let both: f64 = samples.iter().map(|it| (it.second - second) * (it.mb - mb)).sum();
    both / samples.iter().map(|it| (it.second - second).powi(2)).sum::<f64>()
}

#[tokio::test]
async fn soak_with_a_connection_loss_every_ten_seconds() -> Result<()> {
    if !suite::is_full() {
        suite::leave_out("it takes five minutes and needs `./dev test --full`");
        return Ok(());
    }
    let env = TestEnv::new().await?;
    let (proxy, url) = FaultProxy::for_url(env.worker_url()).await?;
    let worker =
        env.worker_through("soaking", &url)?.stdout().lane("fast:prefetch=50,concurrency=4..4").start();
    let worker = worker.await?;
    let mut published: BTreeSet<String> = BTreeSet::new();
    let mut samples = Vec::new();
    let mut seconds = interval(Duration::from_secs(1));
    for second in 1..=WARM_UP + DURATION {
        seconds.tick().await;
        published.extend(env.publish("bench.noop", &json!({}), &second.to_string(), RATE).await?);
        let warm = second > WARM_UP;
        if second.is_multiple_of(if warm { RECONNECT_EVERY } else { WARM_RECONNECT_EVERY }) {
            if warm {
                // Just before the next loss, when the worker has reopened all connections.
                samples.push(sample(second, worker.id())?);
            }
            proxy.drop_connections();
        }
    }
    eventually("every task is done", async || {
        let done: BTreeSet<_> = worker.done()?.into_iter().map(|done| done.task_id).collect();
        let missing: Vec<_> = published.difference(&done).collect();
        Ok(Seen::when(missing.is_empty(), format_args!("missing: {missing:?}")))
    })
    .await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.abandoned, receipt.dead, receipt.retried), (0, 0, 0), "{receipt:?}");

    let growth = slope(&samples) * 600.0;
    let mut files: Vec<_> = samples.iter().map(|it| it.files).collect();
    files.sort_unstable();
    let median = files[files.len() / 2];
    eprintln!(
        "{growth:.2} MB in ten minutes, {:?} file descriptors; {samples:#?}",
        (files[0], median, files.last())
    );
    assert!(growth < MAX_GROWTH_MB, "memory grows by {growth:.2} MB in ten minutes: {samples:#?}");
    assert!(
        files.iter().all(|count| count.abs_diff(median) <= MAX_FILES_DIFFERENCE),
        "file descriptors: {samples:#?}"
    );
    Ok(())
}
