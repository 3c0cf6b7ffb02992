//! Programs start before the servers that they need. They are live and not ready, and begin to work when the servers
//! are available.

use anyhow::{Context, Result};
use garenne_tests::harness::{
    fault_proxy::FaultProxy, gateway::GatewayPlan, postgres::Postgres, test_env::TestEnv,
};
use serde_json::json;

#[tokio::test]
async fn a_worker_is_live_while_it_waits_for_the_broker_and_for_postgres() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let (broker, amqp_url) = FaultProxy::for_url(&env.vhost().amqp_url()).await?;
    let (postgres, postgres_url) = FaultProxy::for_url(&database.url()).await?;
    broker.cut();
    postgres.cut();
    let plan = env.worker_at("early", &amqp_url)?.option("--sink", "postgres");
    let mut worker = plan.option("--postgres-url", postgres_url).begin().await?;
    worker.until_not_ready_for("starting").await?;
    assert!(worker.is_live().await?);
    broker.heal();
    worker.until_logged("connected to RabbitMQ").await?;
    worker.until_logged("Postgres unavailable, retrying").await?;
    worker.until_not_ready_for("starting").await?;
    assert!(worker.is_live().await?);
    postgres.heal();
    worker.until_ready().await?;
    env.publish("bench.noop", &json!({}), "task", 3).await?;
    database.until_count("garenne_results", 3).await?;
    assert_eq!(worker.stop().await?.receipt.acked, 3);
    Ok(())
}

#[tokio::test]
async fn a_worker_ends_if_postgres_refuses_it() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let missing = database.url().replacen("test_", "missing_", 1);
    let plan = env.worker("refused")?.option("--sink", "postgres").option("--postgres-url", missing);
    let ended = plan.launch().await?.ended().await?;
    let error = ended.stderr.last().context("no error message")?;
    assert_eq!(ended.code, Some(1), "{error}");
    assert!(error.contains("cannot use Postgres at") && error.contains("does not exist"), "{error}");
    assert!(
        !ended.stderr.iter().any(|line| line.contains("Postgres unavailable, retrying")),
        "{:?}",
        ended.stderr
    );
    Ok(())
}

#[tokio::test]
async fn a_gateway_is_live_while_it_waits_for_the_broker() -> Result<()> {
    let env = TestEnv::new().await?;
    env.worker("first")?.start().await?.stop().await?;
    let (broker, amqp_url) = FaultProxy::for_url(&env.vhost().amqp_url()).await?;
    broker.cut();
    let mut gateway = GatewayPlan::at(&amqp_url)?.begin().await?;
    gateway.until_ready(false).await?;
    assert!(gateway.is_live().await?);
    broker.heal();
    gateway.until_ready(true).await?;
    let reading = r#"{"device":"d","metric":"m","value":1.5,"time":"2026-01-01T00:00:00Z"}"#;
    let answer = gateway.post("/v1/readings", "application/json", reading).await?;
    assert_eq!(answer.status, 202, "{answer:?}");
    gateway.stop().await?;
    Ok(())
}
