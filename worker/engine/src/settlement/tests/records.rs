//! Records of a batch: their ends, and how they leave it.

use bytes::Bytes;
use garenne_amqp_kit::{FakeBroker, Published};
use garenne_pool::{Cause, Ending};
use garenne_protocol::task::{Copied, DeadReason, header};

use super::{
    super::records::COPY_BYTES,
    copies::{TestEnv, env},
    *,
};

const DEADLINE: Duration = Duration::from_secs(7);

/// Settles a batch after these ends of its first records. Returns the copies of the two records that leave it, by their ids.
async fn copies_after(
    env: &mut TestEnv,
    ids: &[&str],
    ends: Vec<Outcome>,
    ending: Ending<()>,
) -> [(String, Published); 2] {
    let task = env.test.batch_of(ids);
    let batch = Arc::clone(task.batch.as_ref().unwrap());
    ends.into_iter().for_each(|outcome| batch.record_ended(AttemptEnd::not_started(outcome)));
    env.test.settler.settle_batch(task, &batch, &env.test.entry, ending, DEADLINE);
    let mut copies = [env.copy().await, env.copy().await]
        .map(|copy| (copy.properties.message_id().as_ref().unwrap().to_string(), copy));
    copies.sort_by(|(one, _), (other, _)| one.cmp(other));
    copies
}

#[tokio::test]
async fn each_record_of_a_batch_is_settled_by_its_own_end() {
    let mut env = env().await;
    let retry = Outcome::Retry { error: "io".into(), after: None };
    let dead = Outcome::Dead { reason: DeadReason::Rejected, error: "no".into() };
    let ending = Ending::Finished { output: (), cancelled_by: None };
    let copies = copies_after(&mut env, &["a", "b", "c"], vec![success(), retry, dead], ending).await;
    let queues = copies.each_ref().map(|(id, copy)| (id.as_str(), copy.key.as_str()));
    assert_eq!(queues, [("b", "garenne.retry.fast.1s"), ("c", "garenne.dead")]);
    copies.iter().for_each(|(_, copy)| copy.ack());
    assert_eq!(env.settlement().await, Settlement::Acked);
}

#[tokio::test]
async fn a_record_that_hung_until_the_deadline_of_its_batch_continues_with_that_deadline() {
    let mut env = env().await;
    let ending = Ending::GaveUp { cause: Cause::Deadline, stuck: false };
    let copies = copies_after(&mut env, &["hung", "waited"], Vec::new(), ending).await;
    let timeouts = copies.each_ref().map(|(id, copy)| (id.as_str(), copy.number(header::TIMEOUT_MS)));
    assert_eq!(timeouts, [("hung", Some(7000)), ("waited", None)]);
    copies.iter().for_each(|(_, copy)| copy.ack());
    assert_eq!(env.settlement().await, Settlement::Retried);
}

#[tokio::test]
async fn a_bounded_number_of_records_is_copied_at_a_time_and_all_are_in_the_end() {
    const PLACES: usize = COPY_BYTES / Copied::RECORD_BYTES;
    const RECORDS: usize = PLACES + 88;
    let mut broker = FakeBroker::start(131_072).await;
    let test = test_settler(Vec::new(), &broker.url(), Routes::default());
    let batch = Delivery::mock(&test.generation, 1, b"{}");
    let records: Vec<_> =
        batch.split((0..RECORDS).map(|_| Bytes::new())).map(|part| (test.task_of(part), ())).collect();
    test.begin(|settler| async move {
        let dead_letter = |record, ()| {
            let this = Arc::clone(&settler);
            settler.in_background("record", async move {
                this.dead_letter(record, None, DeadReason::UnknownKind, "no handler".to_owned()).await;
            });
        };
        settler.for_each_record(records, dead_letter).await;
    });
    let mut held = Vec::new();
    for _ in 0..PLACES {
        held.push(broker.next().await);
    }
    assert_eq!(test.settler.record_places.available_permits(), 0);
    assert!(!broker.has_more(), "each of the others waits for a place");
    held.drain(..).for_each(|published| published.ack());
    for _ in PLACES..RECORDS {
        broker.next().await.ack();
    }
    test.settler.idle().await;
    assert_eq!(test.generation.requested_settlements(), [(1, Settlement::Dead)]);
    assert_eq!(test.settler.record_places.available_permits(), PLACES);
}

#[tokio::test(start_paused = true)]
async fn records_that_have_no_place_when_the_channel_dies_go_back_with_their_batch() {
    let test = settler_of(Vec::new());
    let batch = Delivery::mock(&test.generation, 1, b"{}");
    let parts = batch.split([Bytes::new(), Bytes::new()]);
    let records = parts.map(|part| (test.task_of(part), ())).collect();
    test.generation.end();
    test.settler.for_each_record(records, |_, ()| panic!("the broker delivers it again")).await;
    test.settler.idle().await;
    assert_eq!(test.generation.requested_settlements(), [(1, Settlement::Requeued)]);
}
