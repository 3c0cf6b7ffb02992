//! A connection that is lost again and again leaves nothing behind: neither memory nor file descriptors.

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

/// Seconds that count, and between two lost connections.
const LASTS: usize = 300;
const RECONNECT_EVERY: usize = 10;
/// Seconds before that. As many connections are lost as later on: a connection has threads of its own, and
/// the allocator takes a few MB for each thread it has not seen the like of.
const WARM_UP: usize = 60;
const WARM_RECONNECT_EVERY: usize = 2;
/// Tasks a second.
const RATE: usize = 100;
/// Resident memory may grow by so many MB in ten minutes.
const MOST_MB: f64 = 1.0;
/// File descriptors may be so many more or fewer than usual.
const MOST_FILES: usize = 2;

/// What the system says of the worker at some second.
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
async fn soak_with_a_reconnect_every_ten_seconds() -> Result<()> {
    if !suite::is_full() {
        suite::leave_out("five minutes, for `./dev test --full`");
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
    for second in 1..=WARM_UP + LASTS {
        seconds.tick().await;
        published.extend(env.publish("bench.noop", &json!({}), &second.to_string(), RATE).await?);
        let warm = second > WARM_UP;
        if second.is_multiple_of(if warm { RECONNECT_EVERY } else { WARM_RECONNECT_EVERY }) {
            if warm {
                // Just before the next loss: by now the worker has everything open again that it needs.
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
    let usual = files[files.len() / 2];
    eprintln!(
        "{growth:.2} MB in ten minutes, {:?} file descriptors; {samples:#?}",
        (files[0], usual, files.last())
    );
    assert!(growth < MOST_MB, "memory grows by {growth:.2} MB in ten minutes: {samples:#?}");
    assert!(files.iter().all(|count| count.abs_diff(usual) <= MOST_FILES), "file descriptors: {samples:#?}");
    Ok(())
}
