//! Records of a batch that all leave it at once.

use bytes::Bytes;
use garenne_protocol::task::{Copied, DeadReason};

use super::{super::records::COPY_BYTES, fake_broker::FakeBroker, *};

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
