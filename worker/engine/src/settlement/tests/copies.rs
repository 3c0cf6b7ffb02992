//! Where copies go, what they say, and when their original is settled.

use garenne_common::{
    config::{Lane, Lanes},
    telemetry::metrics::TaskOutcome,
};
use garenne_protocol::task::header::long;
use lapin::{BasicProperties, types::FieldTable};

use super::{
    fake_broker::{FakeBroker, Published},
    *,
};

pub(super) const FRAME_MAX: u32 = 131_072;
const SECOND: Duration = Duration::from_secs(1);

/// A settler, one delivery of its lane `fast`, and the broker.
pub(super) struct Scene {
    pub(super) bench: Bench,
    pub(super) broker: FakeBroker,
}

pub(super) async fn scene_with(sinks: Vec<Arc<dyn Sink>>, routes: Routes, frame_max: u32) -> Scene {
    let broker = FakeBroker::start(frame_max).await;
    let bench = bench_with(sinks, &broker.url(), routes);
    bench.metrics.register_kinds(["any.thing"]);
    Scene { bench, broker }
}

pub(super) async fn scene() -> Scene {
    scene_with(Vec::new(), Routes::default(), FRAME_MAX).await
}

impl Scene {
    pub(super) fn delivery(&self) -> Delivery {
        Delivery::mock(&self.bench.generation, 1, b"{}")
    }

    pub(super) fn envelope(&mut self, change: impl FnOnce(&mut Envelope)) {
        let mut envelope = Envelope::clone(&self.bench.envelope);
        change(&mut envelope);
        self.bench.envelope = Arc::new(envelope);
    }

    /// The next message. Nothing is settled before it is confirmed.
    pub(super) async fn copy(&mut self) -> Published {
        let copy = self.broker.next().await;
        assert_eq!(
            self.bench.generation.requested_settlements(),
            [],
            "settled before its copy was confirmed"
        );
        copy
    }

    /// The settlement of the original once nothing is on its way any more.
    pub(super) async fn settlement(&mut self) -> Settlement {
        self.bench.settler.idle().await;
        assert!(!self.broker.has_more(), "another message was published");
        let [(1, settlement)] = self.bench.generation.requested_settlements()[..] else {
            panic!("settled once")
        };
        settlement
    }

    /// The dead letters that were counted, by their reasons.
    fn dead(&self) -> Vec<(String, u64)> {
        let counts = self.bench.metrics.kind_counts();
        counts.get("any.thing").map_or_else(Vec::new, |kind| kind.dead.clone().into_iter().collect())
    }
}

fn failed(after: Option<Duration>) -> Outcome {
    Outcome::Retry { error: "io".into(), after }
}

#[tokio::test]
async fn a_failed_task_waits_on_the_rung_of_its_wait_with_the_attempt_counted() {
    let mut scene = scene().await;
    scene.bench.settle(failed(None));
    let copy = scene.copy().await;
    assert_eq!((copy.exchange.as_str(), copy.key.as_str()), ("", "garenne.retry.fast.1s"));
    assert_eq!(copy.number(header::ATTEMPT), Some(1));
    assert!(copy.number(header::FIRST_SEEN).is_some());
    assert_eq!((copy.number(header::NOT_BEFORE), copy.text(header::LANE)), (None, None));
    copy.ack();
    assert_eq!(scene.settlement().await, Settlement::Retried);
}

#[tokio::test]
async fn a_retry_after_a_given_wait_has_a_due_time_and_takes_the_longest_rung_that_fits() {
    for (after, waits, rung) in [(20 * SECOND, 20 * SECOND, "15s"), (2 * MAX_WAIT, MAX_WAIT, "1h")] {
        let mut scene = scene().await;
        let before = epoch_ms(SystemTime::now() + waits);
        scene.bench.settle(failed(Some(after)));
        let copy = scene.copy().await;
        assert_eq!(copy.key, format!("garenne.retry.fast.{rung}"));
        let due = copy.number(header::NOT_BEFORE).unwrap();
        assert!((before..=epoch_ms(SystemTime::now() + waits)).contains(&due), "due {}", due - before);
        copy.ack();
        assert_eq!(scene.settlement().await, Settlement::Retried);
    }
}

#[tokio::test]
async fn a_task_that_is_put_off_has_a_due_time_and_spends_no_attempt() {
    let mut scene = scene().await;
    let before = epoch_ms(SystemTime::now() + 70 * SECOND);
    scene.bench.settle(Outcome::PutOff { wait: 70 * SECOND });
    let copy = scene.copy().await;
    assert_eq!(copy.key, "garenne.retry.fast.1m");
    let due = copy.number(header::NOT_BEFORE).unwrap();
    assert!((before..=epoch_ms(SystemTime::now() + 70 * SECOND)).contains(&due), "due {}", due - before);
    assert_eq!(copy.number(header::ATTEMPT), None);
    copy.ack();
    assert_eq!(scene.settlement().await, Settlement::Retried);
}

#[tokio::test]
async fn a_dead_letter_says_why_where_and_by_whom_it_was_given_up() {
    let mut scene = scene().await;
    scene.bench.settle(Outcome::Dead { reason: DeadReason::Rejected, error: "no such device".into() });
    let copy = scene.copy().await;
    assert_eq!((copy.exchange.as_str(), copy.key.as_str()), ("", "garenne.dead"));
    let told =
        [header::REASON, header::ERROR, header::WORKER, header::LANE].map(|name| copy.text(name).unwrap());
    assert_eq!(told, ["rejected", "no such device", "test", "fast"]);
    copy.ack();
    assert_eq!(
        (scene.settlement().await, scene.dead()),
        (Settlement::Dead, vec![("rejected".to_owned(), 1)])
    );
}

#[tokio::test]
async fn the_last_attempt_is_named_in_the_dead_letter() {
    let mut scene = scene().await;
    scene.envelope(|task| task.attempt = 2);
    scene.bench.settle(failed(None));
    let copy = scene.copy().await;
    assert_eq!(copy.text(header::ERROR).unwrap(), "io (attempt 3 of 3)");
    assert_eq!(copy.text(header::REASON).unwrap(), "attempts-exhausted");
    copy.ack();
    assert_eq!(scene.settlement().await, Settlement::Dead);
}

#[tokio::test]
async fn a_message_that_could_not_be_read_is_dead_under_its_routing_key() {
    let mut scene = scene().await;
    let (settler, lane) = (Arc::clone(&scene.bench.settler), Arc::clone(&scene.bench.lane));
    let span = AttemptSpan::default();
    settler.dead(&lane, scene.delivery(), None, DeadReason::Malformed, "bad".into(), &span);
    let copy = scene.copy().await;
    assert_eq!(copy.properties.kind().as_ref().unwrap().as_str(), "some.kind");
    assert_eq!(copy.text(header::LANE).unwrap(), "fast");
    copy.ack();
    assert_eq!(scene.settlement().await, Settlement::Dead);
}

#[tokio::test]
async fn a_task_enters_the_quarantine_after_a_wait_and_remembers_its_lane() {
    let mut scene = scene().await;
    let (settler, lane) = (Arc::clone(&scene.bench.settler), Arc::clone(&scene.bench.lane));
    settler.quarantine(&lane, scene.delivery(), &scene.bench.envelope);
    let copy = scene.copy().await;
    assert_eq!(copy.key, "garenne.retry.quarantine.1s");
    assert_eq!(copy.text(header::LANE).unwrap(), "fast");
    copy.ack();
    assert_eq!(scene.settlement().await, Settlement::Quarantined);
}

#[tokio::test]
async fn a_crash_in_the_quarantine_is_written_on_the_copy() {
    let mut scene = scene().await;
    let worker = WorkerIncarnation::new("w", "0195f0c2-7a10-7000-8000-00000000002a");
    let settler = Arc::clone(&scene.bench.settler);
    settler.quarantine_again(scene.delivery(), &scene.bench.envelope, 1, &worker);
    let copy = scene.copy().await;
    assert_eq!(copy.key, "garenne.retry.quarantine.1s");
    assert_eq!(copy.number(header::QUARANTINE_RUNS), Some(1));
    assert_eq!(copy.text(header::QUARANTINE_WORKER), Some(worker.to_string()));
    copy.ack();
    assert_eq!(scene.settlement().await, Settlement::Quarantined);
}

#[tokio::test]
async fn a_task_without_a_handler_here_is_handed_on_with_the_time_since_when() {
    let mut scene = scene().await;
    let settler = Arc::clone(&scene.bench.settler);
    settler.hand_on(scene.delivery(), &scene.bench.envelope, 1234);
    let copy = scene.copy().await;
    assert_eq!(copy.key, "garenne.retry.quarantine.1s");
    assert_eq!(copy.number(header::QUARANTINE_SINCE), Some(1234));
    copy.ack();
    assert_eq!(scene.settlement().await, Settlement::Retried);
}

#[tokio::test]
async fn out_of_the_quarantine_a_task_goes_to_the_lane_it_came_from_or_that_takes_its_kind() {
    for (recorded, kind, lane) in [("slow", "bench.noop", "slow"), ("gone", "spectrum.analyze", "slow")] {
        for outcome in [failed(None), Outcome::PutOff { wait: SECOND }] {
            let mut scene = scene().await;
            scene.bench.lane = Names::QUARANTINE.into();
            scene.envelope(|task| {
                task.lane = Some(recorded.into());
                task.kind = Kind::parse(kind).unwrap();
            });
            scene.bench.settle(outcome);
            let copy = scene.copy().await;
            assert_eq!(copy.key, format!("garenne.retry.{lane}.1s"));
            assert_eq!(copy.text(header::LANE), None);
        }
    }
}

#[tokio::test]
async fn out_of_the_quarantine_a_task_of_no_lane_is_malformed() {
    for outcome in [failed(None), Outcome::PutOff { wait: SECOND }] {
        let mut scene = scene().await;
        scene.bench.lane = Names::QUARANTINE.into();
        scene.envelope(|task| task.lane = Some("gone".into()));
        scene.bench.settle(outcome);
        let copy = scene.copy().await;
        assert_eq!(
            (copy.key.as_str(), copy.text(header::REASON).unwrap().as_str()),
            ("garenne.dead", "malformed")
        );
        assert!(copy.text(header::ERROR).unwrap().contains("\"gone\""));
        copy.ack();
        assert_eq!(scene.settlement().await, Settlement::Dead);
    }
}

#[tokio::test]
async fn a_copy_for_a_lane_of_several_queues_has_a_key() {
    let lanes: Lanes =
        [("fast".to_owned(), Lane { shards: 2, ..Lane::bound_to(["any.#"]) })].into_iter().collect();
    let routes = Routes { lanes, ..Routes::default() };
    let mut scene = scene_with(Vec::new(), routes, FRAME_MAX).await;
    scene.bench.settle(failed(None));
    let copy = scene.copy().await;
    assert_eq!(copy.key, "garenne.retry.fast.shards.1s");
    assert_eq!(copy.text(header::KEY), Some(scene.bench.envelope.id.to_string()));
    copy.ack();
    assert_eq!(scene.settlement().await, Settlement::Retried);
}

#[tokio::test]
async fn a_returned_copy_is_published_again_and_its_queue_is_named_as_missing() {
    let mut scene = scene().await;
    scene.bench.settle(failed(None));
    scene.copy().await.send_back();
    let again = scene.copy().await;
    let problems = scene.bench.settler.missing.problems();
    assert!(problems.concat().starts_with("queue \"garenne.retry.fast.1s\" is missing"), "{problems:?}");
    again.ack();
    assert_eq!(scene.settlement().await, Settlement::Retried);
}

#[tokio::test]
async fn a_queue_that_refuses_three_times_in_a_row_is_looked_for() {
    let mut scene = scene().await;
    scene.bench.settle(failed(None));
    for refusals in 1..=3 {
        assert!(scene.bench.settler.missing.problems().is_empty(), "looked for after {refusals} publishes");
        scene.copy().await.nack();
    }
    let last = scene.copy().await;
    assert_eq!(scene.bench.settler.missing.problems().len(), 1);
    last.ack();
    assert_eq!(scene.settlement().await, Settlement::Retried);
}

/// The delivery of a message with a header of so many bytes.
fn large(scene: &Scene, bytes: usize) -> Delivery {
    let mut headers = FieldTable::default();
    headers.insert("large".into(), long(&"x".repeat(bytes)));
    let mut delivery = scene.delivery();
    delivery.properties = Arc::new(BasicProperties::default().with_headers(headers));
    delivery
}

#[tokio::test]
async fn a_copy_that_fits_no_frame_is_a_dead_letter_without_what_is_too_large() {
    let mut scene = scene_with(Vec::new(), Routes::default(), 8192).await;
    let settler = Arc::clone(&scene.bench.settler);
    settler.put_off(&scene.bench.lane, large(&scene, 10_000), &scene.bench.envelope, SECOND);
    let copy = scene.copy().await;
    assert_eq!(
        (copy.key.as_str(), copy.text(header::REASON).unwrap().as_str()),
        ("garenne.dead", "too-large")
    );
    assert!(copy.text("large").is_none() && copy.number(header::DROPPED).is_some());
    assert_eq!(copy.text(header::LANE).unwrap(), "fast");
    copy.ack();
    assert_eq!(
        (scene.settlement().await, scene.dead()),
        (Settlement::Dead, vec![("too-large".to_owned(), 1)])
    );
}

#[tokio::test]
async fn a_dead_letter_out_of_the_quarantine_names_the_lane_it_came_from() {
    let mut scene = scene_with(Vec::new(), Routes::default(), 8192).await;
    scene.envelope(|task| task.lane = Some("slow".into()));
    let (settler, worker) = (Arc::clone(&scene.bench.settler), WorkerIncarnation::new("w", "i"));
    settler.quarantine_again(large(&scene, 10_000), &scene.bench.envelope, 1, &worker);
    let copy = scene.copy().await;
    assert_eq!((copy.key.as_str(), copy.text(header::LANE).unwrap().as_str()), ("garenne.dead", "slow"));
    copy.ack();
    assert_eq!(scene.settlement().await, Settlement::Dead);
}

#[tokio::test]
async fn a_dead_letter_that_fits_no_frame_keeps_its_reason_and_is_counted_once() {
    let mut scene = scene_with(Vec::new(), Routes::default(), 8192).await;
    let (settler, lane) = (Arc::clone(&scene.bench.settler), Arc::clone(&scene.bench.lane));
    let (delivery, envelope) = (large(&scene, 10_000), Some(Arc::clone(&scene.bench.envelope)));
    settler.dead(&lane, delivery, envelope, DeadReason::Rejected, "no".into(), &AttemptSpan::default());
    let copy = scene.copy().await;
    assert_eq!((copy.text("large"), copy.text(header::REASON).unwrap().as_str()), (None, "rejected"));
    copy.ack();
    assert_eq!(
        (scene.settlement().await, scene.dead()),
        (Settlement::Dead, vec![("rejected".to_owned(), 1)])
    );
}

#[tokio::test]
async fn a_body_that_the_broker_does_not_take_goes_back_and_is_not_published_again() {
    let mut scene = scene().await;
    scene.bench.settle(failed(None));
    let text = "PRECONDITION_FAILED - message size 2 is larger than configured max size 1";
    scene.copy().await.close_channel(406, text);
    scene.bench.settler.force_close.cancel();
    assert_eq!(scene.settlement().await, Settlement::Requeued);
}

#[tokio::test]
async fn an_attempt_counts_with_its_time_where_it_has_one() {
    let scene = scene().await;
    for (attempt, took) in [(TaskOutcome::Interrupted, Some(SECOND)), (TaskOutcome::Panic, None)] {
        let end = AttemptEnd { outcome: Outcome::HandBack, attempt: Some(attempt), took };
        let (bench, delivery) = (&scene.bench, scene.delivery());
        let envelope = Arc::clone(&bench.envelope);
        bench.settler.settle(&bench.lane, delivery, envelope, &bench.entry, end, AttemptSpan::default());
    }
    assert_eq!(scene.bench.entry.metrics.duration.get_sample_count(), 1);
}
