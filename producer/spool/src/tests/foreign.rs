//! Files that others add to a spool's directory or remove from it.

use std::{fs, process::Command, sync::mpsc, thread, time::Duration};

use super::{CONFIG, append, memory_disk::MemoryDisk, open, record, waiting};
use crate::{
    Inspection, OpenError, Spool,
    frame::{file_header, write},
    segment::{SET_ASIDE, SegmentName},
};

/// A valid segment with one record.
fn segment(first: u64, generation: u32, id: &str) -> (String, Vec<u8>) {
    let mut bytes = file_header(first);
    write(&mut bytes, first, &record(id));
    (SegmentName { first, generation, after_gap: false }.file(), bytes)
}

#[test]
fn a_segment_is_kept_if_a_foreign_one_begins_before_its_end() {
    for first in [0, 1] {
        let disk = MemoryDisk::default();
        append(&mut open(&disk), &["a", "b", "c"]).unwrap();
        let mut files = disk.files();
        let (own, content) = files.iter().find(|(name, _)| name.ends_with(".seg")).unwrap();
        let (own, content) = (own.clone(), content.clone());
        let (name, bytes) = segment(first, 9, "foreign");
        files.insert(name, bytes);
        let disk = MemoryDisk::with(files);
        let mut log = open(&disk);
        let expected = if first == 0 { vec!["foreign"] } else { vec!["a", "foreign"] };
        assert_eq!(waiting(&mut log), expected);
        // With the same first position, the cursor does not tell which of the two it means.
        let expected = if first == 0 { (5, 2) } else { (2, 1) };
        assert_eq!((log.status().unreadable, log.status().corrupt), expected);
        log.ack(first + 1).unwrap();
        assert_eq!(disk.files()[&(own + SET_ASIDE)], content, "nothing was cut");
        append(&mut log, &["new"]).unwrap();
        assert_eq!(waiting(&mut log), ["new"]);
    }
}

#[test]
fn a_file_without_a_record_says_nothing_about_the_segment_before_it() {
    for (content, is_kept) in [
        (Vec::new(), false),
        (vec![0; 100], false),
        (file_header(1), false),
        (b"hello\n".to_vec(), true),
        ([b"hello".to_vec(), vec![7; 4096]].concat(), true),
    ] {
        for first in [0, 1, 3] {
            let disk = MemoryDisk::default();
            append(&mut open(&disk), &["a", "b", "c"]).unwrap();
            let mut files = disk.files();
            let name = SegmentName { first, generation: 9, after_gap: false }.file();
            files.insert(name.clone(), content.clone());
            let disk = MemoryDisk::with(files);
            let mut log = open(&disk);
            assert_eq!(waiting(&mut log), ["a", "b", "c"], "{first} {content:?}");
            // A header of another position is no beginning of this segment.
            let is_kept = is_kept || !content.is_empty() && content == file_header(1) && first != 1;
            assert_eq!(log.status().corrupt, u64::from(is_kept));
            assert_eq!(disk.files().get(&(name.clone() + SET_ASIDE)), is_kept.then_some(&content));
            assert!(!disk.files().contains_key(&name));
        }
    }
}

#[test]
fn a_newest_segment_that_is_gone_is_noticed() {
    let remove = |disk: &MemoryDisk| {
        let mut files = disk.files();
        files.retain(|name, _| !name.ends_with(".seg"));
        open(&MemoryDisk::with(files)).status().unreadable
    };
    let disk = MemoryDisk::default();
    let mut log = open(&disk);
    assert_eq!(remove(&disk), 0, "nothing was stored");
    append(&mut log, &["a", "b", "c"]).unwrap();
    assert_eq!(remove(&disk), 3);
    log.ack(1).unwrap();
    assert_eq!(remove(&disk), 2);
    log.ack(3).unwrap();
    assert_eq!(remove(&disk), 0, "everything was published");
    append(&mut log, &["d"]).unwrap();
    assert_eq!(remove(&disk), 1);
    drop(log);
    let mut log = open(&disk);
    assert_eq!(waiting(&mut log), ["d"]);
    log.ack(4).unwrap();
    assert_eq!(remove(&disk), 0);
}

/// Such as those of another host, which somebody copied into the directory to publish them.
#[test]
fn segments_before_the_cursor_that_do_not_reach_it_are_set_aside() {
    for has_more in [false, true] {
        let disk = MemoryDisk::default();
        let mut log = open(&disk);
        append(&mut log, &["a", "b", "c", "d", "e"]).unwrap();
        log.ack(5).unwrap();
        if has_more {
            append(&mut log, &["f"]).unwrap();
        }
        let mut files = disk.files();
        let foreign = [segment(0, 8, "x"), segment(1, 9, "y")];
        files.extend(foreign.clone());
        let disk = MemoryDisk::with(files);
        let mut log = open(&disk);
        let status = log.status();
        assert_eq!((status.unreadable, status.corrupt, status.set_aside), (2, 2, 2), "{has_more}");
        for (name, content) in &foreign {
            assert_eq!(&disk.files()[&format!("{name}{SET_ASIDE}")], content, "{has_more}");
        }
        assert_eq!(waiting(&mut log), if has_more { vec!["f"] } else { vec![] });
        append(&mut log, &["new"]).unwrap();
        assert_eq!(waiting(&mut log).last().map(String::as_str), Some("new"));
    }
}

/// A crash may leave them after the cursor was written.
#[test]
fn drained_segments_up_to_the_cursor_are_removed() {
    let disk = MemoryDisk::default();
    append(&mut open(&disk), &["a", "b", "c"]).unwrap();
    let mut log = open(&disk);
    append(&mut log, &["d", "e"]).unwrap();
    let before = disk.files();
    log.ack(5).unwrap();
    let cursor = disk.files();
    let disk = MemoryDisk::with(before.into_iter().chain(cursor).collect());
    let log = open(&disk);
    assert_eq!((log.status().segments, log.status().set_aside, log.status().corrupt), (0, 0, 0));
}

#[tokio::test]
async fn an_inspection_shows_segments_before_the_cursor_that_do_not_reach_it() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path(), CONFIG).await.unwrap();
    spool.append(vec![record("a"), record("b")]).await.unwrap();
    spool.ack(2).await.unwrap();
    spool.close().await;
    let (foreign, bytes) = segment(0, 9, "foreign");
    fs::write(folder.path().join(&foreign), bytes).unwrap();
    let inspection = Inspection::open(folder.path()).unwrap();
    let segments: Vec<_> = inspection.segments().map(|(_, segment)| segment.unwrap()).collect();
    assert_eq!(
        segments.iter().map(|it| (it.is_detached(), it.is_corrupt())).collect::<Vec<_>>(),
        [(true, true)]
    );
}

#[tokio::test]
async fn an_inspection_shows_a_foreign_segment_and_a_missing_first_one() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path(), CONFIG).await.unwrap();
    for id in ["a", "b", "c", "d", "e"] {
        spool.append(vec![record(id)]).await.unwrap();
    }
    spool.close().await;
    let inspection = Inspection::open(folder.path()).unwrap();
    let names: Vec<String> = inspection.segments().map(|(name, _)| name.to_owned()).collect();
    let (foreign, bytes) = segment(1, 9, "foreign");
    fs::write(folder.path().join(&foreign), bytes).unwrap();
    let inspection = Inspection::open(folder.path()).unwrap();
    let overlapped: Vec<u64> =
        inspection.segments().map(|(_, segment)| segment.unwrap().overlapped()).collect();
    assert_eq!((overlapped, inspection.missing()), (vec![2, 0, 0], 0));

    fs::remove_file(folder.path().join(foreign)).unwrap();
    fs::remove_file(folder.path().join(&names[0])).unwrap();
    assert_eq!(Inspection::open(folder.path()).unwrap().missing(), 3);
    let spool = Spool::open(folder.path(), CONFIG).await.unwrap();
    let status = spool.status().borrow().clone();
    assert_eq!((status.unreadable, status.corrupt, status.records()), (3, 1, 2));
    let batch = spool.read(0, 10, 1000).await.unwrap();
    assert_eq!(batch.records, [record("d"), record("e")]);
    spool.ack(batch.end).await.unwrap();
    spool.append(vec![record("f")]).await.unwrap();
    spool.close().await;
    // Without its cursor a spool does not know what is missing.
    fs::remove_file(folder.path().join("cursor")).unwrap();
    for _ in 0..2 {
        let spool = Spool::open(folder.path(), CONFIG).await.unwrap();
        assert_eq!((spool.status().borrow().unreadable, spool.status().borrow().records()), (0, 1));
        spool.close().await;
    }
}

#[tokio::test]
async fn a_directory_with_the_name_of_a_segment_is_refused_before_anything_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path(), CONFIG).await.unwrap();
    spool.append(vec![record("a"), record("b")]).await.unwrap();
    spool.close().await;
    let directory = folder.path().join(segment(1, 9, "").0);
    fs::create_dir(&directory).unwrap();
    let error = Spool::open(folder.path(), CONFIG).await.unwrap_err();
    assert!(matches!(error, OpenError::NoFile { .. }));
    let expected = format!("spool segment {} is no file: move it out of the spool", directory.display());
    assert_eq!(error.to_string(), expected);
    fs::remove_dir(directory).unwrap();
    let spool = Spool::open(folder.path(), CONFIG).await.unwrap();
    assert_eq!(spool.status().borrow().records(), 2);
}

#[test]
fn an_inspection_does_not_wait_for_a_pipe_with_the_name_of_a_segment() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join(SegmentName { first: 0, generation: 0, after_gap: false }.file());
    assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let inspection = Inspection::open(folder.path()).unwrap();
        let errors: Vec<_> = inspection.segments().map(|(_, read)| read.map(drop).unwrap_err()).collect();
        sender.send(errors.into_iter().map(|error| error.to_string()).collect::<Vec<_>>()).unwrap();
    });
    assert_eq!(receiver.recv_timeout(Duration::from_secs(10)).unwrap(), ["is no file"]);
}

#[tokio::test]
async fn a_spool_whose_lock_file_was_deleted_still_has_one_owner() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path(), CONFIG).await.unwrap();
    fs::remove_file(folder.path().join("lock")).unwrap();
    let error = Spool::open(folder.path(), CONFIG).await.unwrap_err();
    assert_eq!(error.to_string(), format!("spool {} is in use by process unknown", folder.path().display()));
    spool.close().await;
    Spool::open(folder.path(), CONFIG).await.unwrap().close().await;
}
