//! Copies: their queue, their headers, and the settlement of the original.

use garenne_amqp_kit::{FakeBroker, Published};
use garenne_common::{
    config::{Lane, Lanes},
    telemetry::metrics::TaskOutcome,
};
use garenne_protocol::{
    amqp::{BasicProperties, FieldTable},
    task::{
        WorkerIncarnation, epoch_ms,
        header::{self, long},
    },
    topology::Delay,
};

use super::{super::destinations::MAX_WAIT, *};

pub(super) const FRAME_MAX: u32 = 131_072;
const SECOND: Duration = Duration::from_secs(1);

/// A settler and its broker.
pub(super) struct TestEnv {
    pub(super) test: TestSettler,
    pub(super) broker: FakeBroker,
}

pub(super) async fn env_with(sinks: Vec<Arc<dyn Sink>>, routes: Routes, frame_max: u32) -> TestEnv {
    let broker = FakeBroker::start(frame_max).await;
    let test = test_settler(sinks, &broker.url(), routes);
    test.metrics.register_kinds(["any.thing"]);
    TestEnv { test, broker }
}

pub(super) async fn env() -> TestEnv {
    env_with(Vec::new(), Routes::default(), FRAME_MAX).await
}

impl TestEnv {
    pub(super) fn delivery(&self) -> Delivery {
        Delivery::mock(&self.test.generation, 1, b"{}")
    }

    pub(super) fn task(&self) -> InFlight {
        self.test.task_of(self.delivery())
    }

    pub(super) fn envelope(&mut self, change: impl FnOnce(&mut Envelope)) {
        let mut envelope = Envelope::clone(&self.test.envelope);
        change(&mut envelope);
        self.test.envelope = Arc::new(envelope);
    }

    /// The next published message. Asserts that nothing has been settled before.
    pub(super) async fn copy(&mut self) -> Published {
        let copy = self.broker.next().await;
        assert_eq!(self.test.generation.requested_settlements(), [], "settled before its copy was confirmed");
        copy
    }

    /// The settlement of the original, after all publishes have ended.
    pub(super) async fn settlement(&mut self) -> Settlement {
        self.test.settler.idle().await;
        assert!(!self.broker.has_more(), "another message was published");
        let [(1, settlement)] = self.test.generation.requested_settlements()[..] else {
            panic!("not settled exactly once")
        };
        settlement
    }

    /// The number of dead letters in the metrics, by reason.
    fn dead_letters(&self) -> Vec<(String, u64)> {
        let counts = self.test.metrics.kind_counts();
        counts.get("any.thing").map_or_else(Vec::new, |kind| kind.dead.clone().into_iter().collect())
    }
}

fn failed(after: Option<Duration>) -> Outcome {
    Outcome::Retry { error: "io".into(), after }
}

#[tokio::test]
async fn a_failed_task_is_copied_to_the_delay_queue_of_its_back_off_with_the_attempt_counted() {
    let mut env = env().await;
    env.test.settle(failed(None));
    let copy = env.copy().await;
    assert_eq!((copy.exchange.as_str(), copy.key.as_str()), ("", "garenne.retry.fast.1s"));
    assert_eq!(copy.number(header::ATTEMPT), Some(1));
    assert!(copy.number(header::FIRST_SEEN).is_some());
    assert_eq!((copy.number(header::NOT_BEFORE), copy.text(header::LANE)), (None, None));
    copy.ack();
    assert_eq!(env.settlement().await, Settlement::Retried);
}

#[tokio::test]
async fn a_copy_carries_the_checkpoint_of_its_attempt() {
    for (outcome, settlement) in [
        (failed(None), Settlement::Retried),
        (Outcome::Defer { wait: SECOND }, Settlement::Retried),
        (Outcome::Dead { reason: DeadReason::Rejected, error: "no".into() }, Settlement::Dead),
    ] {
        let mut env = env().await;
        env.test.settler.checkpoints.set(&env.test.envelope, "7".into());
        env.test.settle(outcome);
        let copy = env.copy().await;
        assert_eq!(copy.text(header::CHECKPOINT).as_deref(), Some("7"));
        copy.ack();
        assert_eq!(env.settlement().await, settlement);
        assert_eq!(env.test.settler.checkpoints.take(&env.test.envelope), None, "it is carried once");
    }
}

#[tokio::test]
async fn retry_after_sets_a_due_time_and_uses_the_longest_delay_queue_within_it() {
    for (after, waits, rung) in [(20 * SECOND, 20 * SECOND, "15s"), (2 * MAX_WAIT, MAX_WAIT, "1h")] {
        let mut env = env().await;
        let before = epoch_ms(SystemTime::now() + waits);
        env.test.settle(failed(Some(after)));
        let copy = env.copy().await;
        assert_eq!(copy.key, format!("garenne.retry.fast.{rung}"));
        let due = copy.number(header::NOT_BEFORE).unwrap();
        assert!((before..=epoch_ms(SystemTime::now() + waits)).contains(&due), "due {}", due - before);
        copy.ack();
        assert_eq!(env.settlement().await, Settlement::Retried);
    }
}

#[tokio::test]
async fn a_deferred_task_has_a_due_time_and_spends_no_attempt() {
    let mut env = env().await;
    let before = epoch_ms(SystemTime::now() + 70 * SECOND);
    env.test.settle(Outcome::Defer { wait: 70 * SECOND });
    let copy = env.copy().await;
    assert_eq!(copy.key, "garenne.retry.fast.1m");
    let due = copy.number(header::NOT_BEFORE).unwrap();
    assert!((before..=epoch_ms(SystemTime::now() + 70 * SECOND)).contains(&due), "due {}", due - before);
    assert_eq!(copy.number(header::ATTEMPT), None);
    copy.ack();
    assert_eq!(env.settlement().await, Settlement::Retried);
}

/// Such as one with a delay whose group is paused.
#[tokio::test]
async fn a_task_that_is_deferred_before_it_is_due_keeps_its_due_time() {
    let mut env = env().await;
    let due = epoch_ms(SystemTime::now() + 70 * SECOND);
    let task = env.test.task_of(Delivery::mock(&env.test.generation, 1, b"{}"));
    let envelope = Envelope { not_before: Some(due), ..Envelope::clone(&task.envelope) };
    let task = InFlight { envelope: Arc::new(envelope), ..task };
    env.test.begin(|settler| async move { settler.defer(task, SECOND).await });
    let copy = env.copy().await;
    assert_eq!((copy.key.as_str(), copy.number(header::NOT_BEFORE)), ("garenne.retry.fast.1m", Some(due)));
    copy.ack();
    assert_eq!(env.settlement().await, Settlement::Retried);
}

#[tokio::test]
async fn a_dead_letter_names_reason_error_worker_and_lane() {
    let mut env = env().await;
    env.test.settle(Outcome::Dead { reason: DeadReason::Rejected, error: "no such device".into() });
    let copy = env.copy().await;
    assert_eq!((copy.exchange.as_str(), copy.key.as_str()), ("", "garenne.dead"));
    let headers =
        [header::REASON, header::ERROR, header::WORKER, header::LANE].map(|name| copy.text(name).unwrap());
    assert_eq!(headers, ["rejected", "no such device", "test", "fast"]);
    copy.ack();
    assert_eq!(
        (env.settlement().await, env.dead_letters()),
        (Settlement::Dead, vec![("rejected".to_owned(), 1)])
    );
}

#[tokio::test]
async fn a_dead_letter_of_the_last_attempt_names_its_number() {
    let mut env = env().await;
    env.envelope(|task| task.attempt = 2);
    env.test.settle(failed(None));
    let copy = env.copy().await;
    assert_eq!(copy.text(header::ERROR).unwrap(), "io (attempt 3 of 3)");
    assert_eq!(copy.text(header::REASON).unwrap(), "attempts-exhausted");
    copy.ack();
    assert_eq!(env.settlement().await, Settlement::Dead);
}

/// A rejected task, a task whose last attempt failed, and one that did not start.
#[tokio::test]
async fn a_dead_letter_counts_its_last_attempt_and_keeps_the_time_of_its_receipt() {
    let rejected = || Outcome::Dead { reason: DeadReason::Rejected, error: "no".into() };
    let max_attempts = env().await.test.settler.max_attempts;
    for (outcome, counted_as, spent, attempts) in [
        (rejected(), Some(TaskOutcome::Rejected), 0, Some(1)),
        (failed(None), Some(TaskOutcome::Error), max_attempts - 1, Some(i64::from(max_attempts))),
        (rejected(), None, 0, None),
    ] {
        let mut env = env().await;
        env.envelope(|task| task.attempt = spent);
        let received_at = SystemTime::now() - 60 * SECOND;
        let mut delivery = env.delivery();
        delivery.head_mut().received_at = received_at;
        let task = env.test.task_of(delivery);
        env.test.settler.settle(task, &env.test.entry, AttemptEnd { outcome, counted_as, duration: None });
        let letter = env.copy().await;
        assert_eq!(letter.key, "garenne.dead");
        assert_eq!(letter.number(header::ATTEMPT), attempts, "{counted_as:?}");
        assert_eq!(letter.number(header::FIRST_SEEN), Some(epoch_ms(received_at)));
        assert!(letter.number(header::DIED_AT) >= Some(epoch_ms(received_at + 60 * SECOND)));
        letter.ack();
        assert_eq!(env.settlement().await, Settlement::Dead);
    }
}

#[tokio::test]
async fn a_dead_letter_of_an_unreadable_message_has_its_routing_key_as_kind() {
    let mut env = env().await;
    let lane = Arc::clone(&env.test.lane);
    let delivery = env.delivery();
    env.test.begin(|settler| async move {
        settler.dead_letter_unread(lane, delivery, DeadReason::Malformed, "bad".into()).await;
    });
    let copy = env.copy().await;
    assert_eq!(copy.properties.kind().as_ref().unwrap().as_str(), "some.kind");
    assert_eq!(copy.text(header::LANE).unwrap(), "fast");
    copy.ack();
    assert_eq!(env.settlement().await, Settlement::Dead);
}

#[tokio::test]
async fn a_task_enters_the_quarantine_through_its_delay_queue_and_records_its_lane() {
    let mut env = env().await;
    let task = env.task();
    env.test.begin(|settler| async move { settler.quarantine(task).await });
    let copy = env.copy().await;
    assert_eq!(copy.key, "garenne.retry.quarantine.1s");
    assert_eq!(copy.text(header::LANE).unwrap(), "fast");
    copy.ack();
    assert_eq!(env.settlement().await, Settlement::Quarantined);
}

#[tokio::test]
async fn a_crash_in_the_quarantine_is_recorded_in_the_copy() {
    let mut env = env().await;
    let worker = WorkerIncarnation::new("w", "0195f0c2-7a10-7000-8000-00000000002a");
    let (task, crashed) = (env.task(), worker.clone());
    env.test.begin(|settler| async move { settler.quarantine_after_crash(task, 1, &crashed).await });
    let copy = env.copy().await;
    assert_eq!(copy.key, "garenne.retry.quarantine.1s");
    assert_eq!(copy.number(header::QUARANTINE_RUNS), Some(1));
    assert_eq!(copy.text(header::QUARANTINE_WORKER), Some(worker.to_string()));
    copy.ack();
    assert_eq!(env.settlement().await, Settlement::Quarantined);
}

#[tokio::test]
async fn a_task_of_the_quarantine_is_passed_to_another_worker_after_a_second_or_at_once() {
    for (at_once, queue) in [(false, "garenne.retry.quarantine.1s"), (true, "garenne.quarantine")] {
        let mut env = env().await;
        let task = env.task();
        env.test.begin(|settler| async move { settler.pass_to_other_worker(task, at_once).await });
        let copy = env.copy().await;
        assert_eq!((copy.key.as_str(), copy.number(header::UNHANDLED_SINCE)), (queue, None));
        copy.ack();
        assert_eq!(env.settlement().await, Settlement::Retried);
    }
}

/// The topology of an earlier version has only the shortest delay.
#[tokio::test]
async fn a_task_waits_in_the_quarantine_also_if_the_queue_with_its_delay_is_missing() {
    let mut env = env().await;
    let task = env.task();
    env.test.begin(|settler| async move {
        settler.wait_in_quarantine(task, 1234, Delay::from_millis(60_000)).await;
    });
    let copy = env.copy().await;
    assert_eq!(copy.key, "garenne.retry.quarantine.1m");
    assert_eq!(copy.number(header::UNHANDLED_SINCE), Some(1234));
    copy.nack();
    let copy = env.copy().await;
    assert_eq!(copy.key, "garenne.retry.quarantine.1s");
    assert_eq!(copy.number(header::UNHANDLED_SINCE), Some(1234));
    copy.ack();
    assert_eq!(env.settlement().await, Settlement::Retried);
}

#[tokio::test]
async fn a_retry_from_the_quarantine_goes_to_the_recorded_lane_or_to_that_of_the_kind() {
    for (recorded, kind, lane) in [("slow", "bench.noop", "slow"), ("gone", "spectrum.analyze", "slow")] {
        for outcome in [failed(None), Outcome::Defer { wait: SECOND }] {
            let mut env = env().await;
            env.test.lane = Names::QUARANTINE.into();
            env.envelope(|task| {
                task.lane = Some(recorded.into());
                task.kind = Kind::parse(kind).unwrap();
            });
            env.test.settle(outcome);
            let copy = env.copy().await;
            assert_eq!(copy.key, format!("garenne.retry.{lane}.1s"));
            assert_eq!(copy.text(header::LANE), None);
        }
    }
}

#[tokio::test]
async fn a_retry_from_the_quarantine_without_a_lane_is_a_malformed_dead_letter() {
    for (outcome, attempts) in [(failed(None), Some(1)), (Outcome::Defer { wait: SECOND }, None)] {
        let lanes: Lanes = [("fast".to_owned(), Lane::bound_to(["reading.#"]))].into_iter().collect();
        let mut env = env_with(Vec::new(), Routes { lanes, ..Routes::default() }, FRAME_MAX).await;
        env.test.lane = Names::QUARANTINE.into();
        env.envelope(|task| task.lane = Some("gone".into()));
        env.test.settle(outcome);
        let copy = env.copy().await;
        assert_eq!(
            (copy.key.as_str(), copy.text(header::REASON).unwrap().as_str()),
            ("garenne.dead", "malformed")
        );
        assert!(copy.text(header::ERROR).unwrap().contains("\"gone\""));
        assert_eq!(copy.number(header::ATTEMPT), attempts);
        copy.ack();
        assert_eq!(env.settlement().await, Settlement::Dead);
    }
}

#[tokio::test]
async fn a_copy_for_a_sharded_lane_has_a_key() {
    let lanes: Lanes =
        [("fast".to_owned(), Lane { shards: 2, ..Lane::bound_to(["any.#"]) })].into_iter().collect();
    let routes = Routes { lanes, ..Routes::default() };
    let mut env = env_with(Vec::new(), routes, FRAME_MAX).await;
    env.test.settle(failed(None));
    let copy = env.copy().await;
    assert_eq!(copy.key, "garenne.retry.fast.shards.1s");
    assert_eq!(copy.text(header::KEY), Some(env.test.envelope.id.to_string()));
    copy.ack();
    assert_eq!(env.settlement().await, Settlement::Retried);
}

#[tokio::test]
async fn a_returned_copy_is_published_again_and_its_queue_is_reported_as_missing() {
    let mut env = env().await;
    env.test.settle(failed(None));
    let copy = env.copy().await;
    copy.return_unroutable();
    copy.ack();
    let again = env.copy().await;
    let problems = env.test.settler.missing.problems();
    assert!(problems.concat().starts_with("queue \"garenne.retry.fast.1s\" is missing"), "{problems:?}");
    again.ack();
    assert_eq!(env.settlement().await, Settlement::Retried);
}

#[tokio::test]
async fn after_three_refusals_in_a_row_the_queue_is_looked_up() {
    let mut env = env().await;
    env.test.settle(failed(None));
    for refusals in 1..=3 {
        assert!(env.test.settler.missing.problems().is_empty(), "looked up after {refusals} publishes");
        env.copy().await.nack();
    }
    let last = env.copy().await;
    assert_eq!(env.test.settler.missing.problems().len(), 1);
    last.ack();
    assert_eq!(env.settlement().await, Settlement::Retried);
}

/// A task whose message has a header of so many bytes.
fn large(env: &TestEnv, bytes: usize) -> InFlight {
    let mut headers = FieldTable::default();
    headers.insert("large".into(), long(&"x".repeat(bytes)));
    let mut delivery = env.delivery();
    delivery.head_mut().properties = BasicProperties::default().with_headers(headers);
    env.test.task_of(delivery)
}

#[tokio::test]
async fn a_copy_that_exceeds_the_frame_size_is_a_dead_letter_without_foreign_headers() {
    let mut env = env_with(Vec::new(), Routes::default(), 8192).await;
    let task = large(&env, 10_000);
    env.test.begin(|settler| async move { settler.defer(task, SECOND).await });
    let copy = env.copy().await;
    assert_eq!(
        (copy.key.as_str(), copy.text(header::REASON).unwrap().as_str()),
        ("garenne.dead", "too-large")
    );
    assert!(copy.text("large").is_none() && copy.number(header::DROPPED).is_some());
    assert_eq!(copy.text(header::LANE).unwrap(), "fast");
    copy.ack();
    assert_eq!(
        (env.settlement().await, env.dead_letters()),
        (Settlement::Dead, vec![("too-large".to_owned(), 1)])
    );
}

#[tokio::test]
async fn a_dead_letter_from_the_quarantine_names_the_recorded_lane() {
    let mut env = env_with(Vec::new(), Routes::default(), 8192).await;
    env.envelope(|task| task.lane = Some("slow".into()));
    let worker = WorkerIncarnation::new("w", "i");
    let task = large(&env, 10_000);
    env.test.begin(|settler| async move { settler.quarantine_after_crash(task, 1, &worker).await });
    let copy = env.copy().await;
    assert_eq!((copy.key.as_str(), copy.text(header::LANE).unwrap().as_str()), ("garenne.dead", "slow"));
    copy.ack();
    assert_eq!(env.settlement().await, Settlement::Dead);
}

#[tokio::test]
async fn a_dead_letter_that_exceeds_the_frame_size_keeps_its_reason_and_is_counted_once() {
    let mut env = env_with(Vec::new(), Routes::default(), 8192).await;
    let task = large(&env, 10_000);
    env.test.begin(|settler| async move {
        settler.dead_letter(task, None, DeadReason::Rejected, "no".into()).await;
    });
    let copy = env.copy().await;
    assert_eq!((copy.text("large"), copy.text(header::REASON).unwrap().as_str()), (None, "rejected"));
    copy.ack();
    assert_eq!(
        (env.settlement().await, env.dead_letters()),
        (Settlement::Dead, vec![("rejected".to_owned(), 1)])
    );
}

#[tokio::test]
async fn a_task_whose_body_the_broker_refuses_is_handed_back_and_not_published_again() {
    let mut env = env().await;
    env.test.settle(failed(None));
    let text = "PRECONDITION_FAILED - message size 2 is larger than configured max size 1";
    env.copy().await.close_channel(406, text);
    env.test.settler.force_close.cancel();
    assert_eq!(env.settlement().await, Settlement::Requeued);
}

#[tokio::test]
async fn an_attempt_is_counted_and_its_duration_observed_if_there_is_one() {
    let env = env().await;
    for (counted_as, duration) in [(TaskOutcome::Interrupted, Some(SECOND)), (TaskOutcome::Panic, None)] {
        let end = AttemptEnd { outcome: Outcome::HandBack, counted_as: Some(counted_as), duration };
        env.test.settler.settle(env.task(), &env.test.entry, end);
    }
    assert_eq!(env.test.entry.metrics.duration.get_sample_count(), 1);
}
