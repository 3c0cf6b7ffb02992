use std::{sync::Mutex, time::Instant};

use axum::{Router, body::Bytes, http::StatusCode, routing::post};
use opentelemetry::trace::{Tracer, TracerProvider};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest, common::v1::any_value::Value,
};
use opentelemetry_sdk::trace::SdkTracerProvider;
use prost::Message;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpListener,
};

use super::*;
use crate::{
    config,
    telemetry::traces::{LAST_EXPORT, Service, SpanKind, Traces},
};

type Taken = Arc<Mutex<Vec<ExportTraceServiceRequest>>>;

/// Starts a collector that answers with `status`, or never if it is `None`. Returns its URL and what it received.
async fn collector(status: Option<StatusCode>) -> (String, Taken) {
    let taken = Taken::default();
    let kept = Arc::clone(&taken);
    let take = async move |body: Bytes| {
        kept.lock().unwrap().push(ExportTraceServiceRequest::decode(body).unwrap());
        match status {
            Some(status) => status,
            None => std::future::pending().await,
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().route("/v1/traces", post(take));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, taken)
}

fn exporting_to(url: &str, timeout: Duration) -> (Traces, Metrics) {
    let otlp = config::Otlp { endpoint: Some(url.parse().unwrap()), timeout, ..config::Otlp::default() };
    let service = Service { name: "garenne-test", instance: "one".into(), version: "1.2.3" };
    let metrics = Metrics::new("test");
    (Traces::start(&otlp, &service, &metrics).unwrap(), metrics)
}

fn spans(traces: &Traces, count: usize) {
    for _ in 0..count {
        drop(traces.begin(None, SpanKind::Server, |span| span.name("one")));
    }
}

fn counts(metrics: &Metrics) -> [u64; 3] {
    ["exported", "failed", "dropped"].map(|result| metrics.spans(result).get())
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_reach_the_collector_with_their_resource_attributes() {
    let (url, taken) = collector(Some(StatusCode::OK)).await;
    let (traces, metrics) = exporting_to(&url, Duration::from_secs(10));
    let begun = traces.begin(None, SpanKind::Producer, |span| span.name("publish"));
    let (context, span) = (begun.context.unwrap(), begun.span.unwrap());
    span.end();
    traces.close(Duration::from_secs(10)).await;
    let taken = taken.lock().unwrap();
    let of = &taken[0].resource_spans[0];
    let said = |name: &str| {
        let found = of.resource.as_ref().unwrap().attributes.iter().find(|it| it.key == name).unwrap();
        match found.value.clone().unwrap().value.unwrap() {
            Value::StringValue(text) => text,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        ["service.name", "service.instance.id", "service.version"].map(said),
        ["garenne-test", "one", "1.2.3"]
    );
    let span = &of.scope_spans[0].spans[0];
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(
        (hex(&span.trace_id).as_str(), hex(&span.span_id).as_str()),
        (context.trace_id(), context.span_id())
    );
    assert_eq!((span.name.as_str(), span.kind), ("publish", 4));
    assert_eq!(counts(&metrics), [1, 0, 0]);
    assert!(traces.begin(None, SpanKind::Server, |_| ()).span.is_none(), "traces are off after close");
}

/// The response announces nine bytes and ends after four.
#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_response_counts_by_its_status() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answering = tokio::spawn(async move {
        let mut stream = BufReader::new(listener.accept().await.unwrap().0);
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            stream.read_line(&mut line).await.unwrap();
            if let Some(given) = line.to_lowercase().strip_prefix("content-length:") {
                length = given.trim().parse().unwrap();
            }
        }
        stream.read_exact(&mut vec![0; length]).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf").await.unwrap();
    });
    let (traces, metrics) = exporting_to(&url, Duration::from_secs(10));
    spans(&traces, 1);
    traces.close(Duration::from_secs(10)).await;
    answering.await.unwrap();
    assert_eq!(counts(&metrics), [1, 0, 0], "the batch was not sent again");
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_that_the_collector_refuses_are_counted_and_not_sent_again() {
    let (url, taken) = collector(Some(StatusCode::BAD_REQUEST)).await;
    let (traces, metrics) = exporting_to(&url, Duration::from_secs(10));
    spans(&traces, 3);
    traces.close(Duration::from_secs(10)).await;
    assert_eq!((counts(&metrics), taken.lock().unwrap().len()), ([0, 3, 0], 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_never_answers_delays_nothing() {
    let (url, _) = collector(None).await;
    let (traces, metrics) = exporting_to(&url, Duration::from_secs(60));
    // One batch is sent and never answered; the next ones wait, and the rest is dropped.
    let began = Instant::now();
    spans(&traces, 3 * MAX_WAITING);
    let [exported, failed, dropped] = counts(&metrics);
    assert_eq!((exported, failed), (0, 0));
    // Meanwhile the export thread removes one batch from the queue.
    let most = (2 * MAX_WAITING) as u64;
    assert!((most - 512..=most).contains(&dropped), "{dropped}");
    traces.close(Duration::from_millis(200)).await;
    assert!(began.elapsed() < LAST_EXPORT + Duration::from_secs(10), "{:?}", began.elapsed());
}

/// Nothing listens on a port that was just closed.
#[tokio::test(flavor = "multi_thread")]
async fn spans_fail_if_the_collector_is_down() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (traces, metrics) = exporting_to(&format!("http://{gone}"), Duration::from_secs(1));
    spans(&traces, 2);
    traces.close(Duration::from_secs(30)).await;
    assert_eq!(counts(&metrics), [0, 2, 0]);
}

#[test]
fn the_problem_names_the_cause() {
    let problem = LastProblem::default();
    assert_eq!(problem.take(), None);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let refused = runtime.block_on(async {
        let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let client = CollectorClient::new(false, Duration::from_secs(5), Handle::current()).unwrap();
        let request = hyper::Request::post(format!("http://{gone}/v1/traces")).body(Bytes::new()).unwrap();
        let answer = opentelemetry_http::HttpClient::send_bytes(&client, request).await;
        assert!(answer.is_err());
        client.problem.take().unwrap()
    });
    assert!(refused.contains("Connection refused"), "{refused}");
}

/// Accepts spans and never exports them.
#[derive(Debug)]
struct Hole;

impl SpanProcessor for Hole {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, _: SpanData) {}

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

#[test]
fn beyond_the_bound_spans_are_dropped_and_counted() {
    let metrics = Metrics::new("test");
    let bounded = BoundedProcessor { next: Hole, state: Arc::new(ExportState::new(&metrics)) };
    let provider = SdkTracerProvider::builder().with_span_processor(bounded).build();
    let tracer = provider.tracer("test");
    (0..MAX_WAITING + 3).for_each(|_| drop(tracer.start("one")));
    assert_eq!(counts(&metrics), [0, 0, 3]);
}
