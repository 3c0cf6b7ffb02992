//! The scope of a token, on every protocol and in every format.

use super::{
    security::{entry, with_senders},
    *,
};

const SCOPED: &str = "devices = [\"boiler-*\"]\nkinds = [\"reading.process\", \"window.analyze\"]";

async fn scoped() -> (Running, tempfile::TempDir) {
    with_senders(&entry("boilers", "t", SCOPED)).await
}

async fn post(gateway: &Running, path: &str, media: &str, body: &str) -> (u16, Value) {
    let request = reqwest::Client::new().post(format!("http://{}{path}", gateway.address)).bearer_auth("t");
    let response = request.header("content-type", media).body(body.to_owned()).send().await.unwrap();
    let status = response.status().as_u16();
    (status, serde_json::from_slice(&response.bytes().await.unwrap()).unwrap_or_default())
}

fn reading(device: &str) -> String {
    format!(r#"{{"device":"{device}","metric":"m","value":1,"time":1790000000}}"#)
}

#[tokio::test]
async fn readings_of_other_devices_are_refused_in_every_format() {
    let (gateway, _folder) = scoped().await;
    let senml = |device: &str| format!(r#"[{{"bn":"{device}:","n":"m","v":1,"bt":1790000000}}]"#);
    let lines = |device: &str| format!("m,device={device} value=1 1790000000");
    for (path, media, body) in [
        ("/v1/readings", "application/json", &reading as &dyn Fn(&str) -> String),
        ("/v1/readings", "application/x-ndjson", &|device| reading(device) + "\n" + &reading(device)),
        ("/v1/readings", "application/senml+json", &senml),
        ("/v1/tasks/reading.process", "application/json", &reading),
        ("/v1/tasks/reading.process", "application/json", &senml),
        ("/v1/tasks/reading.process", "application/senml+json", &senml),
        ("/api/v2/write?precision=s", "text/plain", &lines),
        ("/write?precision=s", "text/plain", &lines),
    ] {
        let (status, problem) = post(&gateway, path, media, &body("pump-1")).await;
        let is_influx = media == "text/plain";
        let code = if is_influx { "forbidden" } else { "foreign-device" };
        assert_eq!((status, problem["code"].as_str()), (403, Some(code)), "{path} {media}: {problem}");
        let before = gateway.publisher.tasks().len();
        let (status, answer) = post(&gateway, path, media, &body("boiler-1")).await;
        assert!([202, 204].contains(&status), "{path} {media}: {answer}");
        assert!(gateway.publisher.tasks().len() > before);
    }
    let mut sender = gateway.lines().await;
    sender
        .write_all(format!("auth t\n{}\n{}\n", reading("pump-1"), reading("boiler-1")).as_bytes())
        .await
        .unwrap();
    assert_eq!(line(&mut sender).await, "ok boilers");
    assert_eq!(
        line(&mut sender).await,
        "error foreign-device record 0: device: sender \"boilers\" may not send \"pump-1\""
    );
    assert!(line(&mut sender).await.starts_with("ok "), "the connection stays open");
    let bodies = gateway.bodies();
    assert!(bodies.iter().all(|body| !body.to_string().contains("pump")), "{bodies:?}");
    let counted = r#"garenne_gateway_refusals_total{protocol="tcp",reason="foreign-device"} 1"#;
    assert!(gateway.metrics.encode().contains(counted));
}

#[tokio::test]
async fn the_refused_record_of_a_batch_is_named_and_the_others_are_published() {
    let (gateway, _folder) = scoped().await;
    let body = format!("[{},{}]", reading("boiler-1"), reading("pump-1"));
    let (status, problem) = post(&gateway, "/v1/readings?atomic=true", "application/json", &body).await;
    assert_eq!((status, &problem["record"], &problem["field"]), (403, &json!(1), &json!("device")));
    assert!(gateway.publisher.tasks().is_empty());
    let (status, answer) = post(&gateway, "/v1/readings", "application/json", &body).await;
    assert_eq!((status, &answer["accepted"], &answer["ids"][1]), (202, &json!(1), &Value::Null));
    assert_eq!(
        answer["refused"],
        json!([{"record": 1, "field": "device", "code": "foreign-device",
                "detail": "record 1: device: sender \"boilers\" may not send \"pump-1\""}])
    );
    let lines = "m,device=boiler-1 v=1 1790000000\nm,device=pump-1 v=2 1790000000";
    let (status, answer) = post(&gateway, "/write?precision=s", "text/plain", lines).await;
    assert_eq!(status, 400);
    assert_eq!(
        answer["error"],
        "partial write: line 2: device: sender \"boilers\" may not send \"pump-1\" dropped=1"
    );
    assert!(gateway.bodies().iter().all(|body| body["device"] == "boiler-1"));
    let counted = r#"garenne_gateway_refusals_total{protocol="influx",reason="foreign-device"} 1"#;
    assert!(gateway.metrics.encode().contains(counted), "an alert counts foreign devices");
}

#[tokio::test]
async fn the_refused_reading_of_an_event_is_named() {
    let (gateway, _folder) = scoped().await;
    let event = |id: &str, readings: &[String]| {
        let readings = readings.join(",");
        format!(
            r#"{{"specversion":"1.0","id":"{id}","source":"s","type":"reading.process","data":[{readings}]}}"#
        )
    };
    let media = "application/cloudevents-batch+json";
    let invalid = reading("boiler-1").replace("\"value\":1", "\"value\":true");
    for (refused, field, detail) in [
        (reading("pump-1"), "device", "sender \"boilers\" may not send \"pump-1\""),
        (invalid, "value", "true is not a number"),
    ] {
        let events = [
            event("1", &[reading("boiler-1")]),
            event("2", &[reading("boiler-1"), reading("boiler-2"), refused]),
        ];
        let (status, problem) = post(&gateway, "/v1/events", media, &format!("[{}]", events.join(","))).await;
        assert!((400..500).contains(&status), "{status}");
        assert_eq!((&problem["record"], &problem["field"]), (&json!(1), &json!(field)), "{problem}");
        let given = problem["detail"].as_str().unwrap();
        assert!(given.starts_with(&format!("record 1: reading 2: {field}: {detail}")), "{given}");
    }
    assert!(gateway.publisher.tasks().is_empty());
}

#[tokio::test]
async fn a_tasks_payload_cannot_hide_another_device() {
    let (gateway, _folder) = scoped().await;
    let task =
        async |body: &str| post(&gateway, "/v1/tasks/window.analyze", "application/json", body).await.0;
    assert_eq!(task(r#"{"device":"boiler-1","metric":"m"}"#).await, 202);
    assert_eq!(task(r#"{"metric":"m"}"#).await, 202, "a task may name no device");
    assert_eq!(task(r#"{"device":"pump-1","metric":"m"}"#).await, 403);
    assert_eq!(task(r#"{"dev\u0069ce":"pump-1","metric":"m"}"#).await, 403);
    assert_eq!(
        task(r#"{"device":"boiler-1","device":"pump-1"}"#).await,
        400,
        "a worker could read the second one"
    );
    assert_eq!(task(r#" ["pump-1","m"]"#).await, 403, "a worker could read fields by their order");
    assert_eq!(gateway.publisher.tasks().len(), 2);
}

#[tokio::test]
async fn alerts_must_be_named_and_an_open_gateway_sends_none() {
    let (gateway, _folder) = scoped().await;
    let alert = |gateway| {
        post(gateway, "/v1/tasks/alert.notify", "application/json", r#"{"url":"https://example.org"}"#)
    };
    let (status, problem) = alert(&gateway).await;
    assert_eq!((status, problem["code"].as_str()), (403, Some("foreign-kind")));
    let open = start(MemorySender::new(), Limits::default()).await;
    assert_eq!(alert(&open).await.0, 403);
    let (gateway, _folder) =
        with_senders(&entry("ops", "t", "devices = []\nkinds = [\"alert.notify\"]")).await;
    assert_eq!(alert(&gateway).await.0, 202);
    assert_eq!(post(&gateway, "/v1/readings", "application/json", READING).await.0, 403);
}

#[tokio::test]
async fn an_expired_token_ends_its_connection_even_if_it_is_idle() {
    let end = time::OffsetDateTime::now_utc() + Duration::from_millis(500);
    let end = end.format(&time::format_description::well_known::Rfc3339).unwrap();
    let (gateway, _folder) =
        with_senders(&entry("guest", "t", &format!("devices = [\"*\"]\nexpires = {end}"))).await;
    let mut sender = gateway.lines().await;
    sender.write_all(format!("auth t\n{READING}\n").as_bytes()).await.unwrap();
    assert_eq!(line(&mut sender).await, "ok guest");
    assert!(line(&mut sender).await.starts_with("ok "));
    assert_eq!(
        line(&mut sender).await,
        "error unauthorized not authenticated: the sender's entry has expired"
    );
    assert_eq!(line(&mut sender).await, "", "closed");
    assert_eq!(post(&gateway, "/v1/readings", "application/json", READING).await.0, 401);
}
