//! Prefetch limits a worker's queue: per lane, never more deliveries are unacked, and exactly as many are under
//! backlog.

use anyhow::Result;
use garenne_tests::harness::{test_env::TestEnv, wait::Seen, wait::eventually};
use serde_json::json;

#[tokio::test]
async fn unacked_deliveries_of_a_lane_reach_and_never_exceed_its_prefetch() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("bounded")?.stdout();
    let worker = plan
        .lane("fast:prefetch=30,concurrency=2..4")
        .lane("slow:prefetch=7,concurrency=1..2")
        .env("GARENNE_LANES__SLOW__BINDINGS", "spectrum.#,alert.#,slow.#")
        .env("GARENNE_LANES__SLOW__DEFAULT_KIND", "bench.sleep")
        .start()
        .await?;
    eventually("the broker lists both consumers with their prefetch", async || {
        let consumers = env.vhost().view().consumers().await?;
        let lanes = consumers.iter().filter(|it| it.queue().starts_with("garenne.tasks."));
        let mut prefetch: Vec<_> = lanes.map(|it| (it.queue(), it.prefetch)).collect();
        prefetch.sort();
        let wanted = [("garenne.tasks.fast", 30), ("garenne.tasks.slow", 7)];
        Ok(Seen::when(prefetch == wanted, format_args!("{prefetch:?}")))
    })
    .await?;

    env.publish("bench.sleep", &json!({"ms": 20}), "fast", 1500).await?;
    env.publish("slow.work", &json!({"ms": 50}), "slow", 250).await?;
    let mut reached = (0, 0);
    eventually("both lanes done", async || {
        let view = env.vhost().view();
        let (fast, slow) = (view.queue("garenne.tasks.fast").await?, view.queue("garenne.tasks.slow").await?);
        if fast.unacked > 30 || slow.unacked > 7 {
            return Ok(Seen::Never(format!("too many unacked: {fast:?} {slow:?}")));
        }
        reached = (reached.0.max(fast.unacked), reached.1.max(slow.unacked));
        let left = fast.ready + fast.unacked + slow.ready + slow.unacked;
        Ok(Seen::when(left == 0 && worker.done()?.len() == 1750, format_args!("{left} left, {reached:?}")))
    })
    .await?;
    assert_eq!(reached, (30, 7), "maximum of unacked deliveries");
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.acked), (1750, 1750));
    Ok(())
}
