//! Requests while the broker does not confirm, with a spool.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_amqp::PublishError;
use garenne_common::{config::Size, telemetry::admin::Process};
use garenne_publish::{SpoolDrain, SpoolSettings, Status};
use garenne_spool::{Inspection, Record, Spool};
use reqwest::Response;

use tokio_util::sync::CancellationToken;

use super::{MemorySender, READING, Running, ServerKind, line, start, start_with_spool};
use crate::{Limits, status::GatewayState};
use tokio::io::AsyncWriteExt;

fn settings(directory: &Path) -> SpoolSettings {
    SpoolSettings {
        spool: Some(directory.to_owned()),
        spool_min_free: Size(0),
        spool_after: Duration::from_millis(200),
        ..SpoolSettings::default()
    }
}

async fn post(running: &Running, path: &str, key: Option<&str>, body: &str) -> Response {
    let url = format!("http://{}{path}", running.address);
    let request = reqwest::Client::new().post(url).header("content-type", "application/json");
    let request = match key {
        Some(key) => request.header("idempotency-key", key),
        None => request,
    };
    request.body(body.to_owned()).send().await.unwrap()
}

fn mark(response: &Response) -> Option<&str> {
    response.headers().get("garenne-durability").map(|value| value.to_str().unwrap())
}

async fn drained(spool: &Spool) {
    spool.status().wait_for(|status| status.records() == 0).await.unwrap();
}

#[tokio::test]
async fn answers_from_the_spool_are_marked_in_every_protocol_and_drained_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let publisher = MemorySender::new();
    let (running, spool) = start_with_spool(Arc::clone(&publisher), settings(folder.path())).await;
    publisher.fail(Some(PublishError::Blocked));

    let response = post(&running, "/v1/readings", None, READING).await;
    assert_eq!((response.status().as_u16(), mark(&response)), (202, Some("spooled")));
    let first: serde_json::Value = response.json().await.unwrap();
    assert_eq!((&first["accepted"], &first["durability"]), (&1.into(), &"spooled".into()));

    let response = post(&running, "/v1/tasks/bench.factorial", Some("key-1"), r#"{"n":5}"#).await;
    assert_eq!((response.status().as_u16(), mark(&response)), (202, Some("spooled")));
    let second: serde_json::Value = response.json().await.unwrap();

    let response =
        post(&running, "/api/v2/write", None, "room,device=d2 temperature=21.5 1700000000000000000").await;
    assert_eq!((response.status().as_u16(), mark(&response)), (204, Some("spooled")));

    let mut connection = running.lines().await;
    connection.get_mut().write_all(format!("{}\n", READING.replace("d1", "d3")).as_bytes()).await.unwrap();
    let answer = line(&mut connection).await;
    let words: Vec<&str> = answer.split(' ').collect();
    assert_eq!((words.len(), words[0], words[2]), (3, "ok", "spooled"), "{answer}");
    assert_eq!(spool.status().borrow().records(), 4);

    publisher.fail(None);
    drained(&spool).await;
    let ids: Vec<String> = publisher.tasks().iter().map(|task| task.id.to_string()).collect();
    assert_eq!(
        (ids.len(), &ids[0], &ids[1], &ids[3]),
        (
            4,
            &first["ids"][0].as_str().unwrap().to_owned(),
            &second["ids"][0].as_str().unwrap().to_owned(),
            &words[1].to_owned(),
        )
    );
    assert_eq!(running.bodies()[1], serde_json::json!({"n": 5}));

    let response = post(&running, "/v1/tasks/bench.factorial", Some("key-1"), r#"{"n":5}"#).await;
    assert_eq!((response.status().as_u16(), mark(&response)), (202, None), "the broker has confirmed it");
    let repeated: serde_json::Value = response.json().await.unwrap();
    assert_eq!(repeated["ids"], second["ids"], "a repetition has the same ids");
    assert!(repeated.get("durability").is_none());
}

#[tokio::test]
async fn a_request_without_a_confirm_in_time_is_spooled() {
    let folder = tempfile::tempdir().unwrap();
    let publisher = MemorySender::gated();
    let (running, spool) = start_with_spool(Arc::clone(&publisher), settings(folder.path())).await;
    let response = post(&running, "/v1/readings", None, READING).await;
    assert_eq!((response.status().as_u16(), mark(&response)), (202, Some("spooled")));
    publisher.confirm(10);
    drained(&spool).await;
    assert_eq!(publisher.tasks().len(), 1, "the request's own publish was given up");
}

#[tokio::test]
async fn the_copy_that_is_kept_until_the_confirm_is_part_of_the_memory_budget() {
    let folder = tempfile::tempdir().unwrap();
    let body = format!("{{\"text\":\"{}\"}}", "x".repeat(10_000));
    let mut used = Vec::new();
    for has_spool in [false, true] {
        let publisher = MemorySender::gated();
        let spool = Some(folder.path().to_owned()).filter(|_| has_spool);
        let patient =
            SpoolSettings { spool, spool_after: Duration::from_secs(60), ..settings(folder.path()) };
        let running = match has_spool {
            true => start_with_spool(Arc::clone(&publisher), patient).await.0,
            false => start(Arc::clone(&publisher), Limits::default()).await,
        };
        let answer = post(&running, "/v1/tasks/bench.factorial", None, &body);
        let measured = async {
            publisher.received(1).await;
            let used = running.context.budget.used();
            publisher.confirm(1);
            used
        };
        let (answer, measured) = tokio::join!(answer, measured);
        assert_eq!(answer.status().as_u16(), 202);
        used.push(measured);
    }
    assert!(used[1] >= used[0] + 2 * body.len(), "{used:?}");
}

#[tokio::test]
async fn beyond_the_bounds_requests_are_refused_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let publisher = MemorySender::new();
    let bounds = SpoolSettings { spool_max_bytes: Size(1000), ..settings(folder.path()) };
    let (running, spool) = start_with_spool(Arc::clone(&publisher), bounds).await;
    publisher.fail(Some(PublishError::Blocked));
    let mut accepted = Vec::new();
    let refused = loop {
        let response = post(&running, "/v1/tasks/bench.factorial", None, r#"{"n":5}"#).await;
        if response.status().as_u16() != 202 {
            break response;
        }
        let body: serde_json::Value = response.json().await.unwrap();
        accepted.push(body["ids"][0].as_str().unwrap().to_owned());
    };
    assert_eq!((refused.status().as_u16(), refused.headers()["retry-after"].to_str().unwrap()), (503, "1"));
    let problem: serde_json::Value = refused.json().await.unwrap();
    assert_eq!(problem["code"], "busy");
    let detail = problem["detail"].as_str().unwrap();
    assert!(
        detail.starts_with("the broker does not confirm, and the spool refuses: spool is full: "),
        "{detail}"
    );
    assert!(accepted.len() > 2);
    publisher.fail(None);
    drained(&spool).await;
    let ids: Vec<String> = publisher.tasks().iter().map(|task| task.id.to_string()).collect();
    assert_eq!(ids, accepted);
    assert_eq!(post(&running, "/v1/readings", None, READING).await.status().as_u16(), 202);
}

#[tokio::test]
async fn what_is_set_aside_is_named_by_refusals_readiness_and_metrics_until_it_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let publisher = MemorySender::new();
    let bounds = SpoolSettings { spool_max_bytes: Size(1000), ..settings(folder.path()) };
    let (running, spool) = start_with_spool(Arc::clone(&publisher), bounds).await;
    let state = GatewayState { server: ServerKind::default(), metrics: running.metrics.clone() };
    let status = Status::new(&running.metrics, Some(spool.clone()), None, state);
    assert_eq!((status.ready(), status.warnings()), (Ok(()), Vec::new()));
    let record = Record { id: "x".to_owned(), time: SystemTime::now(), body: vec![0; 900] };
    spool.set_aside(vec![record]).await.unwrap();

    let request = || post(&running, "/v1/tasks/bench.factorial", None, r#"{"n":5}"#);
    let response = request().await;
    assert_eq!((response.status().as_u16(), mark(&response)), (202, None), "the broker needs no room");
    publisher.fail(Some(PublishError::Blocked));
    let refused = request().await;
    assert_eq!(refused.status().as_u16(), 503);
    let problem: serde_json::Value = refused.json().await.unwrap();
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("959B used, 959B of it set aside, and "), "{detail}");
    assert!(detail.contains("`garenne-producer spool show` lists what is set aside"), "{detail}");
    let expected = "the spool has 1 segments set aside, 959B of spool_max_bytes (1000B): look with \
                    `garenne-producer spool show`, and free them with `spool requeue`, or with `spool export \
                    --set-aside` and removal of the files";
    assert_eq!(status.warnings(), [expected]);
    let problems = status.ready().unwrap_err();
    assert!(problems[0].starts_with("the spool refuses records: spool is full: "), "{problems:?}");
    for sample in ["garenne_spool_set_aside_bytes 959", "garenne_spool_set_aside_segments 1"] {
        assert!(running.metrics.encode().contains(sample), "{sample}");
    }

    let inspection = Inspection::open(folder.path()).unwrap();
    let (name, _) = inspection.segments().find(|(_, it)| it.as_ref().unwrap().is_set_aside()).unwrap();
    std::fs::remove_file(folder.path().join(name)).unwrap();
    let response = request().await;
    assert_eq!((response.status().as_u16(), mark(&response)), (202, Some("spooled")), "at once");
    assert_eq!((status.ready(), status.warnings()), (Ok(()), Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn a_drain_notices_that_an_operator_removed_what_was_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path());
    let spool = settings.open().await.unwrap().unwrap();
    let record = Record { id: "x".to_owned(), time: SystemTime::now(), body: Vec::new() };
    spool.set_aside(vec![record]).await.unwrap();
    let inspection = Inspection::open(folder.path()).unwrap();
    let (name, _) = inspection.segments().next().unwrap();
    std::fs::remove_file(folder.path().join(name)).unwrap();
    let drain = SpoolDrain::new(spool.clone(), MemorySender::new(), None);
    let draining = drain.start(CancellationToken::new());
    spool.status().wait_for(|status| status.set_aside == 0).await.unwrap();
    draining.abort();
}

#[tokio::test]
async fn the_metrics_and_the_files_show_what_is_spooled() {
    let folder = tempfile::tempdir().unwrap();
    let publisher = MemorySender::new();
    publisher.fail(Some(PublishError::Blocked));
    let (running, spool) = start_with_spool(Arc::clone(&publisher), settings(folder.path())).await;
    assert_eq!(post(&running, "/v1/readings", None, READING).await.status().as_u16(), 202);
    let metrics = running.metrics.encode();
    for sample in [
        "garenne_spool_records_total{event=\"accepted\"} 1",
        "garenne_spool_bytes ",
        "garenne_spool_oldest_seconds 0",
        "garenne_spool_limit_bytes 1073741824",
        "garenne_spool_set_aside_segments 0",
        "garenne_spool_corrupt_segments_total 0",
        "garenne_spool_records_total{event=\"unpublishable\"} 0",
    ] {
        assert!(metrics.contains(sample), "{sample}: {metrics}");
    }
    assert_eq!(spool.status().borrow().records(), 1);
    let inspection = Inspection::open(folder.path()).unwrap();
    let waiting: usize = inspection.segments().map(|(_, segment)| segment.unwrap().records().count()).sum();
    assert_eq!(waiting, 1);
}
