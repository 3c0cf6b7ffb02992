use std::path::Path;

use garenne_protocol::task::{ContentType, Kind, TaskId};
use garenne_spool::{Inspection, SpoolConfig, task::record_of};

use super::*;
use crate::testing::MemorySender;

fn record(id: &str) -> Record {
    record_of_kind(id, "reading.process")
}

fn record_of_kind(id: &str, kind: &str) -> Record {
    let kind = Kind::parse(kind).unwrap();
    let task = NewTask::new(kind, ContentType::Json, b"{}".to_vec());
    record_of(&NewTask { id: TaskId::parse(id).unwrap(), ..task }, SystemTime::now())
}

async fn filled(directory: &Path, records: Vec<Record>) -> Spool {
    let spool = Spool::open(directory, SpoolConfig::default()).await.unwrap();
    spool.append(records).await.unwrap();
    spool
}

fn ids(publisher: &MemorySender) -> Vec<String> {
    publisher.tasks().iter().map(|task| task.id.to_string()).collect()
}

#[tokio::test]
async fn a_batch_is_acknowledged_after_its_confirms_and_published_again_after_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let spool = filled(folder.path(), vec![record("a"), record("b")]).await;
    let publisher = MemorySender::new();
    let mut drain = SpoolDrain::new(spool.clone(), publisher.clone(), None);
    publisher.fail(Some(PublishError::Blocked));
    assert!(matches!(drain.next_batch().await, Err(DrainError::Publish(PublishError::Blocked))));
    assert_eq!(spool.status().borrow().records(), 2);
    publisher.fail(None);
    assert_eq!(drain.next_batch().await.unwrap(), 2);
    assert_eq!((ids(&publisher), spool.status().borrow().records()), (vec!["a".into(), "b".into()], 0));
    assert_eq!(drain.next_batch().await.unwrap(), 0);
}

#[tokio::test]
async fn a_record_that_can_never_be_published_is_set_aside_and_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let foreign = Record { body: b"no task".to_vec(), ..record("x") };
    let spool = filled(folder.path(), vec![record("a"), foreign.clone(), record("b")]).await;
    let publisher = MemorySender::new();
    let mut drain = SpoolDrain::new(spool.clone(), publisher.clone(), None);
    assert_eq!(drain.next_batch().await.unwrap(), 3);
    assert_eq!((ids(&publisher), spool.status().borrow().set_aside), (vec!["a".into(), "b".into()], 1));

    spool.append(vec![record("large")]).await.unwrap();
    publisher.fail(Some(PublishError::TooLarge { what: "body", bytes: 2, limit: 1 }));
    assert_eq!(drain.next_batch().await.unwrap(), 1);
    assert_eq!(kept(folder.path()), ["x", "large"]);
    assert_eq!(spool.status().borrow().unpublishable, 2);
}

/// The ids of all records in the files of the spool, those that wait first.
fn kept(directory: &Path) -> Vec<String> {
    let inspection = Inspection::open(directory).unwrap();
    let ids = |(_, segment): (_, std::io::Result<garenne_spool::InspectedSegment>)| {
        segment.unwrap().records().map(|(_, record)| record.id).collect::<Vec<_>>()
    };
    inspection.segments().flat_map(ids).collect()
}

#[tokio::test(start_paused = true)]
async fn a_task_that_the_broker_returns_is_set_aside_after_a_while_and_blocks_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let returned = ["u1", "u2"].map(|id| record_of_kind(id, "image.resize"));
    let [first, second] = returned;
    let spool = filled(folder.path(), vec![record("a"), first, record("b")]).await;
    let publisher = MemorySender::new();
    publisher.return_kind(Some("image.resize"));
    let mut drain = SpoolDrain::new(spool.clone(), publisher.clone(), None);
    let error = drain.next_batch().await.unwrap_err();
    let expected = "no queue is bound to exchange \"garenne.tasks\" for routing key \"image.resize\"; it is set aside if this lasts for 10s";
    assert_eq!(error.to_string(), expected);
    assert_eq!(spool.status().borrow().records(), 3, "the topology may be restored meanwhile");
    let published = publisher.tasks().len();
    assert!(matches!(drain.next_batch().await, Err(DrainError::Returned(_))));
    assert_eq!(publisher.tasks().len(), published, "the others are not published again");
    sleep_until(Instant::now() + RETURN_GRACE).await;
    assert_eq!(drain.next_batch().await.unwrap(), 3);
    assert_eq!(ids(&publisher).last().unwrap(), "b");

    spool.append(vec![second, record("c")]).await.unwrap();
    assert_eq!(drain.next_batch().await.unwrap(), 2, "one wait for all tasks in the spool");
    assert_eq!(ids(&publisher).last().unwrap(), "c");
    assert_eq!(kept(folder.path()), ["u1", "u2"]);
    let status = spool.status().borrow().clone();
    assert_eq!((status.unpublishable, status.set_aside, status.records()), (2, 2, 0));
}

#[tokio::test]
async fn a_batch_that_cannot_be_set_aside_is_not_published_again() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("spool");
    let foreign = Record { body: b"no task".to_vec(), ..record("x") };
    let spool = filled(&directory, vec![record("a"), foreign]).await;
    let publisher = MemorySender::gated();
    let mut drain = SpoolDrain::new(spool.clone(), publisher.clone(), None);
    let removed = async {
        publisher.received(1).await;
        std::fs::remove_dir_all(&directory).unwrap();
        publisher.confirm(10);
    };
    let (outcome, ()) = tokio::join!(drain.next_batch(), removed);
    assert!(matches!(outcome, Err(DrainError::Spool(SpoolError::Io { .. }))));
    assert!(matches!(drain.next_batch().await, Err(DrainError::Spool(_))));
    std::fs::create_dir(&directory).unwrap();
    assert_eq!(drain.next_batch().await.unwrap(), 2);
    assert_eq!((ids(&publisher), kept(&directory)), (vec!["a".to_owned()], vec!["x".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_task_that_becomes_routable_in_time_is_published() {
    let folder = tempfile::tempdir().unwrap();
    let spool = filled(folder.path(), vec![record_of_kind("u", "image.resize")]).await;
    let publisher = MemorySender::new();
    publisher.return_kind(Some("image.resize"));
    let mut drain = SpoolDrain::new(spool.clone(), publisher.clone(), None);
    assert!(matches!(drain.next_batch().await, Err(DrainError::Returned(_))));
    publisher.return_kind(None);
    assert_eq!(drain.next_batch().await.unwrap(), 1);
    assert_eq!((ids(&publisher), spool.status().borrow().set_aside), (vec!["u".to_owned()], 0));
}

#[tokio::test(start_paused = true)]
async fn the_rate_bounds_the_records_per_second() {
    let folder = tempfile::tempdir().unwrap();
    let records = (0..100).map(|number| record(&format!("r{number}"))).collect();
    let spool = filled(folder.path(), records).await;
    let publisher = MemorySender::new();
    let mut drain = SpoolDrain::new(spool, publisher.clone(), Some(50.0));
    let start = Instant::now();
    while drain.next_batch().await.unwrap() > 0 {}
    assert_eq!(publisher.tasks().len(), 100);
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
}
