//! The broker vanishes while a worker or a gateway starts: wherever in the dialogue that happens, the program waits
//! for the broker and goes on, as it would later. A signal ends the start wherever it is.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use garenne_tests::harness::{
    fault_proxy::FaultProxy,
    frame_proxy::{FrameProxy, Method},
    gateway::GatewayPlan,
    process::Signal,
    test_env::TestEnv,
    worker::{Worker, WorkerPlan},
};
use serde_json::json;

/// Starts a worker whose connections end instead of bringing it this method for the nth time.
async fn goes_on_after(method: Method, nth: usize) -> Result<()> {
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
    ("the first greeting", Method::START, 1),
    ("the first connection", Method::OPEN_OK, 1),
    ("the question for the version", Method::START, 2),
    ("the first exchange", Method::EXCHANGE_OK, 1),
    ("a later exchange", Method::EXCHANGE_OK, 4),
    ("a queue", Method::QUEUE_OK, 5),
    ("the connection that publishes", Method::OPEN_OK, 2),
    ("its confirms", Method::SELECT_OK, 1),
    ("the first stream", Method::CONSUME_OK, 1),
    ("the mark in a stream", Method::CONFIRM, 1),
    ("the worker's own queue", Method::BIND_OK, 1),
    ("the last lane", Method::CONSUME_OK, 6),
];

#[tokio::test]
async fn start_interrupted_anywhere_goes_on_when_the_broker_is_back() -> Result<()> {
    for (step, method, nth) in STEPS {
        goes_on_after(method, nth).await.with_context(|| format!("cut at {step}"))?;
    }
    Ok(())
}

/// The same for a gateway.
const GATEWAY_STEPS: [(&str, Method, usize); 6] = [
    ("the first greeting", Method::START, 1),
    ("the first connection", Method::OPEN_OK, 1),
    ("the first exchange", Method::EXCHANGE_OK, 1),
    ("a queue", Method::QUEUE_OK, 5),
    ("the connection that publishes", Method::OPEN_OK, 2),
    ("its confirms", Method::SELECT_OK, 1),
];

#[tokio::test]
async fn start_interrupted_anywhere_a_gateway_goes_on_when_the_broker_is_back() -> Result<()> {
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

/// The budget is one for all of it: a broker that stays away ends the start with the code that says so.
#[tokio::test]
async fn start_interrupted_for_good_ends_when_the_budget_is_spent() -> Result<()> {
    let env = TestEnv::new().await?;
    for (method, nth) in [(Method::EXCHANGE_OK, 1), (Method::CONSUME_OK, 1)] {
        let proxy = FrameProxy::for_url(&env.vhost().amqp_url()).await?;
        proxy.cut_at(method, nth);
        let plan = env.worker_at("interrupted", proxy.url())?.env("GARENNE_CONNECT_TIMEOUT", "2s");
        let ended = plan.launch().await?.ended().await?;
        assert_eq!(ended.code, Some(69), "{:?}", ended.stderr);
    }
    Ok(())
}

/// What a stop may take before the worker has begun; the start itself is given a minute.
const LEAVING: Duration = Duration::from_secs(3);

/// One SIGTERM ends a start wherever it is, in order and with a receipt of nothing.
async fn leaves_at_once(worker: Worker) -> Result<()> {
    let asked = Instant::now();
    let stopped = worker.stop().await?;
    assert!(asked.elapsed() < LEAVING, "it took {:?}", asked.elapsed());
    assert_eq!((stopped.code, stopped.receipt.delivered, stopped.receipt.escalated), (0, 0, false));
    Ok(())
}

/// A worker that is given long enough for its start, to be stopped in it.
async fn starting(plan: WorkerPlan) -> Result<Worker> {
    plan.env("GARENNE_CONNECT_TIMEOUT", "60s").begin().await
}

#[tokio::test]
async fn start_interrupted_by_a_signal_while_the_broker_is_unreachable() -> Result<()> {
    let env = TestEnv::new().await?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let url = format!("amqp://guest:guest@127.0.0.1:{port}/%2f");
    let worker = starting(env.worker_at("unreachable", &url)?).await?;
    worker.until_logged("cannot connect to the broker, retrying").await?;
    leaves_at_once(worker).await
}

#[tokio::test]
async fn start_interrupted_by_a_signal_while_the_broker_is_silent() -> Result<()> {
    let env = TestEnv::new().await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("amqp://guest:guest@{}/%2f", listener.local_addr()?);
    let worker = starting(env.worker_at("unheard", &url)?).await?;
    let _held = listener.accept().await?;
    leaves_at_once(worker).await
}

#[tokio::test]
async fn start_interrupted_by_a_signal_while_streams_are_read() -> Result<()> {
    let env = TestEnv::new().await?;
    env.worker("first")?.start().await?.stop().await?;
    let proxy = FrameProxy::for_url(&env.vhost().amqp_url()).await?;
    proxy.cut_at(Method::CONSUME_OK, 1);
    let worker = starting(env.worker_at("reading", proxy.url())?).await?;
    proxy.until_refused(2).await?;
    leaves_at_once(worker).await
}

#[tokio::test]
async fn start_interrupted_by_a_signal_while_a_database_is_awaited() -> Result<()> {
    let env = TestEnv::new().await?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let url = format!("postgres://nobody@127.0.0.1:{port}/nothing");
    let plan = env.worker("storing")?.option("--sink", "postgres").option("--postgres-url", url);
    let worker = starting(plan).await?;
    worker.until_logged("Postgres unavailable, retrying").await?;
    leaves_at_once(worker).await
}

/// What is asked of it meanwhile holds once it has begun.
#[tokio::test]
async fn start_interrupted_by_quiet_begins_quiet() -> Result<()> {
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
