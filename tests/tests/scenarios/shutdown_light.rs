//! Mode light: intake stops, and running and locally waiting tasks are finished.

use anyhow::Result;
use garenne_tests::harness::test_env::TestEnv;
use serde_json::json;

#[tokio::test]
async fn shutdown_light_finishes_what_it_holds() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("light")?.option("--shutdown-mode", "light");
    let worker = env.start_holding(plan, (2, 20_000), 8).await?;
    env.publish("bench.noop", &json!({}), "elsewhere", 5).await?;

    let stopped = worker.stop().await?;
    assert_eq!((stopped.code, stopped.receipt.mode.as_str(), stopped.receipt.escalated), (0, "light", false));
    assert_eq!((stopped.receipt.delivered, stopped.receipt.acked, stopped.receipt.requeued), (10, 10, 0));
    assert_eq!(stopped.done.len(), 10);
    assert!(stopped.ids().iter().all(|id| !id.starts_with("elsewhere")), "{:?}", stopped.ids());
    env.until_lane("fast", 5, 0).await
}
