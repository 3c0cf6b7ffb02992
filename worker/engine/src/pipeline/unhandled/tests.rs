use garenne_protocol::{
    settlement::Settlement,
    task::{ContentType, Kind, NewTask, UnhandledRecord, header},
};

use super::*;
use crate::{
    fleet::tests::hello_in,
    pipeline::quarantine::tests::{TestEnv, lane_env},
};

const TEN_MINUTES: Duration = Duration::from_secs(600);
const KIND: &str = "any.thing";

/// A fleet of `lane_consumers` workers of a lane, of which one has the kind.
fn one_of(lane_consumers: usize) -> KindWorkers {
    KindWorkers { anywhere: 1, in_lane: 1, lane_consumers }
}

#[test]
fn a_task_is_passed_on_at_once_and_again_after_pauses_that_grow_only_if_chance_cannot_explain_its_returns() {
    assert_eq!(pause(0, one_of(2), 1.0), Duration::ZERO);
    assert!((1..=8).all(|passed_on| pause(passed_on, one_of(2), 1.0) == PAUSE));
    assert_eq!(pause(9, one_of(2), 1.0), 2 * PAUSE);
    assert_eq!(pause(40, one_of(10), 1.0), PAUSE, "in ten workers it takes more to find the only one");
    for passed_on in [15, 1_000, u32::MAX] {
        assert_eq!(pause(passed_on, one_of(2), 1.0), Duration::from_millis(640));
        assert_eq!(pause(passed_on, one_of(2), 0.0), Duration::ZERO);
    }
}

#[test]
fn a_waiting_task_gets_ten_copies_in_ten_minutes() {
    let copies = |ladder: &Ladder, wait: Duration, late: Duration| {
        let (mut copies, mut waited) = (0, Duration::ZERO);
        while waited < wait {
            waited += next_delay(ladder, waited, wait).as_duration() + late;
            copies += 1;
        }
        (copies, waited.as_secs())
    };
    let ladder = Ladder::default();
    assert_eq!(copies(&ladder, TEN_MINUTES, Duration::ZERO), (10, 622));
    assert_eq!(copies(&ladder, Duration::from_secs(2), Duration::ZERO), (2, 2));
    for late in (0..20_000).step_by(50).map(Duration::from_millis) {
        let (copies, waited) = copies(&ladder, TEN_MINUTES, late);
        assert!(copies <= 10 && waited <= 720, "{copies} copies in {waited} s, each {late:?} late");
    }
    for minutes in 1..=60 {
        let (copies, _) = copies(&ladder, Duration::from_secs(minutes * 60), Duration::ZERO);
        assert!(copies <= 16, "{copies} in {minutes} min");
    }
}

#[test]
fn a_task_waits_since_the_time_on_record() {
    let now = 1_800_000_000_000;
    let task = |since| {
        let unhandled = UnhandledRecord { since, ..UnhandledRecord::default() };
        let properties =
            NewTask::new(Kind::parse(KIND).unwrap(), ContentType::Json, Vec::new()).properties(clock::now());
        let task = Envelope::read(KIND, &properties, None, |_| true, clock::now()).unwrap();
        Envelope { unhandled: Some(unhandled.into()), ..task }
    };
    let since = |recorded| waiting_since(&task(recorded), TEN_MINUTES, now);
    assert_eq!(since(None), Some(now));
    assert_eq!(since(Some(now - 599_999)), Some(now - 599_999));
    assert_eq!(since(Some(now - 600_000)), None);
    assert_eq!(since(Some(now + 1)), Some(now), "a time in the future counts as now");
    assert_eq!(waiting_since(&task(None), Duration::ZERO, now), None, "without a wait");
}

/// Settles a task of a kind that the worker does not have, with this record.
fn settle(env: &TestEnv, record: UnhandledRecord, delivery_count: u32) {
    let delivery = crate::consumer::Delivery::mock(&env.test.generation, 1, b"{}");
    let envelope =
        Envelope { unhandled: Some(record.into()), delivery_count, ..Envelope::clone(&env.test.envelope) };
    let task = InFlight { envelope: Arc::new(envelope), ..env.test.task_of(delivery) };
    env.pipeline.admit_later(None, Arc::clone(&env.pipeline).settle_unhandled(task));
}

fn waiting_names(env: &TestEnv) -> Vec<(String, String, u64)> {
    let beats = env.test.settler.unhandled.beats(0).into_iter();
    beats.map(|beat| (beat.lane, beat.kind, beat.tasks)).collect()
}

#[tokio::test]
async fn a_task_is_passed_on_to_a_running_worker_of_its_lane_with_its_redeliveries() {
    let mut env = lane_env().await;
    hello_in(&env.pipeline.member, "mailer", KIND, &["fast"]);
    env.fleet.set_control_queue("mailer", Some(true));
    let record = UnhandledRecord { since: Some(1), due: Some(9), passed_on: 3, returns: 1 };
    settle(&env, record, 2);
    let copy = env.broker.next().await;
    assert_eq!((copy.exchange.as_str(), copy.key.as_str()), ("", "garenne.tasks.fast"));
    assert_eq!((copy.number(header::PASSED_ON), copy.number(header::RETURNS)), (Some(4), Some(3)));
    assert_eq!(copy.number(header::UNHANDLED_SINCE), None, "its kind lives, so that it does not wait");
    copy.ack();
    assert_eq!(env.settlement().await, Settlement::Retried);
}

#[tokio::test]
async fn a_task_that_a_full_queue_rejects_goes_through_the_retry_queue() {
    let mut env = lane_env().await;
    hello_in(&env.pipeline.member, "mailer", KIND, &["fast"]);
    env.fleet.set_control_queue("mailer", Some(true));
    settle(&env, UnhandledRecord::default(), 0);
    env.broker.next().await.nack();
    let copy = env.broker.next().await;
    assert_eq!((copy.key.as_str(), copy.number(header::PASSED_ON)), ("garenne.retry.fast.1s", Some(1)));
    copy.ack();
    assert_eq!(env.settlement().await, Settlement::Retried);
}

#[tokio::test]
async fn a_task_of_another_lanes_kind_is_passed_on_to_that_lane() {
    let mut env = lane_env().await;
    hello_in(&env.pipeline.member, "mailer", KIND, &["default"]);
    env.fleet.set_control_queue("mailer", Some(true));
    settle(&env, UnhandledRecord::default(), 0);
    assert_eq!(env.broker.next().await.key, "garenne.tasks.default");
}

#[tokio::test]
async fn a_task_of_a_kind_that_no_running_worker_has_waits_and_is_finally_dead_lettered() {
    let mut env = lane_env().await;
    hello_in(&env.pipeline.member, "mailer", KIND, &["fast"]);
    env.fleet.set_control_queue("mailer", Some(false));
    let before = epoch_ms(clock::now());
    settle(&env, UnhandledRecord { passed_on: 7, ..UnhandledRecord::default() }, 2);
    let copy = env.broker.next().await;
    assert_eq!(copy.key, "garenne.retry.fast.1s");
    assert!(copy.number(header::UNHANDLED_SINCE).unwrap() >= before);
    assert_eq!((copy.number(header::PASSED_ON), copy.number(header::RETURNS)), (None, Some(2)));
    assert_eq!(copy.number(header::ATTEMPT), None, "no attempt is spent");
    copy.ack();
    assert_eq!(env.settlement().await, Settlement::Retried);
    assert_eq!(waiting_names(&env), [("fast".into(), KIND.into(), 1)]);

    let mut env = lane_env().await;
    let since = epoch_ms(clock::now()) - 600_000;
    settle(&env, UnhandledRecord { since: Some(since), ..UnhandledRecord::default() }, 0);
    let letter = env.broker.next().await;
    assert_eq!(
        (letter.key.as_str(), letter.text(header::REASON).unwrap().as_str()),
        ("garenne.dead", "unknown-kind")
    );
    let expected = "no handler for kind \"any.thing\" on any worker for 10m";
    assert_eq!(letter.text(header::ERROR).unwrap(), expected);
    assert_eq!(waiting_names(&env), []);
}

#[tokio::test]
async fn a_task_never_becomes_a_dead_letter_while_a_worker_of_no_lane_in_question_has_its_kind() {
    let mut env = lane_env().await;
    hello_in(&env.pipeline.member, "mailer", KIND, &["slow"]);
    env.fleet.set_control_queue("mailer", Some(true));
    let record = UnhandledRecord { since: Some(1), ..UnhandledRecord::default() };
    settle(&env, record, 0);
    assert_eq!(env.broker.next().await.key, "garenne.retry.fast.1m", "it waits, with few copies");
}
