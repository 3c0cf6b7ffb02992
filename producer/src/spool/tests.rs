//! The commands on spools in directories.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::future::BoxFuture;
use garenne_amqp::PublishError;
use garenne_common::{config::Size, exit::Exit};
use garenne_protocol::task::{ContentType, Kind, NewTask, TaskId};
use garenne_publish::{SpoolDrain, TaskSender};
use garenne_spool::{Inspection, Record, Spool, SpoolConfig, SpoolError, task::record_of};
use tokio::sync::mpsc;

use super::{
    drain::drain_all,
    export,
    requeue::{requeue, unbounded},
    show::{summary, text},
    verify::check,
};
use crate::progress::Progress;

fn record(id: &str) -> Record {
    let kind = Kind::parse("reading.process").unwrap();
    let task = NewTask::new(kind, ContentType::Json, br#"{"value": 1.50}"#.to_vec());
    record_of(&NewTask { id: TaskId::parse(id).unwrap(), ..task }, UNIX_EPOCH + Duration::from_secs(100))
}

async fn filled(directory: &Path) -> Spool {
    let spool = Spool::open(directory, SpoolConfig::default()).await.unwrap();
    spool.append(vec![record("a"), record("b"), record("c")]).await.unwrap();
    spool.ack(1).await.unwrap();
    spool
}

/// The name of the only segment.
fn segment(directory: &Path) -> String {
    let names =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.into_iter().find(|name| name.ends_with(".seg")).unwrap()
}

/// Changes the last byte of the only segment, and returns its name.
fn corrupt(directory: &Path) -> String {
    let name = segment(directory);
    let mut bytes = fs::read(directory.join(&name)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(directory.join(&name), bytes).unwrap();
    name
}

#[tokio::test]
async fn show_counts_what_waits_also_while_a_process_uses_the_spool() {
    let folder = tempfile::tempdir().unwrap();
    let _spool = filled(folder.path()).await;
    let now = UNIX_EPOCH + Duration::from_secs(160);
    let summary = summary(folder.path(), &Inspection::open(folder.path()).unwrap(), now);
    let shown = serde_json::to_value(&summary).unwrap();
    assert_eq!(
        (&shown["records"], &shown["oldest_seconds"], &shown["set_aside"]),
        (&2.into(), &60.into(), &0.into())
    );
    assert_eq!(
        (&shown["segments"][0]["records"], &shown["segments"][0]["corrupt"]),
        (&2.into(), &false.into())
    );
}

#[tokio::test]
async fn a_set_aside_segment_that_cannot_be_read_is_not_counted_as_waiting() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await.close().await;
    let name = corrupt(folder.path());
    fs::remove_file(folder.path().join(&name)).unwrap();
    // A folder cannot be read as a file.
    fs::create_dir(folder.path().join(format!("{name}.set-aside"))).unwrap();
    let summary = summary(folder.path(), &Inspection::open(folder.path()).unwrap(), UNIX_EPOCH);
    let shown = serde_json::to_value(&summary).unwrap();
    assert_eq!((&shown["records"], &shown["set_aside"]), (&0.into(), &1.into()));
    assert!(shown["segments"][0]["error"].is_string(), "{shown}");
}

#[tokio::test]
async fn verify_names_segment_and_offset_of_corruption() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await.close().await;
    let healthy = check(&Inspection::open(folder.path()).unwrap());
    assert_eq!(healthy, (vec!["1 segments, 3 readable records, 0 corrupt segments".to_owned()], Exit::Done));
    let name = corrupt(folder.path());
    let (lines, exit) = check(&Inspection::open(folder.path()).unwrap());
    let len = fs::metadata(folder.path().join(&name)).unwrap().len();
    let offset = 24 + (len - 24) / 3 * 2;
    assert_eq!(lines[0], format!("{name}: offset {offset}: unreadable or missing"));
    assert_eq!(
        (lines[1].as_str(), exit),
        ("1 segments, 2 readable records, 1 corrupt segments", Exit::Failed)
    );
}

/// What the start counts, `verify` counts too.
#[tokio::test]
async fn verify_and_the_start_judge_cut_and_foreign_files_alike() {
    for (cut_to, foreign, last_line) in [
        (150, None, "1 segments, 1 readable records, 1 corrupt segments"),
        (10, None, "0 segments, 0 readable records, 1 corrupt segments"),
        (usize::MAX, Some(&b"hello"[..]), "1 segments, 3 readable records, 1 corrupt segments"),
        (usize::MAX, Some(b""), "1 segments, 3 readable records, 0 corrupt segments"),
        (150, Some(b"hello"), "1 segments, 1 readable records, 2 corrupt segments"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path()).await.close().await;
        let name = segment(folder.path());
        let bytes = fs::read(folder.path().join(&name)).unwrap();
        fs::write(folder.path().join(&name), &bytes[..cut_to.min(bytes.len())]).unwrap();
        if let Some(foreign) = foreign {
            fs::write(folder.path().join(name.replacen("00-", "07-", 1)), foreign).unwrap();
        }
        let (lines, exit) = check(&Inspection::open(folder.path()).unwrap());
        assert_eq!(lines.last().unwrap(), last_line, "{lines:?}");
        let corrupt =
            Spool::open(folder.path(), SpoolConfig::default()).await.unwrap().status().borrow().corrupt;
        assert!(last_line.ends_with(&format!(" {corrupt} corrupt segments")), "{corrupt}, {last_line}");
        assert_eq!(exit, if corrupt == 0 { Exit::Done } else { Exit::Failed });
        let missing = lines.iter().any(|line| line.contains("its last 2 records are missing"));
        assert_eq!(missing, cut_to == 150, "{lines:?}");
    }
}

#[tokio::test]
async fn requeue_puts_intact_segments_back_and_keeps_corrupt_ones() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await.close().await;
    corrupt(folder.path());
    let config = SpoolConfig { min_free: Size(0), ..SpoolConfig::default() };
    let spool = Spool::open(folder.path(), config).await.unwrap();
    spool.ack(u64::MAX).await.unwrap();
    let records = vec![record("u1"), record("u2")];
    spool.set_aside(records.clone()).await.unwrap();
    let summary = requeue(folder.path(), &spool).await.unwrap();
    assert_eq!((summary.requeued, summary.set_aside), (2, 1));
    let waiting = spool.read(0, 10, 1 << 20).await.unwrap().records;
    assert_eq!(waiting, records);
    let summary = requeue(folder.path(), &spool).await.unwrap();
    assert_eq!((summary.requeued, summary.set_aside), (0, 1), "only once");
}

#[tokio::test]
async fn requeue_needs_no_room_in_the_bounds() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path(), SpoolConfig::default()).await.unwrap();
    let records = vec![record("u")];
    spool.set_aside(records.clone()).await.unwrap();
    spool.close().await;
    let shown = summary(folder.path(), &Inspection::open(folder.path()).unwrap(), SystemTime::now());
    assert_eq!((shown.records, shown.set_aside), (0, 1));
    assert!(text(&shown).contains("1 set aside with "), "{}", text(&shown));
    assert!(text(&shown).contains("`garenne-producer spool requeue` puts"), "{}", text(&shown));
    let full = SpoolConfig { max_bytes: Size(shown.set_aside_bytes), ..SpoolConfig::default() };
    let spool = Spool::open(folder.path(), full).await.unwrap();
    assert!(matches!(spool.append(vec![record("v")]).await, Err(SpoolError::Full { .. })));
    spool.close().await;

    let spool = Spool::open(folder.path(), unbounded()).await.unwrap();
    assert_eq!(requeue(folder.path(), &spool).await.unwrap().requeued, 1);
    let waiting = spool.read(0, 10, 1 << 20).await.unwrap().records;
    assert_eq!(waiting, records);
}

#[test]
fn export_writes_payloads_as_they_are_and_other_content_in_base64() {
    assert_eq!(
        export::line("s", 1, record("a")),
        r#"{"segment":"s","position":1,"id":"a","time":"1970-01-01T00:01:40Z","kind":"reading.process","content_type":"application/json","payload":{"value": 1.50}}"#
    );
    let foreign = Record { body: b"x".to_vec(), ..record("a") };
    assert_eq!(
        export::line("s", 1, foreign),
        r#"{"segment":"s","position":1,"id":"a","time":"1970-01-01T00:01:40Z","base64":"eA=="}"#
    );
}

/// Confirms after so many refusals.
#[derive(Default)]
struct Refusing {
    refusals: Mutex<usize>,
    confirmed: Mutex<Vec<String>>,
}

impl TaskSender for Refusing {
    fn send(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        Box::pin(async move {
            let mut refusals = self.refusals.lock().unwrap();
            if *refusals > 0 {
                *refusals -= 1;
                return Err(PublishError::Blocked);
            }
            self.confirmed.lock().unwrap().extend(tasks.iter().map(|task| task.id.to_string()));
            Ok(())
        })
    }
}

#[tokio::test(start_paused = true)]
async fn drain_publishes_what_waits_with_its_ids_and_repeats_after_refusals() {
    let folder = tempfile::tempdir().unwrap();
    let spool = filled(folder.path()).await;
    let publisher = Arc::new(Refusing { refusals: Mutex::new(2), ..Refusing::default() });
    let drain = SpoolDrain::new(spool.clone(), publisher.clone(), None);
    let (_sender, mut commands) = mpsc::channel(1);
    let progress = Progress::new("drain", None);
    let (summary, failure) =
        drain_all(drain, &spool, Duration::from_secs(60), &progress, &mut commands).await;
    assert!(failure.is_none());
    assert_eq!((summary.confirmed, summary.remaining, summary.retries), (2, 0, 2));
    assert_eq!(*publisher.confirmed.lock().unwrap(), ["b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_fails_for_too_long_keeps_the_records() {
    let folder = tempfile::tempdir().unwrap();
    let spool = filled(folder.path()).await;
    let publisher = Arc::new(Refusing { refusals: Mutex::new(usize::MAX), ..Refusing::default() });
    let drain = SpoolDrain::new(spool.clone(), publisher, None);
    let (_sender, mut commands) = mpsc::channel(1);
    let progress = Progress::new("drain", None);
    let (summary, failure) = drain_all(drain, &spool, Duration::from_secs(5), &progress, &mut commands).await;
    assert_eq!(failure.unwrap().exit, Exit::Failed);
    assert_eq!(summary.remaining, 2);
    spool.close().await;
    let waiting =
        super::show::summary(folder.path(), &Inspection::open(folder.path()).unwrap(), SystemTime::now());
    assert_eq!(waiting.records, 2);
}
