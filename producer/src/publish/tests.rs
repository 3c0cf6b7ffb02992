use std::{
    cell::RefCell,
    collections::BTreeSet,
    io::{self, Read},
    panic::resume_unwind,
    sync::Arc,
};

use futures_util::future::BoxFuture;
use garenne_amqp::PublishError;
use garenne_common::config::Size;
use garenne_publish::TaskSender;
use garenne_spool::{Spool, SpoolConfig};

use super::*;

fn args(kind: &str, id_field: Option<&str>) -> PublishArgs {
    PublishArgs {
        kind: kind.to_owned(),
        file: None,
        id_field: id_field.map(str::to_owned),
        key_field: None,
        group: Some("g".to_owned()),
        delay: None,
        timeout: None,
        ids: false,
        retry_for: Duration::ZERO,
        spool: None,
    }
}

fn made(line: &str, kind: &str, id_field: Option<&str>) -> Result<NewTask, String> {
    task(line.as_bytes(), &Kind::parse(kind).unwrap(), &Limits::default(), &args(kind, id_field))
}

#[test]
fn a_line_becomes_a_task_with_the_id_of_its_field() {
    let task = made("{\"n\":50,\"key\":\"a-1\"}\r\n", "bench.factorial", Some("key")).unwrap();
    assert_eq!((task.id.as_str(), task.group.as_deref()), ("a-1", Some("g")));
    assert_eq!(&task.body[..], b"{\"n\":50,\"key\":\"a-1\"}");
    assert_eq!(made("{\"key\":7}", "bench.noop", Some("key")).unwrap().id.as_str(), "7");
    let marked = made("\u{feff}{\"n\":50}\n", "bench.factorial", None).unwrap();
    assert_eq!(&marked.body[..], b"{\"n\":50}", "without the byte-order mark");
}

#[test]
fn a_field_can_be_the_task_key() {
    let args = PublishArgs { key_field: Some("device".to_owned()), ..args("bench.noop", None) };
    let made =
        |line: &str| task(line.as_bytes(), &Kind::parse("bench.noop").unwrap(), &Limits::default(), &args);
    assert_eq!(made("{\"device\":\"d1\"}").unwrap().key.as_deref(), Some("d1"));
    assert_eq!(made("{}").unwrap_err(), "field \"device\" for the key is missing");
}

#[test]
fn an_invalid_line_is_explained() {
    let problem = |line, kind, field| made(line, kind, field).unwrap_err();
    assert_eq!(problem("{", "bench.noop", None), "not JSON: EOF while parsing an object at line 1 column 1");
    assert_eq!(problem("{}", "bench.noop", Some("key")), "field \"key\" for the id is missing");
    assert_eq!(problem("{\"key\":\"\"}", "bench.noop", Some("key")), "field \"key\": message_id is empty");
    assert_eq!(problem("{}", READING_KIND, None).split(':').next(), Some("record 0"));
    let early = r#"{"device":"d","metric":"m","value":1,"time":1}"#;
    let limits = Limits::of_times(Duration::ZERO, Timestamp::DEFAULT_MIN);
    let refused =
        task(early.as_bytes(), &Kind::parse(READING_KIND).unwrap(), &limits, &args(READING_KIND, None));
    assert_eq!(
        refused.unwrap_err(),
        "record 0: time: 1970-01-01T00:00:01Z is before min_time (1990-01-01T00:00:00Z); is the sender's clock set?"
    );
}

/// Confirms every task.
struct Confirming;

impl TaskSender for Confirming {
    fn send(&self, _: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        Box::pin(async { Ok(()) })
    }
}

/// Fails after its first line.
struct FailingInput(Result<(), io::ErrorKind>);

impl Read for FailingInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0?;
        // The panic is expected: its message would only clutter the output.
        resume_unwind(Box::new(format!("buffer of {}", buffer.len())))
    }
}

async fn published(input: FailingInput) -> (Summary, Option<Failure>) {
    let input = BufReader::with_capacity(16, (&b"{}\n"[..]).chain(input));
    publish_all(input, &args("bench.noop", None), |_| Ok(())).await
}

async fn publish_all(
    input: impl BufRead + Send + 'static,
    args: &PublishArgs,
    print_id: impl Fn(TaskId) -> Result<(), Failure>,
) -> (Summary, Option<Failure>) {
    let kind = Kind::parse(&args.kind).unwrap();
    let publisher = SpoolingSender::direct(Arc::new(Confirming));
    let (_sender, mut commands) = mpsc::channel(1);
    let progress = Progress::new("publish", None);
    publish_lines(input, (&kind, &Limits::default()), args, &publisher, &progress, &mut commands, print_id)
        .await
        .unwrap()
}

#[tokio::test]
async fn ids_are_printed_if_they_are_asked_for() {
    let lines = &b"{\"key\":\"a-1\"}\n\n{\"key\":7}\n{}\n"[..];
    for (ids, printed) in [(true, &["7", "a-1"][..]), (false, &[])] {
        let args = PublishArgs { ids, ..args("bench.noop", Some("key")) };
        let seen = RefCell::new(BTreeSet::new());
        let print_id = |id: TaskId| {
            seen.borrow_mut().insert(id.as_str().to_owned());
            Ok(())
        };
        let (summary, failure) = publish_all(lines, &args, print_id).await;
        assert_eq!((summary.published, summary.malformed, failure), (2, 1, None));
        assert_eq!(seen.into_inner().iter().collect::<Vec<_>>(), printed);
    }
}

#[tokio::test]
async fn a_failed_write_of_an_id_is_a_failure() {
    let args = PublishArgs { ids: true, ..args("bench.noop", None) };
    let full = |_| Err(Failure::new(Exit::Failed, "cannot write to stdout: no storage space"));
    let (summary, failure) = publish_all(&b"{}\n"[..], &args, full).await;
    assert_eq!(summary.published, 1);
    assert_eq!(failure.unwrap().line, "cannot write to stdout: no storage space");
}

#[tokio::test]
async fn compressed_input_is_refused() {
    let (summary, failure) = publish_all(&b"\x1f\x8b\x08\0"[..], &args("bench.noop", None), |_| Ok(())).await;
    assert_eq!(summary.lines, 0);
    assert!(failure.unwrap().line.contains("the input is compressed (gzip)"));
}

#[tokio::test]
async fn a_panic_of_the_reader_is_a_failure_and_not_the_end_of_the_input() {
    let (summary, failure) = published(FailingInput(Ok(()))).await;
    assert_eq!((summary.lines, summary.published), (1, 1));
    assert_eq!(failure, Some(Failure::new(Exit::Failed, "reading the input: panicked: buffer of 16")));
}

#[tokio::test]
async fn a_read_error_is_a_failure_after_the_lines_before_it() {
    let (summary, failure) = published(FailingInput(Err(io::ErrorKind::BrokenPipe))).await;
    assert_eq!((summary.lines, summary.published), (1, 1));
    assert_eq!(failure, Some(Failure::new(Exit::Failed, "line 2: broken pipe")));
}

/// Confirms nothing.
struct Blocked;

impl TaskSender for Blocked {
    fn send(&self, _: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        Box::pin(async { Err(PublishError::Blocked) })
    }
}

#[tokio::test]
async fn lines_that_the_broker_does_not_confirm_are_spooled_with_their_ids() {
    let folder = tempfile::tempdir().unwrap();
    let config = SpoolConfig { min_free: Size(0), ..SpoolConfig::default() };
    let spool = Spool::open(folder.path(), config).await.unwrap();
    let publisher = SpoolingSender::with_spool(Arc::new(Blocked), spool.clone(), Duration::from_secs(1));
    let args = args("bench.noop", Some("key"));
    let (_sender, mut commands) = mpsc::channel(1);
    let (kind, progress) = (Kind::parse(&args.kind).unwrap(), Progress::new("publish", None));
    let input = &b"{\"key\":1}\n{\"key\":2}\n"[..];
    let (summary, failure) = publish_lines(
        input,
        (&kind, &Limits::default()),
        &args,
        &publisher,
        &progress,
        &mut commands,
        |_| Ok(()),
    )
    .await
    .unwrap();
    assert_eq!((summary.published, summary.unpublished, failure), (2, 0, None));
    let records = spool.read(0, 10, 1000).await.unwrap().records;
    let ids: BTreeSet<String> = records.into_iter().map(|record| record.id).collect();
    assert_eq!(ids.into_iter().collect::<Vec<_>>(), ["1", "2"]);
}
