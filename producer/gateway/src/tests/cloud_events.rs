//! CloudEvents over HTTP.

use super::*;

const STRUCTURED: &str = "application/cloudevents+json";
const BATCH: &str = "application/cloudevents-batch+json";

fn event(id: &str) -> Value {
    json!({"specversion": "1.0", "id": id, "source": "/site/a", "type": "bench.factorial", "data": {"n": 5}})
}

async fn binary(gateway: &Running, headers: &[(&str, &str)], body: &'static str) -> (u16, Value) {
    let mut request = reqwest::Client::new().post(format!("http://{}/v1/events", gateway.address)).body(body);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn an_event_has_the_same_task_in_every_mode() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let (status, answer) = gateway.post("/v1/events", STRUCTURED, &event("1").to_string()).await;
    assert_eq!((status, &answer["accepted"]), (202, &json!(1)), "{answer}");
    let batch = json!([event("1"), event("2")]).to_string();
    let (status, answer) = gateway.post("/v1/events", BATCH, &batch).await;
    assert_eq!((status, &answer["accepted"]), (202, &json!(2)), "{answer}");
    let headers = [
        ("content-type", "application/json; charset=utf-8"),
        ("ce-specversion", "1.0"),
        ("ce-id", "1"),
        ("ce-source", "/site%2Fa"),
        ("ce-type", "bench.factorial"),
        ("ce-partitionkey", "K%C3%B6ln"),
        ("ce-unknown", "x"),
    ];
    let (status, answer) = binary(&gateway, &headers, r#"{"n":5}"#).await;
    assert_eq!(status, 202, "{answer}");

    let tasks = gateway.publisher.tasks();
    assert_eq!(tasks.len(), 4);
    assert!(tasks.iter().all(|task| task.kind.as_str() == "bench.factorial"));
    assert!(gateway.bodies().iter().all(|body| *body == json!({"n": 5})));
    assert_eq!((&tasks[0].id, &tasks[0].id), (&tasks[1].id, &tasks[3].id), "source and id are the same");
    assert_ne!(tasks[1].id, tasks[2].id);
    assert_eq!((tasks[0].key.as_deref(), tasks[3].key.as_deref()), (None, Some("Köln")));
}

#[tokio::test]
async fn an_event_without_data_has_the_payload_null() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let mut without = event("1");
    without.as_object_mut().unwrap().remove("data");
    assert_eq!(gateway.post("/v1/events", STRUCTURED, &without.to_string()).await.0, 202);
    let headers =
        [("ce-specversion", "1.0"), ("ce-id", "2"), ("ce-source", "s"), ("ce-type", "bench.factorial")];
    assert_eq!(binary(&gateway, &headers, "").await.0, 202);
    assert_eq!(gateway.bodies(), [Value::Null, Value::Null]);
}

#[tokio::test]
async fn an_invalid_event_is_named_and_refuses_the_batch() {
    let gateway = start(MemorySender::new(), Limits { max_records: 3, ..Limits::default() }).await;
    let with = |field: &str, value: Value| {
        let mut event = event("2");
        event[field] = value;
        json!([self::event("1"), event]).to_string()
    };
    for (body, status, field, detail) in [
        (with("specversion", json!("0.3")), 400, "specversion", "record 1: specversion: \"0.3\" is not 1.0"),
        (with("source", json!("")), 400, "source", "record 1: source: expected 1 to 1024 bytes"),
        (with("id", Value::Null), 400, "id", "record 1: id: required attribute is missing"),
        (with("type", json!("other.kind")), 422, "kind", "record 1: no lane takes kind \"other.kind\""),
        (with("partitionkey", json!("")), 400, "partitionkey", "record 1: partitionkey: expected 1 to 255"),
        (with("data_base64", json!("AA==")), 400, "data_base64", "record 1: data_base64: a task's payload"),
        (
            json!([event("1"), event("2"), event("3"), event("4")]).to_string(),
            413,
            "body",
            "body: more than 3",
        ),
    ] {
        let (code, problem) = gateway.post("/v1/events", BATCH, &body).await;
        assert_eq!((code, problem["field"].as_str()), (status, Some(field)), "{problem}");
        assert!(problem["detail"].as_str().unwrap().starts_with(detail), "{problem}");
    }
    let mut xml = event("1");
    xml["datacontenttype"] = json!("text/xml");
    assert_eq!(gateway.post("/v1/events", STRUCTURED, &xml.to_string()).await.0, 415);
    let (status, problem) = gateway.post("/v1/events", "application/json", "{}").await;
    assert_eq!(status, 415);
    assert!(problem["detail"].as_str().unwrap().contains("ce-specversion"), "{problem}");
    assert_eq!(gateway.post("/v1/events", STRUCTURED, "{").await.0, 400);
    assert!(gateway.publisher.tasks().is_empty());
}

/// A list is counted while it is parsed: what is behind the limit is not read. Its memory is reserved, and so is a copy of
/// the data.
#[tokio::test]
async fn a_batch_is_read_up_to_its_limit_and_within_the_memory_budget() {
    let limits = Limits { max_records: 3, memory_budget: Size::mib(1), ..Limits::default() };
    let gateway = start(MemorySender::new(), limits).await;
    let batch = format!("[{0},{0},{0},{0} nonsense", event("1"));
    let (status, problem) = gateway.post("/v1/events", BATCH, &batch).await;
    assert_eq!((status, &problem["detail"]), (413, &json!("body: more than 3 events")));
    let (status, problem) = gateway.post("/v1/events", BATCH, r#"[["1.0","1","s","bench.factorial"]]"#).await;
    assert_eq!((status, &problem["field"]), (400, &json!("body")), "an event is an object: {problem}");
    // Attributes that are not known are skipped and not kept.
    let unknown = "\"a\":1,".repeat(20_000);
    let body = event("1").to_string().replacen('{', &format!("{{{unknown}"), 1);
    assert_eq!(gateway.post("/v1/events", STRUCTURED, &body).await.0, 202);
    // 400 KB and their copy are more than three quarters of the budget.
    let mut large = event("2");
    large["data"] = json!("x".repeat(400_000));
    for (format, body) in [(STRUCTURED, large.to_string()), (BATCH, json!([large]).to_string())] {
        let (status, problem) = gateway.post("/v1/events", format, &body).await;
        assert_eq!(status, 413, "{problem}");
        assert!(problem["detail"].as_str().unwrap().starts_with("the request's memory"), "{problem}");
    }
    assert_eq!(gateway.reserved(), 0);
}

#[tokio::test]
async fn an_id_with_other_data_is_refused() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    assert_eq!(gateway.post("/v1/events", STRUCTURED, &event("1").to_string()).await.0, 202);
    let mut other = event("1");
    other["data"] = json!({"n": 6});
    let (status, problem) = gateway.post("/v1/events", STRUCTURED, &other.to_string()).await;
    let detail = "record 0: id: source and id were used with other data";
    assert_eq!((status, &problem["code"], &problem["detail"]), (422, &json!("key-reused"), &json!(detail)));
    assert_eq!((&problem["field"], &problem["record"]), (&json!("id"), &json!(0)));
    let batch = json!([event("9"), other]).to_string();
    assert_eq!(gateway.post("/v1/events", BATCH, &batch).await.1["record"], 1);
    other["source"] = json!("/site/b");
    assert_eq!(gateway.post("/v1/events", STRUCTURED, &other.to_string()).await.0, 202);
}
