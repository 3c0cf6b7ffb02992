//! Which properties and headers a task's copy keeps and which it drops.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use garenne_tests::harness::{
    client::{headers, text, with_id},
    test_env::TestEnv,
};
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldArray},
};

fn now_ms() -> Result<i64> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?)
}

/// Every property that a publisher can set, and broker headers that it may have copied from another message.
fn all_properties() -> BasicProperties {
    let death = headers([
        ("count", 7_i64.into()),
        ("reason", text("expired")),
        ("queue", text("garenne.retry.fast.200ms")),
        ("exchange", text("")),
        ("routing-keys", AMQPValue::FieldArray(vec![text("garenne.retry.fast.200ms")].into())),
    ]);
    let deaths: FieldArray = vec![AMQPValue::FieldTable(death)].into();
    with_id("complete")
        .with_reply_to("answers".into())
        .with_correlation_id("order-7".into())
        .with_priority(5)
        .with_app_id("erp".into())
        .with_timestamp(1_790_000_000)
        .with_content_type("application/json".into())
        .with_user_id("guest".into())
        .with_headers(headers([
            ("tenant", text("acme")),
            ("traceparent", text("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")),
            ("x-death", AMQPValue::FieldArray(deaths)),
            ("x-first-death-queue", text("elsewhere")),
            ("x-first-death-reason", text("expired")),
            ("x-first-death-exchange", text("")),
            ("x-delivery-count", 3_i64.into()),
            ("CC", AMQPValue::FieldArray(vec![text("no.such.queue")].into())),
        ]))
}

#[tokio::test]
async fn copies_keep_properties_and_drop_those_that_would_lose_the_copy() -> Result<()> {
    let env = TestEnv::new().await?;
    // A delay that does not pass during the test: the copy is inspected in the retry queue.
    let plan = env.worker("copying")?.stdout().env("GARENNE_RETRY__DELAYS", "1h");
    let worker = plan.start().await?;
    let properties =
        all_properties().with_expiration("7200000".into()).with_timestamp(u64::try_from(now_ms()? / 1000)?);
    let sent_at = properties.timestamp().unwrap_or_default();
    env.client().publish("garenne.tasks", "bench.fail", properties, br#"{"times":1}"#).await?;
    let copy = env.take_all("garenne.retry.fast.1h", 1).await?.remove(0);

    let kept = &copy.properties;
    let word = |it: &Option<lapin::types::ShortString>| it.as_ref().map(|it| it.as_str().to_owned());
    assert_eq!(copy.body, br#"{"times":1}"#);
    assert_eq!(copy.id(), "complete");
    assert_eq!(word(kept.kind()).as_deref(), Some("bench.fail"));
    assert_eq!(word(kept.reply_to()).as_deref(), Some("answers"));
    assert_eq!(word(kept.correlation_id()).as_deref(), Some("order-7"));
    assert_eq!(word(kept.app_id()).as_deref(), Some("erp"));
    assert_eq!(word(kept.content_type()).as_deref(), Some("application/json"));
    assert_eq!((*kept.priority(), *kept.timestamp()), (Some(5), Some(sent_at)));
    assert_eq!(*kept.delivery_mode(), Some(2), "a copy must be persistent");
    assert_eq!(copy.text("tenant"), "acme");
    assert_eq!(copy.text("traceparent"), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    assert_eq!(copy.number("garenne-attempt"), Some(1));

    for dropped in ["x-first-death-queue", "x-first-death-reason", "x-first-death-exchange", "CC", "BCC"] {
        assert!(!copy.has(dropped), "{dropped} was copied");
    }
    assert!(!copy.has("x-death"), "{copy:?}");
    // Some brokers set a count of their own.
    assert_eq!(copy.number("x-delivery-count").unwrap_or(0), 0, "{copy:?}");
    assert_eq!((kept.user_id(), copy.text("garenne-user-id").as_str()), (&None, "guest"));
    assert_eq!(kept.expiration(), &None, "a copy with an expiration would leave the retry queue early");
    let expires = i64::try_from(sent_at)? * 1000 + 7_200_000;
    assert_eq!(copy.number("garenne-expires-at"), Some(expires));
    worker.stop().await?;
    Ok(())
}

/// If copies kept another message's `x-death`, the broker would take the second use of a retry queue for a cycle and
/// drop the message.
#[tokio::test]
async fn copies_can_use_the_same_retry_queue_repeatedly() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("copying")?.stdout().env("GARENNE_RETRY__DELAYS", "100ms");
    let worker = plan.option("--max-attempts", "9").start().await?;
    env.client().publish("garenne.tasks", "bench.fail", all_properties(), br#"{"times":6}"#).await?;
    let done = worker.until_done(1).await?.remove(0);
    assert_eq!((done.task_id.as_str(), done.attempt), ("complete", 7));
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.retried, receipt.acked), (7, 6, 1));
    env.until_lane("fast", 0, 0).await
}

/// A delayed task waits in the broker, and the worker holds no delivery meanwhile.
#[tokio::test]
async fn delayed_tasks_do_not_start_early() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("delaying")?.stdout().start().await?;
    let before = now_ms()?;
    let late = with_id("late").with_headers(headers([("garenne-delay-ms", 5000.into())]));
    env.client().publish("garenne.tasks", "bench.noop", late, b"{}").await?;
    env.publish("bench.noop", &serde_json::json!({}), "now", 1).await?;
    let done = worker.until_done(2).await?;
    let waited = now_ms()? - before;
    assert_eq!(done.iter().map(|done| done.task_id.as_str()).collect::<Vec<_>>(), ["now-0", "late"]);
    assert!(waited >= 5000, "it started after {waited} ms");
    assert!(waited < 120_000, "it started after {waited} ms");
    assert_eq!(done[1].attempt, 1, "a delay is not an attempt");
    let receipt = worker.stop().await?.receipt;
    assert_eq!(receipt.acked, 2);
    assert_eq!(receipt.delivered, receipt.retried + 2, "deferrals count as retried");
    Ok(())
}
