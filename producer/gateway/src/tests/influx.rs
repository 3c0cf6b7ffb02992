use std::io::Write;

use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::*;

async fn write(gateway: &Running, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> (u16, String) {
    let mut request = reqwest::Client::new().post(format!("http://{}{path}", gateway.address)).body(body);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn writers_of_both_api_versions_work() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let ping = reqwest::get(format!("http://{}/ping", gateway.address)).await.unwrap();
    assert_eq!(ping.status(), 204);
    assert!(ping.headers().contains_key("x-influxdb-version"));
    let created = write(&gateway, "/query?q=CREATE%20DATABASE%20%22telegraf%22", &[], vec![]).await;
    assert_eq!(created, (200, r#"{"results":[{"statement_id":0}]}"#.to_owned()));
    let lines = "cpu,host=h1 usage_idle=99.5,usage_user=1 1763600000000000000\n";
    let gzipped = [("content-encoding", "gzip"), ("content-type", "text/plain; charset=utf-8")];
    let answer = write(&gateway, "/write?db=telegraf&precision=ns", &gzipped, gzip(lines)).await;
    assert_eq!(answer, (204, String::new()));
    let answer = write(
        &gateway,
        "/api/v2/write?org=o&bucket=b&precision=s",
        &[],
        b"t,device=d value=1 1763600000".to_vec(),
    );
    assert_eq!(answer.await.0, 204);
    let bodies = gateway.bodies();
    assert_eq!(bodies.len(), 3);
    assert_eq!(bodies[0]["metric"], "cpu.usage_idle");
    assert_eq!(bodies[2], json!({"device":"d","metric":"t","value":1.0,"time":"2025-11-20T00:53:20Z"}));
    let metrics = gateway.metrics.encode();
    assert!(metrics.contains(r#"garenne_gateway_records_total{protocol="influx"} 3"#), "{metrics}");
}

#[tokio::test]
async fn refusals_have_the_format_of_influxdb() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let (status, body) = write(&gateway, "/api/v2/write", &[], b"nonsense".to_vec()).await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &body["code"]), (400, &json!("invalid")));
    assert!(body["message"].as_str().unwrap().starts_with("line 1: line: not line protocol"), "{body}");
    let (status, body) = write(&gateway, "/query?q=SELECT%201", &[], vec![]).await;
    assert_eq!(status, 400);
    assert!(body.contains("only CREATE DATABASE is supported"), "{body}");
    gateway.publisher.fail(Some(PublishError::InDoubt("the connection ended".into())));
    assert_eq!(write(&gateway, "/write", &[], b"a v=1".to_vec()).await.0, 503);
}

#[tokio::test]
async fn the_body_limit_applies_after_decompression() {
    let limits = Limits { max_body: Size::kib(16), ..Limits::default() };
    let gateway = start(MemorySender::new(), limits).await;
    let gzipped = [("content-encoding", "gzip"), ("content-type", "application/json")];
    let bomb = gzip(&" ".repeat(10 * 1024 * 1024));
    assert!(bomb.len() < 16 * 1024);
    let (status, body) = write(&gateway, "/v1/readings", &gzipped, bomb).await;
    assert_eq!(status, 413);
    assert!(body.contains("decompressed body is larger than 16KiB"), "{body}");
    let (status, _) = write(&gateway, "/v1/readings", &gzipped, gzip(READING)).await;
    assert_eq!(status, 202);
    let (status, body) = write(&gateway, "/v1/readings", &gzipped, b"plain".to_vec()).await;
    assert_eq!(status, 400);
    assert!(body.contains("not gzip"), "{body}");
    let zstd = [("content-encoding", "zstd"), ("content-type", "application/json")];
    let compressed = |plain: &[u8]| compress_to_vec(plain, CompressionLevel::Fastest);
    let (status, body) = write(&gateway, "/v1/readings", &zstd, compressed(&[b' '; 1 << 20])).await;
    assert_eq!(status, 413, "{body}");
    let (status, _) = write(&gateway, "/v1/readings", &zstd, compressed(READING.as_bytes())).await;
    assert_eq!(status, 202);
    let (status, body) = write(&gateway, "/v1/readings", &zstd, b"plain".to_vec()).await;
    assert_eq!(status, 400);
    assert!(body.contains("not zstd"), "{body}");
    let (status, body) = write(&gateway, "/v1/readings", &[("content-encoding", "br")], vec![]).await;
    assert_eq!(status, 415);
    assert!(body.contains("expected gzip, zstd or identity"), "{body}");
}
