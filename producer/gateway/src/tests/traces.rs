//! What a gateway's requests and lines are in a trace.

use garenne_common::telemetry::traces::{Recorder, SpanKind};

use super::*;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const READING: &str = r#"{"device":"d","metric":"m","value":1}"#;

async fn traced() -> (Running, Recorder) {
    let (traces, recorder) = Traces::recorded();
    let security = (Access::open(), None);
    let running =
        start_traced(ServerKind::default(), MemoryOutlet::new(), Limits::default(), security, traces).await;
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
async fn a_request_goes_on_with_its_senders_trace_into_every_task_of_it() {
    let (running, recorder) = traced().await;
    let body = format!("[{READING},{}]", READING.replace('1', "2"));
    assert_eq!(running.post_within("/v1/readings", PARENT, &body).await, 202);
    let (request, publish) = (recorder.only("POST /v1/readings"), recorder.only("publish garenne.tasks"));
    assert_eq!((request.kind, request.trace_id.as_str()), (SpanKind::Server, &PARENT[3..35]));
    assert_eq!((request.parent_id.as_str(), publish.parent_id), (&PARENT[36..52], request.span_id));
    let said = |name: &str| request.attributes[name].as_str();
    assert_eq!((said("http.request.method"), said("http.route")), ("POST", "/v1/readings"));
    assert_eq!((said("http.response.status_code"), said("garenne.records")), ("202", "2"));
    let tasks = running.outlet.tasks();
    assert_eq!(tasks.len(), 2);
    for task in tasks {
        let trace = task.trace.unwrap();
        assert_eq!((trace.trace_id(), trace.span_id()), (&PARENT[3..35], publish.span_id.as_str()));
        assert_eq!(trace.state(), Some("vendor=1"));
    }
}

#[tokio::test]
async fn tasks_and_influx_lines_are_traced_as_readings_are() {
    let (running, recorder) = traced().await;
    assert_eq!(running.post_within("/v1/tasks/bench.noop", PARENT, "{}").await, 202);
    assert_eq!(running.post_within("/api/v2/write", PARENT, "m,device=d f=1").await, 204);
    let parents: Vec<_> =
        ["POST /v1/tasks/{kind}", "POST /api/v2/write"].map(|name| recorder.only(name)).into();
    assert!(parents.iter().all(|span| span.parent_id == PARENT[36..52]));
    let traces: Vec<_> = running.outlet.tasks().into_iter().map(|task| task.trace.unwrap()).collect();
    assert!(traces.len() == 2 && traces.iter().all(|trace| trace.trace_id() == &PARENT[3..35]), "{traces:?}");
}

#[tokio::test]
async fn a_sender_that_is_in_no_trace_begins_one() {
    let (running, recorder) = traced().await;
    assert_eq!(running.post_within("/v1/readings", "nonsense", READING).await, 202);
    let mut lines = running.lines().await;
    lines.get_mut().write_all(format!("{READING}\n").as_bytes()).await.unwrap();
    lines.read_line(&mut String::new()).await.unwrap();
    let (request, line) = (recorder.only("POST /v1/readings"), recorder.only("line"));
    assert_ne!(request.trace_id, line.trace_id);
    let traces: Vec<_> = running.outlet.tasks().into_iter().map(|task| task.trace.unwrap()).collect();
    assert_eq!(
        [traces[0].trace_id(), traces[1].trace_id()],
        [request.trace_id.as_str(), line.trace_id.as_str()]
    );
}

#[tokio::test]
async fn what_fails_says_so_and_what_is_only_asked_is_no_span() {
    let (running, recorder) = traced().await;
    assert_eq!(running.post_within("/v1/readings", PARENT, "{").await, 400);
    let refused = recorder.only("POST /v1/readings");
    assert_eq!((refused.attributes["error.type"].as_str(), refused.error), ("malformed", None));
    running.outlet.fail(Some(PublishError::Blocked));
    assert_eq!(running.post_within("/v1/tasks/bench.noop", PARENT, "{}").await, 503);
    assert_eq!(recorder.only("POST /v1/tasks/{kind}").error.as_deref(), Some("Service Unavailable"));
    let health = reqwest::get(format!("http://{}/health", running.address)).await.unwrap();
    assert_eq!(health.status(), 200);
    assert_eq!(recorder.spans().len(), 3, "two requests and a publish");
}

#[tokio::test]
async fn without_traces_the_senders_is_passed_on() {
    let running = start(MemoryOutlet::new(), Limits::default()).await;
    assert_eq!(running.post_within("/v1/readings", PARENT, READING).await, 202);
    assert_eq!(running.post_within("/v1/readings", "nonsense", READING).await, 202);
    let tasks = running.outlet.tasks();
    assert_eq!(tasks[0].trace.as_ref().map(|trace| trace.parent()), Some(PARENT));
    assert_eq!(tasks[1].trace, None);
}
