//! Forwarding from a site to a central gateway.

use std::{path::Path, sync::Arc, time::SystemTime};

use garenne_amqp::PublishError;
use garenne_common::config::Size;
use garenne_protocol::task::{ContentType, Kind, NewTask, TaskId};
use garenne_spool::{Inspection, Spool, task::record_of};
use reqwest::StatusCode;

use super::{
    security::{entry, with_senders},
    *,
};

fn spool_in(directory: &Path) -> SpoolSettings {
    SpoolSettings {
        spool: Some(directory.to_owned()),
        spool_min_free: Size(0),
        spool_after: Duration::from_millis(200),
        ..SpoolSettings::default()
    }
}

fn url(central: &Running) -> String {
    format!("http://{}", central.address)
}

async fn drained(spool: &Spool) {
    spool.status().wait_for(|status| status.records() == 0).await.unwrap();
}

/// Posts a batch of tasks directly.
async fn forward(gateway: &Running, token: &str, tasks: &Value) -> (u16, Value) {
    let request = reqwest::Client::new().post(format!("{}/v1/tasks", url(gateway))).bearer_auth(token);
    let response = request.header("content-type", "application/json").body(tasks.to_string()).send().await;
    let response = response.unwrap();
    (response.status().as_u16(), response.json().await.unwrap_or_default())
}

/// The readings of a task without a time have the time of its version.
#[tokio::test]
async fn a_task_without_a_version_has_that_of_its_first_time_when_it_is_sent_again() {
    let central = start(MemorySender::new(), Limits::default()).await;
    let task = |value: u8| json!([{"id": "a", "kind": "reading.process", "payload": {"device": "d", "metric": "m", "value": value}}]);
    for body in [task(1), task(1), task(2), task(1)] {
        let (status, answer) = forward(&central, "", &body).await;
        assert_eq!((status, &answer["accepted"]), (202, &json!(1)), "{answer}");
    }
    let versions: Vec<_> = central.publisher.tasks().iter().map(|task| task.version).collect();
    assert_eq!(versions[0], versions[1]);
    assert!(versions[1] < versions[2] && versions[2] < versions[3], "{versions:?}");
}

#[tokio::test]
async fn what_a_site_accepts_reaches_the_central_gateway_under_its_id() {
    let folder = tempfile::tempdir().unwrap();
    let central = start(MemorySender::new(), Limits::default()).await;
    let (site, spool) = start_site(&url(&central), None, spool_in(folder.path())).await;
    let (status, readings) = site.post("/v1/readings", "application/json", READING).await;
    assert_eq!((status, &readings["durability"]), (202, &json!("spooled")));
    let request = reqwest::Client::new().post(format!("{}/v1/tasks/bench.factorial", url(&site)));
    let request = request.header("garenne-key", "k").header("garenne-group", "g");
    let request = request.header("garenne-timeout-ms", "1500").header("content-type", "application/json");
    let response = request.body("{\"n\": 5.0,\n\"m\":1e3}").send().await.unwrap();
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    let task: Value = response.json().await.unwrap();
    drained(&spool).await;

    let tasks = central.publisher.tasks();
    let ids: Vec<&str> = tasks.iter().map(|task| task.id.as_str()).collect();
    assert_eq!(ids, [readings["ids"][0].as_str().unwrap(), task["ids"][0].as_str().unwrap()]);
    assert_eq!((tasks[1].key.as_deref(), tasks[1].group.as_deref()), (Some("k"), Some("g")));
    assert_eq!(tasks[1].timeout, Some(Duration::from_millis(1500)));
    assert_eq!(tasks[1].body, b"{\"n\": 5.0,\n\"m\":1e3}");
    assert!(site.publisher.tasks().is_empty());
}

#[tokio::test]
async fn a_site_keeps_what_the_central_broker_has_not_confirmed() {
    let (folder, central_folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let publisher = MemorySender::new();
    publisher.fail(Some(PublishError::Blocked));
    let (central, central_spool) =
        start_with_spool(Arc::clone(&publisher), spool_in(central_folder.path())).await;
    let (site, spool) = start_site(&url(&central), None, spool_in(folder.path())).await;
    assert_eq!(site.post("/v1/readings", "application/json", READING).await.0, 202);
    publisher.received(2).await;
    assert_eq!(spool.status().borrow().records(), 1);
    assert_eq!(central_spool.status().borrow().accepted, 0, "the site keeps it, not the central gateway");
    publisher.fail(None);
    drained(&spool).await;
    assert_eq!(publisher.tasks().len(), 1);
}

#[tokio::test]
async fn a_site_without_the_right_to_forward_keeps_everything() {
    let folder = tempfile::tempdir().unwrap();
    let (central, _senders) = with_senders(&entry("site", "t", "devices = [\"*\"]\nkinds = [\"*\"]")).await;
    let token = folder.path().join("token");
    std::fs::write(&token, "t\n").unwrap();
    let (site, spool) = start_site(&url(&central), Some(token), spool_in(&folder.path().join("spool"))).await;
    assert_eq!(site.post("/v1/readings", "application/json", READING).await.0, 202);
    let task = json!([{"id": "1", "kind": "bench.factorial", "payload": {}}]);
    let (status, problem) = forward(&central, "t", &task).await;
    assert_eq!((status, &problem["code"]), (403, &json!("may-not-forward")), "{problem}");
    assert_eq!(forward(&central, "wrong", &task).await.0, 401);
    assert_eq!(spool.status().borrow().records(), 1);
    assert!(central.publisher.tasks().is_empty());
}

#[tokio::test]
async fn a_task_that_is_refused_for_good_is_set_aside_and_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let scope = "forward = true\ndevices = [\"d1\", \"d3\"]\nkinds = [\"*\"]";
    let (central, _senders) = with_senders(&entry("site", "t", scope)).await;
    let token = folder.path().join("token");
    std::fs::write(&token, "t").unwrap();
    let directory = folder.path().join("spool");
    let (site, spool) = start_site(&url(&central), Some(token), spool_in(&directory)).await;
    let readings = format!("[{READING},{},{}]", READING.replace("d1", "d2"), READING.replace("d1", "d3"));
    assert_eq!(site.post("/v1/readings", "application/json", &readings).await.0, 202);
    drained(&spool).await;
    let devices: Vec<Value> = central.bodies().iter().map(|body| body["device"].clone()).collect();
    assert_eq!(devices, ["d1", "d3"]);
    assert_eq!(spool.status().borrow().unpublishable, 1);
    spool.close().await;
    let inspection = Inspection::open(&directory).unwrap();
    let set_aside = inspection.segments().filter(|(_, segment)| segment.as_ref().unwrap().is_set_aside());
    let records: usize = set_aside.map(|(_, segment)| segment.unwrap().records().count()).sum();
    assert_eq!(records, 1, "spool requeue sends it again");
}

/// The central gateway's limit holds for the task with its id, kind and other properties.
#[tokio::test]
async fn a_site_refuses_a_task_that_would_be_too_large_for_the_central_gateway() {
    let folder = tempfile::tempdir().unwrap();
    let central = start(MemorySender::new(), Limits::default()).await;
    let (site, spool) = start_site(&url(&central), None, spool_in(folder.path())).await;
    let path = "/v1/tasks/bench.factorial";
    let most = (4 << 20) - (8 << 10);
    let payload = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    let event = json!({"specversion": "1.0", "id": "1", "source": "s", "type": "bench.factorial", "data": "x".repeat(most)});
    for (path, media, body) in [
        (path, "application/json", payload(4 << 20)),
        (path, "application/json", payload(most + 1)),
        ("/v1/events", "application/cloudevents+json", event.to_string()),
    ] {
        let (status, problem) = site.post(path, media, &body).await;
        let detail = "the payload of a task that is forwarded is larger than 4088KiB";
        assert_eq!(status, 413, "{path}: {problem}");
        assert!(problem["detail"].as_str().unwrap().ends_with(detail), "{path}: {problem}");
    }
    let (status, answer) = site.post(path, "application/json", &payload(most)).await;
    assert_eq!(status, 202, "{answer}");
    drained(&spool).await;
    assert_eq!(central.publisher.tasks()[0].body.len(), most);
    assert_eq!(spool.status().borrow().unpublishable, 0);
}

#[tokio::test]
async fn each_task_of_a_batch_has_its_own_outcome() {
    let central = start(MemorySender::new(), Limits::default()).await;
    let tasks = json!([
        {"id": "a", "kind": "bench.factorial", "payload": {"n": 1}},
        {"id": "b", "kind": "other.kind", "payload": {}},
        {"id": "", "kind": "bench.factorial", "payload": {}},
        {"id": "d", "kind": "alert.notify", "payload": {}},
        {"id": "e", "kind": "bench.factorial", "payload": null, "delay_ms": 10},
    ]);
    let (status, answer) = forward(&central, "", &tasks).await;
    assert_eq!((status, &answer["accepted"]), (202, &json!(2)), "{answer}");
    let rejected: Vec<_> = answer["rejected"].as_array().unwrap().iter().collect();
    let codes: Vec<_> = rejected.iter().map(|it| (it["record"].as_u64(), it["code"].as_str())).collect();
    let expected = [(1, "no-lane"), (2, "bad-field"), (3, "foreign-kind")];
    assert_eq!(codes, expected.map(|(record, code)| (Some(record), Some(code))), "{answer}");
    let ids: Vec<_> = central.publisher.tasks().iter().map(|task| task.id.to_string()).collect();
    assert_eq!(ids, ["a", "e"]);
    for (body, status) in [(json!({}), 400), (json!([{"id": "a"}]), 400), (json!([]), 202)] {
        assert_eq!(forward(&central, "", &body).await.0, status, "{body}");
    }
}

#[tokio::test]
async fn a_batch_that_is_too_large_for_the_central_gateway_is_halved() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { max_records: 2, max_body: Size(400), ..Limits::default() };
    let central = start(MemorySender::new(), limits).await;
    let large = json!({"n": "x".repeat(400)}).to_string();
    let spool_settings = spool_in(folder.path());
    let spool = spool_settings.open().await.unwrap().unwrap();
    let record = |id: &str, body: &str| {
        let kind = Kind::parse("bench.factorial").unwrap();
        let task = NewTask::new(kind, ContentType::Json, body.as_bytes().to_vec());
        let id = TaskId::parse(id).unwrap();
        let task = NewTask { id, ..task };
        record_of(&task, SystemTime::now())
    };
    let bodies = [("a", "{}"), ("b", "{}"), ("c", &large), ("d", "{}"), ("e", "{}")];
    spool.append(bodies.map(|(id, body)| record(id, body)).to_vec()).await.unwrap();
    spool.close().await;
    let (_site, spool) = start_site(&url(&central), None, spool_settings).await;
    drained(&spool).await;
    let ids: Vec<_> = central.publisher.tasks().iter().map(|task| task.id.to_string()).collect();
    assert_eq!(ids, ["a", "b", "d", "e"], "in order");
    assert_eq!(spool.status().borrow().unpublishable, 1);
}

/// A part that the central gateway has stored is not sent again, which would use up the rate for what follows.
#[tokio::test]
async fn a_batch_above_the_burst_of_the_sites_rate_is_forwarded_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let rest = "forward = true\ndevices = [\"*\"]\nrate = 100";
    let (central, _senders) = with_senders(&entry("site", "t", rest)).await;
    let token = folder.path().join("token");
    std::fs::write(&token, "t").unwrap();
    let (site, spool) = start_site(&url(&central), Some(token), spool_in(&folder.path().join("spool"))).await;
    let reading = |n: usize| json!({"device": "d", "metric": "m", "value": n, "time": 1_790_000_000 + n});
    let readings: Vec<Value> = (0..150).map(reading).collect();
    assert_eq!(site.post("/v1/readings", "application/json", &json!(readings).to_string()).await.0, 202);
    let within = Duration::from_secs(20);
    tokio::time::timeout(within, drained(&spool)).await.expect("the site makes progress at the rate");
    let values: Vec<Value> = central.bodies().iter().map(|body| body["value"].clone()).collect();
    assert_eq!(values, (0..150).map(|n| json!(f64::from(n))).collect::<Vec<_>>(), "each of them once");
}

#[tokio::test]
async fn an_answer_of_something_else_confirms_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", other.local_addr().unwrap());
    let (site, spool) = start_site(&url, None, spool_in(folder.path())).await;
    assert_eq!(site.post("/v1/readings", "application/json", READING).await.0, 202);
    let mut answered = 0;
    for body in [
        "{}",
        "{\"accepted\":2}",
        "{\"accepted\":0,\"rejected\":[{\"record\":7,\"code\":\"\",\"detail\":\"\"}]}",
    ] {
        let (mut connection, _) = other.accept().await.unwrap();
        let mut request = [0; 4096];
        assert!(connection.read(&mut request).await.unwrap() > 0);
        let head =
            format!("HTTP/1.1 202 Accepted\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
        connection.write_all((head + body).as_bytes()).await.unwrap();
        answered += 1;
    }
    // The next attempt shows that the site has read the answers.
    drop(other.accept().await.unwrap());
    assert_eq!((answered, spool.status().borrow().records()), (3, 1));
}

#[tokio::test]
async fn a_site_takes_no_forwarded_tasks() {
    let folder = tempfile::tempdir().unwrap();
    let (site, spool) = start_site("http://127.0.0.1:9", None, spool_in(folder.path())).await;
    let (status, problem) =
        forward(&site, "", &json!([{"id": "a", "kind": "bench.noop", "payload": 1}])).await;
    assert_eq!((status, &problem["code"]), (501, &json!("no-broker")), "{problem}");
    assert_eq!(spool.status().borrow().accepted, 0);
}
