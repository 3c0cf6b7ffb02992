//! A spool on a fresh broker: it is drained after the topology was declared.

use std::time::Duration;

use anyhow::Result;
use garenne_tests::harness::{
    frame_proxy::{FrameProxy, Method},
    gateway::GatewayPlan,
    test_env::TestEnv,
};

#[tokio::test]
async fn a_spool_is_drained_after_exchanges_and_queues_were_declared() -> Result<()> {
    let env = TestEnv::new().await?;
    let proxy = FrameProxy::for_url(&env.vhost().amqp_url()).await?;
    let spool = env.folder().join("spool");
    let plan = GatewayPlan::at(proxy.url())?.option("--spool", &spool).option("--spool-min-free", "0");
    let plan = plan.env("GARENNE_LOG", "info");
    proxy.cut();
    let gateway = plan.start().await?;
    let answer = gateway.post("/v1/tasks/bench.factorial", "application/json", r#"{"n":5}"#).await?;
    assert_eq!(answer.body["durability"], "spooled");
    gateway.stop().await?;

    // The first queue exists, the exchange of tasks does not.
    proxy.heal();
    proxy.pause_at(Method::QUEUE_DECLARE_OK, Duration::from_secs(3));
    let gateway = plan.start().await?;
    gateway.until_metric("garenne_published_total{result=\"confirmed\"} 1").await?;
    assert_eq!(proxy.pauses(), 1);
    env.until_ready("fast", 1).await?;
    let log = gateway.process().stderr().lines();
    assert!(!log.iter().any(|line| line.contains("cannot drain the spool")), "{log:?}");
    gateway.stop().await?;
    Ok(())
}
