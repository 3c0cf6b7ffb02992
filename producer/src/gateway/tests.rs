//! The gateway over real sockets, with an outlet that keeps what it is given.

use std::{sync::Arc, time::Duration};

use garenne_amqp::PublishError;
use garenne_common::{
    config::{Concurrency, Size},
    telemetry::{Metrics, Traces},
};
use garenne_protocol::topology::Names;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use super::{Access, Gateway, Ingest, Instruments, Limits, MemoryBudget, Routes, ServerKind, accept::Parts};
use crate::outlet::{TracedOutlet, memory::MemoryOutlet};

struct Running {
    address: std::net::SocketAddr,
    outlet: Arc<MemoryOutlet>,
    stop: CancellationToken,
    gateway: JoinHandle<bool>,
    metrics: Metrics,
    parts: Arc<Parts>,
}

async fn start(outlet: Arc<MemoryOutlet>, limits: Limits) -> Running {
    start_on(ServerKind::default(), outlet, limits).await
}

async fn start_on(kind: ServerKind, outlet: Arc<MemoryOutlet>, limits: Limits) -> Running {
    start_secured(kind, outlet, limits, (Access::open(), None)).await
}

async fn start_secured(
    kind: ServerKind,
    outlet: Arc<MemoryOutlet>,
    limits: Limits,
    security: (Access, Option<Arc<super::Tls>>),
) -> Running {
    start_traced(kind, outlet, limits, security, Traces::default()).await
}

async fn start_traced(
    kind: ServerKind,
    outlet: Arc<MemoryOutlet>,
    limits: Limits,
    security: (Access, Option<Arc<super::Tls>>),
    traces: Traces,
) -> Running {
    let metrics = Metrics::new("gateway");
    let instruments = Instruments::register(&metrics).unwrap();
    let routes = Routes::new(["reading.#".to_owned(), "bench.#".to_owned()]);
    let traced = TracedOutlet::before(outlet.clone(), &traces, &Names::new("garenne"));
    let ingest = Ingest::new(traced, routes, &limits, Duration::from_secs(600));
    let budget = MemoryBudget::new(&limits);
    let server = kind.start(&limits, &instruments).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let (access, tls) = security;
    let access = Arc::new(access);
    let parts = Arc::new(Parts { ingest, access, tls, limits, budget, instruments, traces });
    let gateway = tokio::spawn(Gateway::new(listener, Arc::clone(&parts), server).run(stop.clone()));
    Running { address, outlet, stop, gateway, metrics, parts }
}

impl Running {
    async fn post(&self, path: &str, content_type: &str, body: &str) -> (u16, Value) {
        let response = reqwest::Client::new()
            .post(format!("http://{}{path}", self.address))
            .header("content-type", content_type)
            .body(body.to_owned())
            .send()
            .await
            .unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    async fn lines(&self) -> BufReader<TcpStream> {
        BufReader::new(TcpStream::connect(self.address).await.unwrap())
    }

    fn bodies(&self) -> Vec<Value> {
        self.outlet.tasks().iter().map(|task| serde_json::from_slice(&task.body).unwrap()).collect()
    }
}

async fn line(connection: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    connection.read_line(&mut line).await.unwrap();
    line.trim_end().to_owned()
}

const READING: &str =
    r#"{"device":"d1","metric":"temperature","value":21.5,"unit":"Cel","time":"2026-11-20T07:30:00Z"}"#;

#[tokio::test]
async fn every_form_of_readings_becomes_a_task_a_record() {
    let gateway = start(MemoryOutlet::new(), Limits::default()).await;
    let (status, answer) = gateway.post("/v1/readings", "application/json", READING).await;
    assert_eq!((status, answer["accepted"].as_u64()), (202, Some(1)));
    let array = format!("[{READING},{}]", READING.replace("21.5", "22"));
    assert_eq!(gateway.post("/v1/readings", "application/json", &array).await.1["accepted"], 2);
    let lines = format!("{READING}\n\n{READING}\n");
    assert_eq!(gateway.post("/v1/readings", "application/x-ndjson", &lines).await.1["accepted"], 2);
    let pack = r#"[{"bn":"urn:dev:ow:1:","bt":1763600000,"n":"temperature","u":"Cel","v":1},{"n":"humidity","u":"%RH","v":50}]"#;
    let (status, answer) = gateway.post("/v1/readings", "application/senml+json", pack).await;
    assert_eq!((status, answer["ids"].as_array().map(Vec::len)), (202, Some(2)));
    let tasks = gateway.outlet.tasks();
    assert_eq!(tasks.len(), 7);
    assert!(tasks.iter().all(|task| task.kind.as_str() == "reading.process"));
    assert_eq!(gateway.bodies()[0], serde_json::from_str::<Value>(READING).unwrap());
    assert_eq!(answer["ids"][1], tasks[6].id.as_str());
}

#[tokio::test]
async fn a_repeated_reading_keeps_its_id_and_an_untimed_one_gets_a_time_and_a_new_id() {
    let gateway = start(MemoryOutlet::new(), Limits::default()).await;
    let untimed = r#"{"device":"d1","metric":"temperature","value":21.5}"#;
    for body in [READING, READING, untimed, untimed] {
        assert_eq!(gateway.post("/v1/readings", "application/json", body).await.0, 202);
    }
    let tasks = gateway.outlet.tasks();
    assert_eq!(tasks[0].id, tasks[1].id);
    assert_ne!(tasks[2].id, tasks[3].id);
    assert!(gateway.bodies()[2]["time"].is_string());
}

#[tokio::test]
async fn an_idempotency_key_decides_the_ids_of_all_records() {
    let gateway = start(MemoryOutlet::new(), Limits::default()).await;
    let body = r#"[{"device":"a","metric":"m","value":1},{"device":"b","metric":"m","value":2}]"#;
    let client = reqwest::Client::new();
    for _ in 0..2 {
        let url = format!("http://{}/v1/readings", gateway.address);
        let request = client.post(url).header("idempotency-key", "k1").body(body);
        assert_eq!(request.send().await.unwrap().status(), 202);
    }
    let ids: Vec<_> = gateway.outlet.tasks().into_iter().map(|task| task.id).collect();
    assert_eq!((&ids[0], &ids[1]), (&ids[2], &ids[3]));
    assert_ne!(ids[0], ids[1]);
}

#[tokio::test]
async fn a_bad_record_refuses_all_of_them_and_is_named() {
    let gateway = start(MemoryOutlet::new(), Limits::default()).await;
    let body = format!(r#"[{READING},{{"device":"d1","metric":"t","value":1,"unit":"cel"}}]"#);
    let (status, problem) = gateway.post("/v1/readings", "application/json", &body).await;
    assert_eq!(status, 422);
    assert_eq!((&problem["record"], &problem["field"]), (&json!(1), &json!("unit")));
    assert_eq!(problem["code"], "unknown-unit");
    assert!(
        problem["detail"].as_str().unwrap().starts_with("record 1: unit: \"cel\" is not a SenML unit"),
        "{problem}"
    );
    assert!(gateway.outlet.tasks().is_empty());
    let (status, problem) = gateway.post("/v1/readings", "application/json", "{").await;
    assert_eq!((status, &problem["code"]), (400, &json!("malformed")));
    let (status, _) = gateway.post("/v1/readings", "text/csv", "a;b").await;
    assert_eq!(status, 415);
}

#[tokio::test]
async fn a_kind_that_no_lane_takes_is_refused_before_it_is_published() {
    let gateway = start(MemoryOutlet::new(), Limits::default()).await;
    let (status, problem) = gateway.post("/v1/tasks/spectrum.analyze", "application/json", "{}").await;
    assert_eq!(status, 422);
    assert_eq!(
        problem["detail"],
        "kind \"spectrum.analyze\" is taken by no lane; bindings are reading.#, bench.#"
    );
    assert_eq!(gateway.post("/v1/tasks/a%20b", "application/json", "{}").await.0, 422);
    assert_eq!(gateway.post("/v1/tasks/bench.noop", "application/json", "{").await.0, 400);
    assert!(gateway.outlet.tasks().is_empty());
    assert_eq!(gateway.post("/v1/tasks/bench.noop", "application/json", "{}").await.0, 202);
    assert_eq!(gateway.outlet.tasks()[0].kind.as_str(), "bench.noop");
}

#[tokio::test]
async fn while_the_broker_pushes_back_nothing_is_claimed() {
    let gateway = start(MemoryOutlet::new(), Limits::default()).await;
    gateway.outlet.fail(Some(PublishError::Refused { routing_key: "reading.process".into() }));
    let response = reqwest::Client::new()
        .post(format!("http://{}/v1/readings", gateway.address))
        .body(READING)
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()["retry-after"], "1");
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let mut lines = gateway.lines().await;
    lines.write_all(format!("{READING}\n").as_bytes()).await.unwrap();
    assert_eq!(
        line(&mut lines).await,
        "error busy the broker refused the message (queue \"reading.process\" full or unavailable)"
    );
    gateway.outlet.fail(None);
    lines.write_all(format!("{READING}\n").as_bytes()).await.unwrap();
    assert!(line(&mut lines).await.starts_with("ok "));
}

#[tokio::test]
async fn a_message_that_no_frame_holds_is_too_large_and_not_worth_another_try() {
    let gateway = start(MemoryOutlet::new(), Limits::default()).await;
    let error = PublishError::TooLarge { what: "header frame", bytes: 131_073, limit: 131_072 };
    gateway.outlet.fail(Some(error));
    let url = format!("http://{}/v1/readings", gateway.address);
    let response = reqwest::Client::new().post(url).body(READING).send().await.unwrap();
    assert_eq!((response.status().as_u16(), response.headers().get("retry-after")), (413, None));
    let mut lines = gateway.lines().await;
    lines.write_all(format!("{READING}\n").as_bytes()).await.unwrap();
    assert_eq!(
        line(&mut lines).await,
        "error too-large the message's header frame has 131073 bytes, 131072 are allowed"
    );
}

#[tokio::test]
async fn lines_are_answered_in_order_and_many_are_under_way() {
    let outlet = MemoryOutlet::gated();
    let gateway = start(outlet.clone(), Limits::default()).await;
    let mut lines = gateway.lines().await;
    let input = format!("{READING}\nnonsense\n{{\"device\":\"d\"}}\n[{READING},{READING}]\n");
    lines.write_all(input.as_bytes()).await.unwrap();
    outlet.confirm(2);
    let first = line(&mut lines).await;
    assert_eq!(first, format!("ok {}", outlet.tasks()[0].id));
    assert!(line(&mut lines).await.starts_with("error malformed record 0: body: not JSON"));
    assert!(
        line(&mut lines).await.starts_with("error missing-field record 0: metric: required field is missing")
    );
    assert_eq!(line(&mut lines).await.split(' ').count(), 3);
}

#[tokio::test]
async fn limits_on_line_and_body_answer_with_the_limit() {
    let limits = Limits { max_line: Size(64), max_body: Size(256), ..Limits::default() };
    let gateway = start(MemoryOutlet::new(), limits).await;
    let mut lines = gateway.lines().await;
    let short = r#"{"device":"d","metric":"m","value":1}"#;
    let input = format!("{}\n{short}\n", "x".repeat(100_000));
    lines.write_all(input.as_bytes()).await.unwrap();
    assert_eq!(line(&mut lines).await, "error too-large line is over 64B");
    assert!(line(&mut lines).await.starts_with("ok "));
    let (status, problem) = gateway.post("/v1/readings", "application/json", &" ".repeat(300)).await;
    assert_eq!((status, &problem["detail"]), (413, &json!("body is over 256B")));
}

#[tokio::test]
async fn a_stop_answers_what_is_under_way_and_takes_nothing_new() {
    let outlet = MemoryOutlet::gated();
    let gateway = start(outlet.clone(), Limits::default()).await;
    let mut lines = gateway.lines().await;
    lines.write_all(format!("{READING}\n").as_bytes()).await.unwrap();
    let posting = {
        let url = format!("http://{}/v1/readings", gateway.address);
        tokio::spawn(async move { reqwest::Client::new().post(url).body(READING).send().await.unwrap() })
    };
    outlet.waiting(2).await;
    gateway.stop.cancel();
    outlet.confirm(2);
    assert_eq!(posting.await.unwrap().status(), 202);
    assert!(line(&mut lines).await.starts_with("ok "));
    assert_eq!(lines.read_to_end(&mut Vec::new()).await.unwrap(), 0);
    assert!(gateway.gateway.await.unwrap());
    assert!(TcpStream::connect(gateway.address).await.is_err());
}

#[tokio::test]
async fn one_connection_too_many_is_told_so_in_its_own_protocol() {
    let limits = Limits { max_connections: 1, ..Limits::default() };
    let gateway = start(MemoryOutlet::new(), limits).await;
    let mut first = gateway.lines().await;
    first.write_all(format!("{READING}\n").as_bytes()).await.unwrap();
    assert!(line(&mut first).await.starts_with("ok "));
    let mut second = gateway.lines().await;
    second.write_all(b"{}\n").await.unwrap();
    assert_eq!(line(&mut second).await, "error busy too many connections (1)");
    let (status, problem) = gateway.post("/v1/readings", "application/json", READING).await;
    assert_eq!((status, &problem["code"]), (503, &json!("busy")));
    assert!(
        gateway.metrics.encode().contains(
            r#"garenne_gateway_refused_connections_total{reason="full",server="connection-pool"} 2"#
        )
    );
}

#[tokio::test]
async fn a_silent_or_dripping_sender_is_given_up() {
    let short = Duration::from_millis(50);
    let limits = Limits {
        first_byte_timeout: short,
        header_timeout: short,
        body_timeout: short,
        idle_timeout: short,
        ..Limits::default()
    };
    let gateway = start(MemoryOutlet::new(), limits).await;
    for (sent, answer) in [
        ("", ""),
        ("{\"device\"", "error timeout line did not arrive within 50ms\n"),
        ("\n", ""),
        ("POST /v1/readings HTTP/1.1\r\nhost:", ""),
    ] {
        let mut sender = TcpStream::connect(gateway.address).await.unwrap();
        sender.write_all(sent.as_bytes()).await.unwrap();
        let mut got = String::new();
        sender.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, answer, "{sent:?}");
    }
    let mut sender = TcpStream::connect(gateway.address).await.unwrap();
    let head = "POST /v1/readings HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{";
    sender.write_all(head.as_bytes()).await.unwrap();
    let mut got = String::new();
    sender.read_to_string(&mut got).await.unwrap();
    assert!(got.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{got}");
}

/// A sender that asks on and on and reads no answer: it is no longer read from once its answers are stuck,
/// and then given up.
#[tokio::test]
async fn a_sender_that_reads_no_answers_is_given_up() {
    let limits = Limits { write_timeout: Duration::from_millis(300), ..Limits::default() };
    let gateway = start(MemoryOutlet::new(), limits).await;
    let requests = "GET /ping HTTP/1.1\r\nhost: x\r\n\r\n".repeat(1000);
    let lines = format!("{READING}\n").repeat(1000);
    for asked in [requests, lines] {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        // What the kernel keeps of the answers is no concern of ours.
        socket.set_recv_buffer_size(4096).unwrap();
        let mut sender = socket.connect(gateway.address).await.unwrap();
        let mut sent = 0;
        let ended = loop {
            match sender.write_all(asked.as_bytes()).await {
                Ok(()) => sent += asked.len(),
                Err(error) => break error,
            }
        };
        assert!(
            [std::io::ErrorKind::ConnectionReset, std::io::ErrorKind::BrokenPipe].contains(&ended.kind()),
            "{ended}"
        );
        // Both sockets' buffers, and little of our own.
        assert!(sent < 24 << 20, "{sent} bytes were taken");
    }
    let mut lines = gateway.lines().await;
    lines.write_all(format!("{READING}\n").as_bytes()).await.unwrap();
    assert!(line(&mut lines).await.starts_with("ok "));
}

#[tokio::test]
async fn the_description_is_served_and_names_every_route() {
    let gateway = start(MemoryOutlet::new(), Limits::default()).await;
    let url = format!("http://{}/openapi.json", gateway.address);
    let document: Value = reqwest::get(url).await.unwrap().json().await.unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let paths: Vec<_> = document["paths"].as_object().unwrap().keys().collect();
    assert_eq!(paths, ["/openapi.json", "/v1/readings", "/v1/tasks/{kind}"]);
}

#[tokio::test]
async fn every_server_speaks_the_same_and_ends_the_same() {
    for kind in ServerKind::ALL {
        let outlet = MemoryOutlet::gated();
        let gateway = start_on(kind, outlet.clone(), Limits::default()).await;
        let mut lines = gateway.lines().await;
        lines.write_all(format!("{READING}\n{READING}\n").as_bytes()).await.unwrap();
        outlet.waiting(2).await;
        outlet.confirm(2);
        for _ in 0..2 {
            assert!(line(&mut lines).await.starts_with("ok "), "{kind}");
        }
        drop(lines);
        outlet.confirm(1);
        assert_eq!(gateway.post("/v1/readings", "application/json", READING).await.0, 202, "{kind}");
        let mut waiting = gateway.lines().await;
        waiting.write_all(format!("{READING}\n").as_bytes()).await.unwrap();
        outlet.waiting(4).await;
        gateway.stop.cancel();
        outlet.confirm(1);
        assert!(line(&mut waiting).await.starts_with("ok "), "{kind}");
        assert!(gateway.gateway.await.unwrap(), "{kind}");
        let active = format!(r#"garenne_gateway_connections{{server="{kind}",state="active"}} 0"#);
        assert!(gateway.metrics.encode().contains(&active), "{kind}");
    }
}

#[tokio::test]
async fn idle_connections_hold_no_worker() {
    let limits = Limits { workers: Concurrency { min: 1, max: 1 }, ..Limits::default() };
    let outlet = MemoryOutlet::gated();
    let gateway = start_on(ServerKind::WorkerPool, outlet.clone(), limits).await;
    let mut idle = Vec::new();
    for sent in ["", "{", "POST /v1/readings HTTP/1.1\r\n", READING] {
        let mut sender = gateway.lines().await;
        sender.write_all(sent.as_bytes()).await.unwrap();
        idle.push(sender);
    }
    // One that waits for its confirm holds none either.
    idle[3].write_all(b"\n").await.unwrap();
    outlet.waiting(1).await;
    let mut lines = gateway.lines().await;
    lines.write_all(format!("{READING}\n").as_bytes()).await.unwrap();
    outlet.waiting(2).await;
    outlet.confirm(2);
    assert!(line(&mut lines).await.starts_with("ok "));
    assert!(line(&mut idle[3]).await.starts_with("ok "));
}

mod hostile;
mod influx;
mod security;
mod traces;
