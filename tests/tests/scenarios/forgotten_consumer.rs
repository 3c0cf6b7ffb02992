//! A consumer that receives nothing, although its connection is open, its queue has messages and it has credit. No
//! error reports this.

use anyhow::Result;
use garenne_tests::harness::{
    frame_proxy::FrameProxy,
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use serde_json::json;

#[tokio::test]
async fn forgotten_consumer_is_detected_and_created_again() -> Result<()> {
    const COUNT: usize = 50;
    let env = TestEnv::new().await?;
    let proxy = FrameProxy::for_url(&env.vhost().amqp_url()).await?;
    let plan = env.worker_at("forgotten", proxy.url())?.stdout();
    let mut worker = plan.lane("fast:prefetch=20,concurrency=4..4").start().await?;
    let pid = worker.id();
    env.publish("bench.noop", &json!({}), "before", 10).await?;
    worker.until_done(10).await?;
    proxy.forget("forgotten.fast");
    env.publish("bench.noop", &json!({}), "during", COUNT).await?;
    // For the broker, a whole prefetch is delivered; the rest waits.
    env.until_lane("fast", COUNT - 20, 20).await?;
    assert_eq!((proxy.dropped(), worker.done()?.len()), (20, 10));
    worker.until_logged("messages are ready, there is credit, but none is delivered").await?;
    worker.until_done(10 + COUNT).await?;
    worker.until_ready().await?;
    assert_eq!(worker.id(), pid);
    // The connection works, so a new channel on it suffices.
    let metrics = worker.get("/metrics").await?;
    let reconnects = metrics.lines().filter(|line| line.starts_with("garenne_reconnects_total{"));
    let counted: Vec<_> = reconnects.filter(|line| !line.ends_with(" 0")).collect();
    assert!(counted.is_empty(), "{counted:?}");
    eventually("one consumer with its prefetch", async || {
        let consumers = env.vhost().view().consumers().await?;
        let lane = consumers.iter().filter(|it| it.queue() == "garenne.tasks.fast");
        let prefetch: Vec<_> = lane.map(|it| it.prefetch).collect();
        Ok(Seen::when(prefetch == [20], format_args!("{prefetch:?}")))
    })
    .await?;
    let stopped = worker.stop().await?;
    let mut ids = stopped.ids();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((ids.len(), stopped.done.len()), (10 + COUNT, 10 + COUNT), "a task was lost or done twice");
    let receipt = stopped.receipt;
    assert_eq!((receipt.acked, receipt.dead, receipt.lost_settlements), (60, 0, 0), "{receipt:?}");
    Ok(())
}
