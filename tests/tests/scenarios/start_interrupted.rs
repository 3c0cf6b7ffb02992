//! The broker vanishes while a worker starts: wherever in its dialogue that happens, it waits for the broker
//! and goes on, as it would later.

use anyhow::{Context, Result};
use garenne_tests::harness::{
    meddler::{Meddler, Method},
    scene::Scene,
};
use serde_json::json;

/// Starts a worker whose connections end instead of bringing it this method for the nth time.
async fn goes_on_after(method: Method, nth: usize) -> Result<()> {
    let scene = Scene::new().await?;
    scene.worker("first")?.start().await?.stop().await?;
    let ids = scene.publish("bench.noop", &json!({}), "task", 3).await?;
    let meddler = Meddler::for_url(&scene.vhost().amqp_url()).await?;
    meddler.cut_at(method, nth);
    let mut worker = scene.worker_at("interrupted", meddler.url())?.stdout().begin().await?;
    let pid = worker.id();
    meddler.until_refused(2).await?;
    meddler.heal();
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

/// The budget is one for all of it: a broker that stays away ends the start with the code that says so.
#[tokio::test]
async fn start_interrupted_for_good_ends_when_the_budget_is_spent() -> Result<()> {
    let scene = Scene::new().await?;
    for (method, nth) in [(Method::EXCHANGE_OK, 1), (Method::CONSUME_OK, 1)] {
        let meddler = Meddler::for_url(&scene.vhost().amqp_url()).await?;
        meddler.cut_at(method, nth);
        let plan = scene.worker_at("interrupted", meddler.url())?.env("GARENNE_CONNECT_TIMEOUT", "2s");
        let ended = plan.launch().await?.ended().await?;
        assert_eq!(ended.code, Some(69), "{:?}", ended.stderr);
    }
    Ok(())
}
