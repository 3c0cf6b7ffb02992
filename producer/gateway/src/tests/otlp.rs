//! OpenTelemetry's metrics over HTTP.

use std::{pin::Pin, sync::Mutex};

use bytes::Bytes;
use opentelemetry::{KeyValue, metrics::MeterProvider};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Compression, MetricExporter, Protocol, WithExportConfig, WithHttpConfig};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceResponse,
};
use opentelemetry_sdk::{
    Resource,
    metrics::{SdkMeterProvider, Temporality},
};
use prost::Message;

use super::{
    hostile::{gzip, until},
    security::{entry, with_senders},
    *,
};

const PROTOBUF: &str = "application/x-protobuf";

/// The client of the SDK's exporter, which runs on a thread of its own. Keeps the requests and the answers.
#[derive(Debug, Clone)]
struct Client {
    runtime: Handle,
    exchanged: Arc<Mutex<Vec<(Bytes, u16, Bytes)>>>,
}

impl HttpClient for Client {
    fn send_bytes<'this, 'answer>(
        &'this self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'answer>>
    where
        'this: 'answer,
        Self: 'answer,
    {
        let (head, body) = request.into_parts();
        let request =
            reqwest::Client::new().post(head.uri.to_string()).headers(head.headers).body(body.clone());
        let sending = self.runtime.spawn(async move {
            let response = request.send().await.unwrap();
            (response.status(), response.bytes().await.unwrap())
        });
        Box::pin(async move {
            let (status, answer) = sending.await?;
            self.exchanged.lock().unwrap().push((body, status.as_u16(), answer.clone()));
            Ok(Response::builder().status(status).body(answer)?)
        })
    }
}

/// The SDK's export with this protocol.
async fn export(gateway: &Running, protocol: Protocol, temporality: Temporality) -> (Bytes, u16, Bytes) {
    let client = Client { runtime: Handle::current(), exchanged: Arc::default() };
    let exporter = MetricExporter::builder()
        .with_temporality(temporality)
        .with_http()
        .with_protocol(protocol)
        .with_compression(Compression::Gzip)
        .with_endpoint(format!("http://{}/v1/metrics", gateway.address))
        .with_http_client(client.clone())
        .build()
        .unwrap();
    let resource = Resource::builder().with_attribute(KeyValue::new("device.id", "boiler-1")).build();
    let provider =
        SdkMeterProvider::builder().with_resource(resource).with_periodic_exporter(exporter).build();
    let meter = provider.meter("test");
    meter.f64_gauge("temperature").with_unit("Cel").build().record(71.5, &[KeyValue::new("place", "top")]);
    meter.u64_counter("starts").build().add(3, &[]);
    meter.f64_histogram("duration").build().record(1.5, &[]);
    let flushing = tokio::task::spawn_blocking(move || {
        provider.force_flush().unwrap();
        drop(meter);
        provider.shutdown_with_timeout(Duration::from_secs(5))
    });
    let _ = flushing.await.unwrap();
    let first = client.exchanged.lock().unwrap().first().cloned();
    first.expect("an export")
}

async fn post(gateway: &Running, headers: &[(&str, &str)], body: impl Into<Bytes>) -> reqwest::Response {
    let mut request = reqwest::Client::new().post(format!("http://{}/v1/metrics", gateway.address));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body.into()).send().await.unwrap()
}

fn metric(value: f64) -> Value {
    let point = json!({"timeUnixNano": "1763600000000000000", "asDouble": value});
    let metrics = json!([{"name": "t", "unit": "Cel", "gauge": {"dataPoints": [point]}}]);
    let resource = json!({"attributes": [{"key": "device.id", "value": {"stringValue": "d"}}]});
    json!({"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": metrics}]}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sdks_exporter_stores_gauges_and_sums_and_learns_of_its_histograms() {
    for protocol in [Protocol::HttpBinary, Protocol::HttpJson] {
        let gateway = start(MemorySender::new(), Limits::default()).await;
        let (body, status, answer) = export(&gateway, protocol, Temporality::Cumulative).await;
        assert_eq!(status, 200, "{protocol:?} {answer:?}");
        let decoded = match protocol {
            Protocol::HttpBinary => ExportMetricsServiceResponse::decode(answer).unwrap(),
            _ => serde_json::from_slice(&answer).unwrap(),
        };
        let ExportMetricsPartialSuccess { rejected_data_points, error_message } =
            decoded.partial_success.unwrap();
        assert_eq!(
            (rejected_data_points, error_message.as_str()),
            (1, "1 data points are not stored: metric \"duration\": a histogram has no single value")
        );
        let mut bodies = gateway.bodies();
        bodies.truncate(2);
        bodies.sort_by_key(|body| body["metric"].to_string());
        assert_eq!((&bodies[0]["metric"], &bodies[0]["value"]), (&json!("starts"), &json!(3.0)));
        let second = &bodies[1];
        assert_eq!(
            (&second["device"], &second["metric"], &second["value"], &second["unit"]),
            (&json!("boiler-1"), &json!("temperature,place=top"), &json!(71.5), &json!("Cel"))
        );
        // The exporter repeats a request whose answer it did not get.
        let ids = || gateway.publisher.tasks().iter().map(|task| task.id.to_string()).collect::<Vec<_>>();
        let before = ids();
        let media = if protocol == Protocol::HttpBinary { PROTOBUF } else { "application/json" };
        let again = post(&gateway, &[("content-type", media), ("content-encoding", "gzip")], body).await;
        assert_eq!(
            (again.status().as_u16(), &again.headers()["content-type"]),
            (200, &media.parse().unwrap())
        );
        assert_eq!(ids()[before.len()..], before[..2]);
        let metrics = gateway.metrics.encode();
        assert!(
            metrics.contains(r#"garenne_gateway_requests_total{protocol="otlp",status="200"}"#),
            "{metrics}"
        );
        assert!(
            metrics.contains(r#"garenne_gateway_refusals_total{protocol="otlp",reason="rejected-points"}"#),
            "{metrics}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn delta_sums_are_metrics_of_their_own() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    assert_eq!(export(&gateway, Protocol::HttpBinary, Temporality::Delta).await.1, 200);
    let metrics: Vec<Value> = gateway.bodies().iter().map(|body| body["metric"].clone()).collect();
    assert!(metrics.contains(&json!("starts,temporality=delta")), "{metrics:?}");
}

#[tokio::test]
async fn refusals_are_statuses_in_the_encoding_of_the_request() {
    let (gateway, _folder) = with_senders(&entry("roof", "s3cret", "devices = [\"roof-*\"]")).await;
    let json = ("content-type", "application/json; charset=utf-8");
    let token = ("authorization", "Bearer s3cret");
    for (headers, body, status, code, message) in [
        (vec![json], metric(1.0).to_string(), 401, 16, "not authenticated: no token"),
        (vec![json, token], metric(1.0).to_string(), 403, 7, "device: sender \"roof\" may not send \"d\""),
        (vec![json, token], "{".to_owned(), 400, 3, "body: no metrics of OTLP: EOF while parsing an object"),
        (
            vec![("content-type", "text/plain"), token],
            String::new(),
            415,
            3,
            "content-type \"text/plain\" is not supported, expected application/json or application/x-protobuf",
        ),
    ] {
        let response = post(&gateway, &headers, body).await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()["content-type"]),
            (status, &"application/json".parse().unwrap())
        );
        let answer: Value = response.json().await.unwrap();
        assert_eq!(answer["code"], json!(code), "{answer}");
        assert!(answer["message"].as_str().unwrap().starts_with(message), "{answer}");
    }
    let response = post(&gateway, &[("content-type", PROTOBUF), token], vec![0xff; 10]).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-type"]),
        (400, &PROTOBUF.parse().unwrap())
    );
    let status = response.bytes().await.unwrap();
    assert_eq!(status[..2], [8, 3], "the code of a google.rpc.Status");
    assert!(gateway.publisher.tasks().is_empty());
}

#[tokio::test]
async fn what_an_exporter_may_repeat_has_a_time_to_wait() {
    let limits = Limits { body_timeout: Duration::from_millis(50), ..Limits::default() };
    let gateway = start(MemorySender::new(), limits).await;
    gateway.publisher.fail(Some(PublishError::Blocked));
    let json = [("content-type", "application/json")];
    let response = post(&gateway, &json, metric(1.0).to_string()).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["retry-after"]),
        (503, &"1".parse().unwrap())
    );
    assert_eq!(response.json::<Value>().await.unwrap()["code"], json!(14));
    // Exporters do not repeat a request after a 408.
    let mut slow = TcpStream::connect(gateway.address).await.unwrap();
    let head = "POST /v1/metrics HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n{";
    slow.write_all(head.as_bytes()).await.unwrap();
    let mut got = String::new();
    slow.read_to_string(&mut got).await.unwrap();
    assert!(got.starts_with("HTTP/1.1 503 ") && got.contains("\r\nretry-after: 1\r\n"), "{got}");
    gateway.publisher.fail(None);
    let response = post(&gateway, &json, metric(1.0).to_string()).await;
    assert_eq!((response.status().as_u16(), response.text().await.unwrap().as_str()), (200, "{}"));
    let empty = post(&gateway, &[("content-type", PROTOBUF)], "").await;
    assert_eq!((empty.status().as_u16(), empty.bytes().await.unwrap().len()), (200, 0));
}

#[tokio::test]
async fn answers_from_the_spool_are_marked() {
    let folder = tempfile::tempdir().unwrap();
    let publisher = MemorySender::new();
    publisher.fail(Some(PublishError::Blocked));
    let spool = SpoolSettings { spool: Some(folder.path().to_owned()), ..SpoolSettings::default() };
    let (gateway, _spool) = start_with_spool(publisher, spool).await;
    let response = post(&gateway, &[("content-type", "application/json")], metric(1.0).to_string()).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["garenne-durability"]),
        (200, &"spooled".parse().unwrap())
    );
}

/// Messages of two bytes would need a hundred times the memory of the body.
#[tokio::test]
async fn bodies_of_empty_messages_are_refused_before_they_are_decoded() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let nested = |fields: &[u8]| {
        let mut body: Vec<u8> = [(fields[fields.len() - 1] << 3) | 2, 0].repeat(400_000);
        for field in fields[..fields.len() - 1].iter().rev() {
            let mut outer = vec![(field << 3) | 2];
            prost::encode_length_delimiter(body.len(), &mut outer).unwrap();
            outer.extend_from_slice(&body);
            body = outer;
        }
        body
    };
    let zipped = [("content-type", PROTOBUF), ("content-encoding", "gzip")];
    for fields in [&[1_u8][..], &[1, 1, 1], &[1, 2, 2], &[1, 2, 2, 5, 1], &[1, 2, 2, 5, 1, 7]] {
        let response = post(&gateway, &zipped, gzip(&nested(fields))).await;
        assert_eq!(response.status(), 413, "{fields:?}");
    }
    let objects = format!(r#"{{"resourceMetrics":[{}]}}"#, vec!["{}"; 150_000].join(","));
    let zipped = [("content-type", "application/json"), ("content-encoding", "gzip")];
    assert_eq!(post(&gateway, &zipped, gzip(objects.as_bytes())).await.status(), 413);
    until("all memory is released", || gateway.reserved() == 0).await;
    // The points of histograms cost nothing but the time to count them.
    let zipped = [("content-type", PROTOBUF), ("content-encoding", "gzip")];
    let response = post(&gateway, &zipped, gzip(&nested(&[1, 2, 2, 9, 1]))).await;
    assert_eq!(response.status(), 200);
    let answer = ExportMetricsServiceResponse::decode(response.bytes().await.unwrap()).unwrap();
    assert_eq!(answer.partial_success.unwrap().rejected_data_points, 400_000);
}

/// A collector's default export, with six attributes each.
#[tokio::test]
async fn a_batch_of_a_collector_fits_into_the_memory_of_a_request() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let attribute = |n: usize| json!({"key": format!("attribute.{n}"), "value": {"stringValue": format!("some value {n}")}});
    let attributes: Vec<Value> = (0..6).map(attribute).collect();
    let points: Vec<Value> = (0..8192)
        .map(|n| json!({"timeUnixNano": format!("17636000{n:05}000000"), "asDouble": n, "attributes": attributes}))
        .collect();
    let mut request = metric(1.0);
    request["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["gauge"]["dataPoints"] = json!(points);
    let request: opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest =
        serde_json::from_value(request).unwrap();
    let body = gzip(&request.encode_to_vec());
    let response = post(&gateway, &[("content-type", PROTOBUF), ("content-encoding", "gzip")], body).await;
    assert_eq!(response.status(), 200, "{:?}", response.text().await);
    assert_eq!(gateway.publisher.tasks().len(), 8192);
}
