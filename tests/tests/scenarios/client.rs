//! `garenne::Client` publishes tasks that a worker runs.

use std::{future::IntoFuture, time::Duration};

use anyhow::Result;
use futures_util::future::try_join_all;
use garenne::{Client, EnqueueError, WaitError, json_payload};
use garenne_tests::harness::{
    fault_proxy::FaultProxy,
    test_env::TestEnv,
    vhost::Rights,
    wait::{Seen, eventually},
};
use lapin::types::AMQPValue;
use serde_json::json;

#[derive(serde::Serialize, serde::Deserialize)]
struct Factorial {
    n: u32,
}
json_payload!(Factorial, "bench.factorial");

#[tokio::test]
async fn client_publishes_tasks_that_are_run_under_their_ids() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("any")?.stdout().start().await?;
    let client = Client::connect(&env.vhost().amqp_url()).await?;
    let sent = try_join_all((0..500).map(|_| client.enqueue(Factorial { n: 5 }).into_future())).await?;
    let delayed = client
        .enqueue(Factorial { n: 3 })
        .id("chosen")
        .key("k")
        .group("g")
        .timeout(Duration::from_secs(5))
        .delay(Duration::from_millis(1))
        .await?;
    assert_eq!(delayed.as_str(), "chosen");

    let done = worker.until_done(501).await?;
    let mut ran: Vec<_> = done.iter().map(|done| done.task_id.as_str()).collect();
    let mut sent: Vec<_> = sent.iter().chain([&delayed]).map(|id| id.as_str()).collect();
    ran.sort_unstable();
    sent.sort_unstable();
    assert_eq!(ran, sent, "each task ran once");
    assert!(done.iter().any(|done| done.output == json!({"factorial": 6.0})));
    assert_eq!(
        worker.stop().await?.receipt.acked,
        501,
        "the delivery that was delayed is not acked but retried"
    );
    client.close().await;
    Ok(())
}

#[tokio::test]
async fn client_says_why_a_task_is_not_stored() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("any")?.start().await?;
    let client = Client::connect(&env.vhost().amqp_url()).await?;
    // Before 4.0 the broker allows messages of 128 MiB.
    if env.vhost().broker().version().0 >= 4 {
        let large = "x".repeat(17 << 20);
        let error = client.enqueue_kind("bench.noop", &json!({ "text": large })).await.unwrap_err();
        assert!(matches!(error, EnqueueError::TooLarge { what: "body", .. }), "{error}");
    }
    let typo = Client::builder(&env.vhost().amqp_url()).prefix("garene").connect().await?;
    let error = typo.enqueue_kind("bench.noop", &json!({})).await.unwrap_err();
    assert!(
        matches!(&error, EnqueueError::NoExchange { exchange, .. } if exchange == "garene.tasks"),
        "{error}"
    );
    let waited = typo.enqueue_kind("bench.noop", &json!({})).wait::<()>(Duration::from_secs(60)).await;
    assert!(matches!(waited, Err(WaitError::Enqueue(EnqueueError::NoExchange { .. }))), "{waited:?}");
    typo.close().await;
    let rights = Rights { configure: "^$", write: "^garenne$", read: "^$" };
    let limited = Client::connect(&env.vhost().user_url("limited", rights).await?).await?;
    let error = limited.enqueue_kind("bench.noop", &json!({})).await.unwrap_err();
    let expected = "exchange \"garenne.tasks\"";
    assert!(matches!(&error, EnqueueError::Denied { resource, .. } if resource == expected), "{error}");
    limited.close().await;
    let error = limited.enqueue_kind("bench.noop", &json!({})).await.unwrap_err();
    assert!(matches!(error, EnqueueError::Closed), "{error}");
    // The client opens a new connection.
    client.enqueue_kind("bench.noop", &json!({})).await?;
    env.until_lane("fast", 0, 0).await?;
    worker.stop().await?;
    client.close().await;
    let error = Client::connect("amqp://guest:wrong@127.0.0.1:1/%2f").await.map(drop).unwrap_err();
    assert!(matches!(error, EnqueueError::Connect(_)), "{error}");
    Ok(())
}

#[tokio::test]
async fn client_waits_for_a_broker_that_is_not_there_yet() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let (proxy, url) = FaultProxy::for_url(&env.vhost().amqp_url()).await?;
    proxy.cut();
    let client = Client::builder(&url);
    let refused = client.clone().connect().await.err();
    assert!(matches!(refused, Some(EnqueueError::Connect(_))), "{refused:?}");
    let refused = client.clone().connect_timeout(Duration::from_millis(600)).connect().await.err();
    assert!(matches!(refused, Some(EnqueueError::Connect(_))), "{refused:?}");
    let connecting = tokio::spawn(client.connect_timeout(Duration::from_secs(120)).connect());
    let before = proxy.refused();
    eventually("it has tried twice", async || {
        let refused = proxy.refused();
        Ok(Seen::when(refused >= before + 2, refused))
    })
    .await?;
    proxy.heal();
    connecting.await??.enqueue_kind("bench.noop", &json!({})).await?;
    Ok(())
}

#[tokio::test]
async fn headers_of_a_client_reach_every_copy_of_the_task() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("any")?.option("--max-attempts", "2").start().await?;
    let client = Client::connect(&env.vhost().amqp_url()).await?;
    let task = client.enqueue_kind("bench.fail", &json!({"times": 9}));
    task.header("tenant", "acme").header("priority", 3).header("ratio", 0.5).header("dry-run", true).await?;
    let letters = env.take_all("garenne.dead", 1).await?;
    let letter = &letters[0];
    assert_eq!((letter.text("tenant").as_str(), letter.number("priority")), ("acme", Some(3)));
    let header = |name: &str| letter.properties.headers().as_ref()?.inner().get(name).cloned();
    assert_eq!(header("ratio"), Some(AMQPValue::Double(0.5)));
    assert_eq!(header("dry-run"), Some(AMQPValue::Boolean(true)));
    worker.stop().await?;
    client.close().await;
    Ok(())
}
