//! The servers come after the programs that need them: those are seen to live and not to be ready, and
//! begin when the servers are there.

use anyhow::{Context, Result};
use garenne_tests::harness::{
    fault_proxy::FaultProxy,
    gateway::GatewayPlan,
    postgres::Postgres,
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use serde_json::json;

#[tokio::test]
async fn a_worker_lives_while_it_waits_for_the_broker_and_for_postgres() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let (broker, amqp_url) = FaultProxy::for_url(&env.vhost().amqp_url()).await?;
    let (postgres, postgres_url) = FaultProxy::for_url(&database.url()).await?;
    broker.cut();
    postgres.cut();
    let plan = env.worker_at("early", &amqp_url)?.option("--sink", "postgres");
    let mut worker = plan.option("--postgres-url", postgres_url).begin().await?;
    worker.until_not_ready_for("not begun").await?;
    assert!(worker.lives().await?);
    broker.heal();
    worker.until_logged("connected to RabbitMQ").await?;
    worker.until_logged("Postgres unavailable, retrying").await?;
    worker.until_not_ready_for("not begun").await?;
    assert!(worker.lives().await?);
    postgres.heal();
    worker.until_ready().await?;
    env.publish("bench.noop", &json!({}), "task", 3).await?;
    let client = database.connect().await?;
    eventually("three results", async || {
        let count: i64 = client.query_one("SELECT count(*) FROM garenne_results", &[]).await?.get(0);
        Ok(Seen::when(count == 3, count))
    })
    .await?;
    assert_eq!(worker.stop().await?.receipt.acked, 3);
    Ok(())
}

#[tokio::test]
async fn a_worker_does_not_wait_for_a_postgres_that_refuses_it() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let nobody = database.url().replacen("test_", "missing_", 1);
    let plan = env.worker("refused")?.option("--sink", "postgres").option("--postgres-url", nobody);
    let ended = plan.launch().await?.ended().await?;
    let words = ended.stderr.last().context("a last word")?;
    assert_eq!(ended.code, Some(1), "{words}");
    assert!(words.contains("cannot use Postgres at") && words.contains("does not exist"), "{words}");
    assert!(
        !ended.stderr.iter().any(|line| line.contains("Postgres unavailable, retrying")),
        "{:?}",
        ended.stderr
    );
    Ok(())
}

#[tokio::test]
async fn a_gateway_lives_while_it_waits_for_the_broker() -> Result<()> {
    let env = TestEnv::new().await?;
    env.worker("first")?.start().await?.stop().await?;
    let (broker, amqp_url) = FaultProxy::for_url(&env.vhost().amqp_url()).await?;
    broker.cut();
    let mut gateway = GatewayPlan::at(&amqp_url)?.begin().await?;
    gateway.until_ready(false).await?;
    assert!(gateway.lives().await?);
    broker.heal();
    gateway.until_ready(true).await?;
    let reading = r#"{"device":"d","metric":"m","value":1.5,"time":"2026-01-01T00:00:00Z"}"#;
    let answer = gateway.post("/v1/readings", "application/json", reading).await?;
    assert_eq!(answer.status, 202, "{answer:?}");
    gateway.stop().await?;
    Ok(())
}
