//! Failed tasks are retried through the retry queues until their attempts are exhausted.

use std::{
    collections::BTreeSet,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use garenne_protocol::sensor::Timestamp;
use garenne_tests::harness::{
    broker::{Broker, BrokerOptions},
    client::{headers, with_id},
    process::Signal,
    test_env::TestEnv,
};
use serde_json::json;

#[tokio::test]
async fn retried_tasks_succeed_at_a_later_attempt() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("retrying")?.stdout().lane("fast:prefetch=10,concurrency=2..2").start().await?;
    env.publish("bench.fail", &json!({"times": 2}), "failing", 3).await?;
    let done = worker.until_done(3).await?;
    assert!(done.iter().all(|done| done.attempt == 3), "{done:?}");
    env.until_lane("fast", 0, 0).await?;
    let stopped = worker.stop().await?;
    let receipt = &stopped.receipt;
    assert_eq!((receipt.delivered, receipt.acked, receipt.retried, receipt.dead), (9, 3, 6, 0));
    assert_eq!(stopped.done.len(), 3);
    env.is_empty("garenne.dead").await
}

#[tokio::test]
async fn a_task_becomes_a_dead_letter_after_its_last_attempt() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("failing")?.stdout().option("--max-attempts", "3").start().await?;
    env.publish("bench.fail", &json!({"times": 99}), "failing", 1).await?;
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!(dead.text("garenne-reason"), "attempts-exhausted");
    assert_eq!(dead.text("garenne-error"), "asked to fail 99 times, this is attempt 3 (attempt 3 of 3)");
    assert_eq!((dead.id(), dead.number("garenne-attempt")), ("failing-0", Some(3)));
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.retried, receipt.dead), (3, 2, 1));
    Ok(())
}

#[tokio::test]
async fn a_panic_is_an_attempt_and_does_not_affect_other_tasks() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("panicking")?.stdout().lane("fast:prefetch=20,concurrency=2..2");
    let worker = plan.option("--max-attempts", "2").start().await?;
    let pid = worker.id();
    env.publish("bench.sleep", &json!({"ms": 10_000}), "neighbour", 1).await?;
    worker.until_holds("fast", 1, 0).await?;
    env.publish("bench.panic", &json!({}), "panic", 3).await?;
    let dead = env.take_all("garenne.dead", 3).await?;
    for dead in dead {
        assert_eq!(dead.text("garenne-reason"), "attempts-exhausted");
        let error = "the handler panicked: bench.panic was asked for (attempt 2 of 2)";
        assert_eq!(dead.text("garenne-error"), error);
    }
    worker.until_done_with("neighbour-0").await?;
    assert_eq!(worker.id(), pid);
    assert_eq!(worker.metric("garenne_pool_worker_restarts_total", &["lane=\"fast\""]).await?, 6.0);
    let outcomes = ["kind=\"bench.panic\"", "outcome=\"panic\""];
    assert_eq!(worker.metric("garenne_tasks_total", &outcomes).await?, 6.0);
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.retried, receipt.dead), (1, 3, 3));
    Ok(())
}

/// The message's own timeout applies if it is shorter than the kind's.
#[tokio::test]
async fn a_timeout_is_an_attempt() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("late")?.stdout().option("--max-attempts", "2").start().await?;
    let late = with_id("late").with_headers(headers([("garenne-timeout-ms", 200.into())]));
    env.client().publish("garenne.tasks", "bench.sleep", late, br#"{"ms":60000}"#).await?;
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!(dead.text("garenne-reason"), "attempts-exhausted");
    assert_eq!(dead.text("garenne-error"), "the deadline passed (attempt 2 of 2)");
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.retried, receipt.dead), (2, 1, 1));
    Ok(())
}

/// A task that does not yield after its timeout is counted in a metric until it ends.
#[tokio::test]
async fn a_stuck_task_is_counted_while_it_is_stuck() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("stuck")?.stdout().option("--hard-grace", "200ms").start().await?;
    worker.until_metric("garenne_tasks_stuck", &[], 0.0).await?;
    let late = with_id("late").with_headers(headers([("garenne-timeout-ms", 100.into())]));
    env.client().publish("garenne.tasks", "bench.spin", late, br#"{"ms":5000}"#).await?;
    worker.until_metric("garenne_tasks_stuck", &[], 1.0).await?;
    worker.until_metric("garenne_tasks_stuck", &[], 0.0).await
}

/// The lane continues while failed tasks wait for their next attempt.
#[tokio::test]
async fn retries_do_not_delay_other_tasks() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("steady")?.stdout().lane("fast:prefetch=4,concurrency=1..1");
    let worker = plan.env("GARENNE_RETRY__DELAYS", "3s").start().await?;
    env.publish("bench.fail", &json!({"times": 1}), "failing", 20).await?;
    env.publish("bench.noop", &json!({}), "fine", 20).await?;
    let first: Vec<_> = worker.until_done(20).await?.into_iter().map(|done| done.task_id).collect();
    assert!(first.iter().all(|id| id.starts_with("fine")), "{first:?}");
    worker.until_done(40).await?;
    Ok(())
}

/// Each delay has its own queue, so a long delay does not block a short one. Tasks return when they are due, not
/// earlier and not much later.
#[tokio::test]
async fn delayed_tasks_return_when_they_are_due() -> Result<()> {
    const EACH: usize = 50;
    const WAIT: f64 = 2.0;
    let env = TestEnv::new().await?;
    let plan = env.worker("punctual")?.stdout().lane("fast:prefetch=200,concurrency=4..4");
    let worker = plan.env("GARENNE_RETRY__DELAYS", "2s,1h").start().await?;
    // A delay of an hour, published before the others in the same lane.
    let late = with_id("late").with_headers(headers([("garenne-delay-ms", 3_600_000.into())]));
    env.client().publish("garenne.tasks", "bench.noop", late, b"{}").await?;
    env.until_queue("garenne.retry.fast.1h", 1, 0).await?;
    let mut late = Vec::new();
    for n in 0..EACH {
        // A deferral uses the longest delay that does not exceed the requested one, without jitter.
        let published = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        let id = format!("due-{n}");
        let due = with_id(&id).with_headers(headers([("garenne-delay-ms", 2000.into())]));
        env.client().publish("garenne.tasks", "bench.noop", due, b"{}").await?;
        late.push((id, published));
    }
    let done = worker.until_done(EACH).await?;
    let mut over = Vec::new();
    for (id, published) in late {
        let done =
            done.iter().find(|done| done.task_id == id).with_context(|| format!("{id} is not done"))?;
        let started = Timestamp::parse(&done.started_at)?;
        over.push(started.as_unix_seconds() - published - WAIT);
    }
    over.sort_by(f64::total_cmp);
    let (earliest, median, p99) = (over[0], over[EACH / 2], over[EACH - 1]);
    println!("{EACH} delays of {WAIT} s: {earliest:.3} s to {p99:.3} s late, median {median:.3} s");
    // Tolerance: two clocks with a resolution of a millisecond.
    assert!(earliest >= -0.002, "{earliest} s early");
    // On a busy machine everything takes longer, so the bound grows with the latency of a task without a delay.
    let published = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    env.publish("bench.noop", &json!({}), "immediate", 1).await?;
    let usual = Timestamp::parse(&worker.until_done_with("immediate-0").await?.started_at)?;
    let usual = usual.as_unix_seconds() - published;
    assert!(p99 < 30.0 + 20.0 * usual, "{p99} s late, the latency without a delay is {usual} s");
    env.until_queue("garenne.retry.fast.1h", 1, 0).await
}

/// The original is acked only after its copy is confirmed. If the worker is killed before, the task is redelivered and
/// no attempt is spent.
#[tokio::test]
async fn retry_is_confirmed_before_the_original_is_acked() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let env = TestEnv::on(&broker).await?;
    let worker = env.worker("blocked")?.stdout().lane("fast:prefetch=10,concurrency=2..2").start().await?;
    worker.signal(Signal::TSTP)?;
    env.until_no_consumer("fast").await?;
    env.publish("bench.fail", &json!({"times": 1}), "failing", 5).await?;
    broker.set_memory_alarm(true).await?;
    worker.signal(Signal::CONT)?;
    worker.until_metric("garenne_tasks_total", &["kind=\"bench.fail\"", "outcome=\"error\""], 5.0).await?;
    env.until_lane("fast", 0, 5).await?;
    worker.kill().await?;
    broker.set_memory_alarm(false).await?;
    let second = env.worker("second")?.stdout().start().await?;
    second.until_done(5).await?;
    env.until_queue("garenne.retry.fast.200ms", 0, 0).await?;
    env.until_lane("fast", 0, 0).await?;
    let stopped = second.stop().await?;
    assert!(stopped.done.iter().all(|done| done.attempt == 2), "{:?}", stopped.done);
    // The broker may still store copies that the killed worker had sent. Such duplicates have the same id and attempt.
    let ids: BTreeSet<_> = stopped.ids().into_iter().collect();
    assert_eq!(ids.len(), 5, "{:?}", stopped.receipt);
    assert_eq!(
        stopped.receipt.retried, 5,
        "an attempt was spent by the killed worker: {:?}",
        stopped.receipt
    );
    Ok(())
}
