//! Spans of requests and lines.

use garenne_common::telemetry::traces::{Recorder, SpanKind};

use super::*;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const READING: &str = r#"{"device":"d","metric":"m","value":1}"#;

async fn traced() -> (Running, Recorder) {
    let (traces, recorder) = Traces::recorded();
    let security = (Access::default(), None);
    let running =
        start_traced(ServerKind::default(), MemorySender::new(), Limits::default(), security, traces).await;
    (running, recorder)
}

impl Running {
    async fn post_within(&self, path: &str, parent: &str, body: &str) -> u16 {
        let request = reqwest::Client::new().post(format!("http://{}{path}", self.address));
        let request = request.header("traceparent", parent).header("tracestate", "vendor=1");
        request.body(body.to_owned()).send().await.unwrap().status().as_u16()
    }
}

#[tokio::test]
async fn all_tasks_of_a_request_continue_the_trace_of_its_sender() {
    let (running, recorder) = traced().await;
    let body = format!("[{READING},{}]", READING.replace("d1", "d2"));
    assert_eq!(running.post_within("/v1/readings", PARENT, &body).await, 202);
    let (request, publish) = (recorder.only("POST /v1/readings"), recorder.only("publish garenne.tasks"));
    assert_eq!((request.kind, request.trace_id.as_str()), (SpanKind::Server, &PARENT[3..35]));
    assert_eq!((request.parent_id.as_str(), publish.parent_id), (&PARENT[36..52], request.span_id));
    let attribute = |name: &str| request.attributes[name].as_str();
    assert_eq!((attribute("http.request.method"), attribute("http.route")), ("POST", "/v1/readings"));
    assert_eq!((attribute("http.response.status_code"), attribute("garenne.records")), ("202", "2"));
    let tasks = running.publisher.tasks();
    assert_eq!(tasks.len(), 2);
    for task in tasks {
        let trace = task.trace.unwrap();
        assert_eq!((trace.trace_id(), trace.span_id()), (&PARENT[3..35], publish.span_id.as_str()));
        assert_eq!(trace.state(), Some("vendor=1"));
    }
}

#[tokio::test]
async fn tasks_and_influx_writes_continue_the_trace_too() {
    let (running, recorder) = traced().await;
    assert_eq!(running.post_within("/v1/tasks/bench.noop", PARENT, "{}").await, 202);
    assert_eq!(running.post_within("/api/v2/write", PARENT, "m,device=d f=1").await, 204);
    let parents: Vec<_> =
        ["POST /v1/tasks/{kind}", "POST /api/v2/write"].map(|name| recorder.only(name)).into();
    assert!(parents.iter().all(|span| span.parent_id == PARENT[36..52]));
    let traces: Vec<_> = running.publisher.tasks().into_iter().map(|task| task.trace.unwrap()).collect();
    assert!(traces.len() == 2 && traces.iter().all(|trace| trace.trace_id() == &PARENT[3..35]), "{traces:?}");
}

#[tokio::test]
async fn a_request_without_trace_context_starts_a_trace() {
    let (running, recorder) = traced().await;
    assert_eq!(running.post_within("/v1/readings", "nonsense", READING).await, 202);
    let mut lines = running.lines().await;
    lines.get_mut().write_all(format!("{READING}\n").as_bytes()).await.unwrap();
    lines.read_line(&mut String::new()).await.unwrap();
    let (request, line) = (recorder.only("POST /v1/readings"), recorder.only("line"));
    assert_ne!(request.trace_id, line.trace_id);
    let traces: Vec<_> = running.publisher.tasks().into_iter().map(|task| task.trace.unwrap()).collect();
    assert_eq!(
        [traces[0].trace_id(), traces[1].trace_id()],
        [request.trace_id.as_str(), line.trace_id.as_str()]
    );
}

#[tokio::test]
async fn failures_are_recorded_and_queries_make_no_span() {
    let (running, recorder) = traced().await;
    assert_eq!(running.post_within("/v1/readings", PARENT, "{").await, 400);
    let refused = recorder.only("POST /v1/readings");
    assert_eq!((refused.attributes["error.type"].as_str(), refused.error), ("malformed", None));
    running.publisher.fail(Some(PublishError::Blocked));
    assert_eq!(running.post_within("/v1/tasks/bench.noop", PARENT, "{}").await, 503);
    assert_eq!(recorder.only("POST /v1/tasks/{kind}").error.as_deref(), Some("Service Unavailable"));
    let health = reqwest::get(format!("http://{}/health", running.address)).await.unwrap();
    assert_eq!(health.status(), 200);
    assert_eq!(recorder.spans().len(), 3, "two requests and a publish");
}

#[tokio::test]
async fn without_export_the_trace_context_is_passed_on() {
    let running = start(MemorySender::new(), Limits::default()).await;
    assert_eq!(running.post_within("/v1/readings", PARENT, READING).await, 202);
    assert_eq!(running.post_within("/v1/readings", "nonsense", READING).await, 202);
    let tasks = running.publisher.tasks();
    assert_eq!(tasks[0].trace.as_ref().map(|trace| trace.parent()), Some(PARENT));
    assert_eq!(tasks[1].trace, None);
}

#[tokio::test]
async fn senders_that_are_not_authenticated_cause_no_span_and_attributes_are_short() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("senders.toml");
    std::fs::write(&path, super::security::entry("roof", "t", super::security::ANY)).unwrap();
    let (traces, recorder) = Traces::recorded();
    let access = Access::new(Some(&path), false, 100).unwrap();
    let running =
        start_traced(ServerKind::default(), MemorySender::new(), Limits::default(), (access, None), traces)
            .await;
    let long = "x".repeat(8000);
    for path in ["/v1/readings", "/api/v2/write", &format!("/v1/tasks/{long}"), &format!("/{long}")] {
        let status = running.post_within(path, PARENT, READING).await;
        assert!([401, 404].contains(&status), "{path}: {status}");
    }
    assert!(recorder.spans().is_empty());
    let request = reqwest::Client::new().post(format!("http://{}/v1/tasks/{long}", running.address));
    assert_eq!(request.bearer_auth("t").body("{}").send().await.unwrap().status(), 422);
    let span = recorder.only("POST /v1/tasks/{kind}");
    assert!(span.attributes.values().all(|value| value.to_string().len() <= 130), "{:?}", span.attributes);
}
