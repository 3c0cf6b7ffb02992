//! `garenne::Client` publishes tasks that a worker runs.

use std::{future::IntoFuture, time::Duration};

use anyhow::Result;
use futures_util::future::try_join_all;
use garenne::{Client, EnqueueError, json_payload};
use garenne_tests::harness::test_env::TestEnv;
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
    // The client opens a new connection.
    client.enqueue_kind("bench.noop", &json!({})).await?;
    env.until_lane("fast", 0, 0).await?;
    worker.stop().await?;
    client.close().await;
    let error = Client::connect("amqp://guest:wrong@127.0.0.1:1/%2f").await.map(drop).unwrap_err();
    assert!(matches!(error, EnqueueError::Connect(_)), "{error}");
    Ok(())
}
