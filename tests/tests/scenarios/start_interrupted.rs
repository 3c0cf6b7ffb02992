//! The broker becomes unavailable while a worker or a gateway starts. At every step of the start, the program waits for
//! the broker and continues. A signal ends the start at any step.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use garenne_tests::harness::{
    fault_proxy::FaultProxy,
    frame_proxy::{FrameProxy, Method},
    gateway::GatewayPlan,
    port::free_port,
    process::{Program, Signal},
    test_env::TestEnv,
    worker::{Worker, WorkerPlan},
};
use serde_json::json;

/// Starts a worker behind a proxy that ends the connection instead of forwarding this method for the nth time. Checks
/// that the worker starts when the broker is available again.
async fn check_start_after_cut(method: Method, nth: usize) -> Result<()> {
    let env = TestEnv::new().await?;
    env.worker("first")?.start().await?.stop().await?;
    let ids = env.publish("bench.noop", &json!({}), "task", 3).await?;
    let proxy = FrameProxy::for_url(&env.vhost().amqp_url()).await?;
    proxy.cut_at(method, nth);
    let mut worker = env.worker_at("interrupted", proxy.url())?.stdout().begin().await?;
    let pid = worker.id();
    proxy.until_refused(2).await?;
    proxy.heal();
    worker.until_ready().await?;
    worker.until_done(ids.len()).await?;
    assert_eq!(worker.id(), pid);
    let stopped = worker.stop().await?;
    assert_eq!((stopped.code, stopped.receipt.dead), (0, 0), "{:?}", stopped.receipt);
    Ok(())
}

/// Every step of a start, in the order in which a worker takes them.
const STEPS: [(&str, Method, usize); 12] = [
    ("the start of the first connection", Method::CONNECTION_START, 1),
    ("the first connection", Method::CONNECTION_OPEN_OK, 1),
    ("the start of the connection that asks for the version", Method::CONNECTION_START, 2),
    ("the first exchange", Method::EXCHANGE_DECLARE_OK, 1),
    ("a later exchange", Method::EXCHANGE_DECLARE_OK, 4),
    ("the declaration of a queue", Method::QUEUE_DECLARE_OK, 5),
    ("the connection that publishes", Method::CONNECTION_OPEN_OK, 2),
    ("its confirms", Method::CONFIRM_SELECT_OK, 1),
    ("the first stream's consumer", Method::BASIC_CONSUME_OK, 1),
    ("the confirm of the mark in a stream", Method::BASIC_ACK, 1),
    ("the worker's own queue", Method::QUEUE_BIND_OK, 1),
    ("the last lane's consumer", Method::BASIC_CONSUME_OK, 6),
];

#[tokio::test]
async fn start_interrupted_at_any_step_continues_when_the_broker_is_back() -> Result<()> {
    for (step, method, nth) in STEPS {
        check_start_after_cut(method, nth).await.with_context(|| format!("cut at {step}"))?;
    }
    Ok(())
}

/// The same for a gateway.
const GATEWAY_STEPS: [(&str, Method, usize); 6] = [
    ("the start of the first connection", Method::CONNECTION_START, 1),
    ("the first connection", Method::CONNECTION_OPEN_OK, 1),
    ("the first exchange", Method::EXCHANGE_DECLARE_OK, 1),
    ("the declaration of a queue", Method::QUEUE_DECLARE_OK, 5),
    ("the connection that publishes", Method::CONNECTION_OPEN_OK, 2),
    ("its confirms", Method::CONFIRM_SELECT_OK, 1),
];

#[tokio::test]
async fn start_interrupted_at_any_step_of_a_gateway_continues_when_the_broker_is_back() -> Result<()> {
    let env = TestEnv::new().await?;
    env.worker("first")?.start().await?.stop().await?;
    for (step, method, nth) in GATEWAY_STEPS {
        let proxy = FrameProxy::for_url(&env.vhost().amqp_url()).await?;
        proxy.cut_at(method, nth);
        let mut gateway = GatewayPlan::at(proxy.url())?.begin().await?;
        proxy.until_refused(2).await.with_context(|| format!("cut at {step}"))?;
        proxy.heal();
        gateway.until_ready(true).await.with_context(|| format!("cut at {step}"))?;
        gateway.stop().await?;
    }
    Ok(())
}

/// A broker under load was seen to answer a declare with `INTERNAL_ERROR`, which also ends the connection.
#[tokio::test]
async fn start_interrupted_while_the_topology_is_declared_continues_when_the_broker_is_back() -> Result<()> {
    let env = TestEnv::new().await?;
    for (method, nth) in
        [(Method::EXCHANGE_DECLARE_OK, 1), (Method::QUEUE_DECLARE_OK, 5), (Method::QUEUE_BIND_OK, 3)]
    {
        let proxy = FrameProxy::for_url(&env.vhost().amqp_url()).await?;
        proxy.cut_at(method, nth);
        let apply = Program::garenne(proxy.url(), &["topology", "apply"]).start().await?;
        proxy.until_refused(2).await?;
        proxy.heal();
        let ended = apply.ended().await?;
        assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
    }
    Ok(())
}

/// `connect_timeout` covers the whole start. If the broker stays unavailable, the start ends with exit code 69.
#[tokio::test]
async fn start_interrupted_for_longer_than_connect_timeout_ends_with_code_69() -> Result<()> {
    let env = TestEnv::new().await?;
    for (method, nth) in [(Method::EXCHANGE_DECLARE_OK, 1), (Method::BASIC_CONSUME_OK, 1)] {
        let proxy = FrameProxy::for_url(&env.vhost().amqp_url()).await?;
        proxy.cut_at(method, nth);
        let plan = env.worker_at("interrupted", proxy.url())?.env("GARENNE_CONNECT_TIMEOUT", "2s");
        let ended = plan.launch().await?.ended().await?;
        assert_eq!(ended.code, Some(69), "{:?}", ended.stderr);
    }
    Ok(())
}

/// Maximum duration of a stop during the start. The start itself may take a minute.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// One SIGTERM ends the start with code 0 and an empty receipt.
async fn stops_at_once(worker: Worker) -> Result<()> {
    let signalled = Instant::now();
    let stopped = worker.stop().await?;
    assert!(signalled.elapsed() < STOP_LIMIT, "it took {:?}", signalled.elapsed());
    assert_eq!((stopped.code, stopped.receipt.delivered, stopped.receipt.escalated), (0, 0, false));
    Ok(())
}

/// Launches a worker with a long `connect_timeout`, so that the test can stop it during the start.
async fn starting(plan: WorkerPlan) -> Result<Worker> {
    plan.env("GARENNE_CONNECT_TIMEOUT", "60s").begin().await
}

#[tokio::test]
async fn start_interrupted_by_a_signal_while_the_broker_is_unreachable() -> Result<()> {
    let env = TestEnv::new().await?;
    let port = free_port()?;
    let url = format!("amqp://guest:guest@127.0.0.1:{port}/%2f");
    let worker = starting(env.worker_at("unreachable", &url)?).await?;
    worker.until_logged("cannot connect to the broker, retrying").await?;
    stops_at_once(worker).await
}

#[tokio::test]
async fn start_interrupted_by_a_signal_while_the_broker_is_silent() -> Result<()> {
    let env = TestEnv::new().await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("amqp://guest:guest@{}/%2f", listener.local_addr()?);
    let worker = starting(env.worker_at("silent", &url)?).await?;
    let _held = listener.accept().await?;
    stops_at_once(worker).await
}

#[tokio::test]
async fn start_interrupted_by_a_signal_while_streams_are_read() -> Result<()> {
    let env = TestEnv::new().await?;
    env.worker("first")?.start().await?.stop().await?;
    let proxy = FrameProxy::for_url(&env.vhost().amqp_url()).await?;
    proxy.cut_at(Method::BASIC_CONSUME_OK, 1);
    let worker = starting(env.worker_at("reading", proxy.url())?).await?;
    proxy.until_refused(2).await?;
    stops_at_once(worker).await
}

#[tokio::test]
async fn start_interrupted_by_a_signal_while_a_database_is_awaited() -> Result<()> {
    let env = TestEnv::new().await?;
    let port = free_port()?;
    let url = format!("postgres://user@127.0.0.1:{port}/database");
    let plan = env.worker("storing")?.option("--sink", "postgres").option("--postgres-url", url);
    let worker = starting(plan).await?;
    worker.until_logged("Postgres unavailable, retrying").await?;
    stops_at_once(worker).await
}

/// A command during the start applies as soon as the worker has started.
#[tokio::test]
async fn start_interrupted_by_quiet_ends_quiet() -> Result<()> {
    let env = TestEnv::new().await?;
    env.worker("first")?.start().await?.stop().await?;
    let (proxy, url) = FaultProxy::for_url(&env.vhost().amqp_url()).await?;
    proxy.cut();
    let worker = starting(env.worker_at("quiet", &url)?.stdout()).await?;
    worker.until_logged("cannot connect to the broker, retrying").await?;
    worker.signal(Signal::TSTP)?;
    env.publish("bench.noop", &json!({}), "task", 3).await?;
    proxy.heal();
    worker.until_logged("\"consuming\"").await?;
    let consumers = env.client().consumers("garenne.tasks.fast").await?;
    assert_eq!((consumers, worker.metric("garenne_deliveries_total", &["lane=\"fast\""]).await?), (0, 0.0));
    worker.post("/resume").await?;
    worker.until_done(3).await?;
    assert_eq!(worker.stop().await?.receipt.acked, 3);
    Ok(())
}
