//! Spools in directories of the file system.

use std::fs;

use super::{CONFIG, record};
use crate::{
    Inspection, OpenError, Spool,
    storage::{Storage, disk::Directory},
};

#[tokio::test]
async fn one_process_writes_a_directory_and_the_refusal_names_both() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/spool");
    let spool = Spool::open(&path, CONFIG).await.unwrap();
    let error = Spool::open(&path, CONFIG).await.unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }));
    let expected = format!("spool {} is in use by process {}", path.display(), std::process::id());
    assert_eq!(error.to_string(), expected);
    spool.close().await;
    Spool::open(&path, CONFIG).await.unwrap().close().await;
}

#[tokio::test]
async fn records_survive_a_restart_in_order_and_drained_segments_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path(), CONFIG).await.unwrap();
    for id in ["a", "b", "c", "d", "e"] {
        spool.append(vec![record(id)]).await.unwrap();
    }
    let segments = spool.status().borrow().segments;
    assert!(segments > 1);
    spool.ack(1).await.unwrap();
    spool.close().await;

    let spool = Spool::open(folder.path(), CONFIG).await.unwrap();
    let batch = spool.read(0, 2, 1000).await.unwrap();
    assert_eq!((&batch.records[..], batch.end), (&[record("b"), record("c")][..], 3));
    let batch = spool.read(batch.end, 10, 1).await.unwrap();
    assert_eq!(batch.records, [record("d")], "one record even if it is larger than the bound");
    let batch = spool.read(batch.end, 10, 1000).await.unwrap();
    assert_eq!((batch.records, batch.end), (vec![record("e")], 5));
    spool.ack(5).await.unwrap();
    assert_eq!(spool.status().borrow().bytes, 0);
    spool.close().await;
    let mut names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort_unstable();
    assert_eq!(names, ["cursor", "lock"]);
}

#[tokio::test]
async fn an_inspection_shows_corrupt_bytes_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path(), CONFIG).await.unwrap();
    for id in ["a", "b", "c", "d", "e"] {
        spool.append(vec![record(id)]).await.unwrap();
    }
    spool.ack(1).await.unwrap();
    let inspection = Inspection::open(folder.path()).unwrap();
    let healthy: Vec<_> = inspection.segments().map(|(_, segment)| segment.unwrap()).collect();
    assert!(healthy.iter().all(|it| it.damaged().is_empty() && it.torn().is_none() && it.missing() == 0));
    let ids: Vec<String> = healthy.iter().flat_map(|it| it.records()).map(|(_, record)| record.id).collect();
    assert_eq!((ids, inspection.acknowledged()), (["b", "c", "d", "e"].map(str::to_owned).to_vec(), 1));
    spool.close().await;

    let (first, last) = {
        let mut names: Vec<_> = inspection.segments().map(|(name, _)| name.to_owned()).collect();
        (names.remove(0), names.pop().unwrap())
    };
    let path = folder.path().join(&first);
    let mut bytes = fs::read(&path).unwrap();
    let damaged = bytes.len() - 1;
    bytes[damaged] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let torn = folder.path().join(&last);
    let whole = fs::read(&torn).unwrap();
    fs::write(&torn, [&whole[..], b"\xffR\xfeS"].concat()).unwrap();

    let inspection = Inspection::open(folder.path()).unwrap();
    let segments: Vec<_> = inspection.segments().map(|(_, segment)| segment.unwrap()).collect();
    assert_eq!((segments[0].damaged().len(), segments[0].torn()), (1, None));
    assert!(segments[0].damaged()[0] < damaged);
    assert!(segments.last().unwrap().torn().is_some());
    fs::write(&torn, &whole[..whole.len() - 1]).unwrap();
    let segments: Vec<_> = inspection.segments().map(|(_, segment)| segment.unwrap()).collect();
    let cut = segments.last().unwrap();
    assert_eq!((cut.missing(), cut.is_corrupt(), cut.torn()), (1, true, None));
    fs::write(&torn, &whole).unwrap();
    assert_eq!(fs::read(&path).unwrap(), bytes);

    // Drained, the corrupt one is set aside and can still be looked at.
    let spool = Spool::open(folder.path(), CONFIG).await.unwrap();
    spool.ack(u64::MAX).await.unwrap();
    spool.close().await;
    let inspection = Inspection::open(folder.path()).unwrap();
    let segments: Vec<_> = inspection.segments().collect();
    assert_eq!((segments.len(), segments[0].0), (1, format!("{first}.set-aside").as_str()));
    let segment = segments[0].1.as_ref().unwrap();
    assert!(segment.is_set_aside() && segment.damaged().len() == 1);
    assert_eq!(segment.records().next().unwrap().1, record("a"));
}

#[tokio::test]
async fn records_that_are_set_aside_are_kept_apart_and_can_be_exported() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path(), CONFIG).await.unwrap();
    spool.append(vec![record("a"), record("b")]).await.unwrap();
    spool.set_aside(vec![record("a")]).await.unwrap();
    spool.ack(1).await.unwrap();
    spool.set_aside(vec![record("b")]).await.unwrap();
    spool.ack(2).await.unwrap();
    assert_eq!(spool.status().borrow().set_aside, 2);
    spool.close().await;
    let spool = Spool::open(folder.path(), CONFIG).await.unwrap();
    assert_eq!((spool.status().borrow().records(), spool.status().borrow().set_aside), (0, 2));
    let inspection = Inspection::open(folder.path()).unwrap();
    let segments = inspection.segments().map(|(_, segment)| segment.unwrap());
    let kept: Vec<_> = segments.flat_map(|it| it.records().collect::<Vec<_>>()).map(|(_, it)| it).collect();
    assert_eq!(kept, [record("a"), record("b")]);
}

/// What is written to a deleted file ends with the process.
#[tokio::test]
async fn records_are_not_accepted_into_a_segment_that_was_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path(), CONFIG).await.unwrap();
    spool.append(vec![record("a")]).await.unwrap();
    let names = Directory::read_only(folder.path()).list().unwrap();
    let segment = names.iter().find(|name| name.ends_with(".seg")).unwrap();
    fs::remove_file(folder.path().join(segment)).unwrap();
    spool.append(vec![record("b")]).await.unwrap();
    spool.close().await;
    let spool = Spool::open(folder.path(), CONFIG).await.unwrap();
    assert_eq!(spool.read(0, 10, 1000).await.unwrap().records, [record("b")]);
    assert_eq!(spool.status().borrow().unreadable, 1, "the deleted record is counted");
    spool.close().await;
}

#[tokio::test]
async fn a_directory_that_was_removed_refuses_records_until_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spool");
    let spool = Spool::open(&path, CONFIG).await.unwrap();
    fs::remove_dir_all(&path).unwrap();
    let error = spool.append(vec![record("a")]).await.unwrap_err().to_string();
    assert_eq!(spool.status().borrow().refusal.as_ref().unwrap().0, error);
    fs::create_dir(&path).unwrap();
    spool.append(vec![record("b")]).await.unwrap();
    assert_eq!(spool.status().borrow().refusal, None);
    assert_eq!(spool.read(0, 10, 1000).await.unwrap().records, [record("b")]);
    spool.close().await;
}
