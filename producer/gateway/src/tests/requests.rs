//! Requests and their answers.

use super::*;

/// Errors of the router, which are plain texts or empty, are problem documents too, and InfluxDB's on its routes.
#[tokio::test]
async fn every_error_is_a_document() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    for (method, path, status, code, detail) in [
        ("GET", "/nothing", 404, "no-route", "no route \"/nothing\"; GET /openapi.json lists them"),
        ("POST", "/v1/nothing", 404, "no-route", "no route \"/v1/nothing\"; GET /openapi.json lists them"),
        ("GET", "/v1/readings", 405, "wrong-method", "GET is not allowed for \"/v1/readings\""),
        ("POST", "/v1/tasks/%ff", 400, "bad-request", "Invalid URL: Invalid UTF-8 in `kind`"),
        ("GET", "/write", 405, "invalid", "GET is not allowed for \"/write\""),
        ("POST", "/write?precision=s&precision=s", 400, "invalid", "Failed to deserialize query string"),
    ] {
        let url = format!("http://{}{path}", gateway.address);
        let request = reqwest::Client::new().request(method.parse().unwrap(), url);
        let response = request.send().await.unwrap();
        let media_type = if code == "invalid" { "application/json" } else { "application/problem+json" };
        assert_eq!(
            (response.status().as_u16(), response.headers()["content-type"].to_str().unwrap()),
            (status, media_type),
            "{path}"
        );
        assert_eq!(response.headers().contains_key("allow"), status == 405, "{path}");
        let problem: Value = response.json().await.unwrap();
        assert_eq!(problem["code"], code, "{problem}");
        let given = problem["detail"].as_str().or(problem["message"].as_str()).unwrap();
        assert!(given.starts_with(detail), "{problem}");
    }
}

#[tokio::test]
async fn every_format_of_readings_becomes_one_task_per_record() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let (status, answer) = gateway.post("/v1/readings", "application/json", READING).await;
    assert_eq!((status, answer["accepted"].as_u64()), (202, Some(1)));
    let array = format!("[{READING},{}]", READING.replace("d1", "d2"));
    assert_eq!(gateway.post("/v1/readings", "application/json", &array).await.1["accepted"], 2);
    let lines = format!("{READING}\n\n{READING}\n");
    assert_eq!(gateway.post("/v1/readings", "application/x-ndjson", &lines).await.1["accepted"], 2);
    let pack = r#"[{"bn":"urn:dev:ow:1:","bt":1763600000,"n":"temperature","u":"Cel","v":1},{"n":"humidity","u":"%RH","v":50}]"#;
    let (status, answer) = gateway.post("/v1/readings", "application/senml+json", pack).await;
    assert_eq!((status, answer["ids"].as_array().map(Vec::len)), (202, Some(2)));
    let tasks = gateway.publisher.tasks();
    assert_eq!(tasks.len(), 7);
    assert!(tasks.iter().all(|task| task.kind.as_str() == "reading.process"));
    assert_eq!(gateway.bodies()[0], serde_json::from_str::<Value>(READING).unwrap());
    assert_eq!(answer["ids"][1], tasks[6].id.as_str());
}

#[tokio::test]
async fn a_repeated_reading_keeps_its_id_and_a_reading_without_a_time_gets_a_new_one() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let untimed = r#"{"device":"d1","metric":"temperature","value":21.5}"#;
    for body in [READING, READING, untimed, untimed] {
        assert_eq!(gateway.post("/v1/readings", "application/json", body).await.0, 202);
    }
    let tasks = gateway.publisher.tasks();
    assert_eq!(tasks[0].id, tasks[1].id);
    assert_ne!(tasks[2].id, tasks[3].id);
    assert!(gateway.bodies()[2]["time"].is_string());
}

#[tokio::test]
async fn the_ids_of_all_records_are_derived_from_the_idempotency_key() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let body = r#"[{"device":"a","metric":"m","value":1},{"device":"b","metric":"m","value":2}]"#;
    let client = reqwest::Client::new();
    for _ in 0..2 {
        let url = format!("http://{}/v1/readings", gateway.address);
        let request = client.post(url).header("idempotency-key", "k1").body(body);
        assert_eq!(request.send().await.unwrap().status(), 202);
    }
    let ids: Vec<_> = gateway.publisher.tasks().into_iter().map(|task| task.id).collect();
    assert_eq!((&ids[0], &ids[1]), (&ids[2], &ids[3]));
    assert_ne!(ids[0], ids[1]);
}

#[tokio::test]
async fn an_invalid_record_is_named_and_refuses_an_atomic_request() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let body = format!(r#"[{READING},{{"device":"d1","metric":"t","value":1,"unit":"cel"}}]"#);
    let (status, problem) = gateway.post("/v1/readings?atomic=true", "application/json", &body).await;
    assert_eq!(status, 422);
    assert_eq!((&problem["record"], &problem["field"]), (&json!(1), &json!("unit")));
    assert_eq!(problem["code"], "unknown-unit");
    assert!(
        problem["detail"].as_str().unwrap().starts_with("record 1: unit: \"cel\" is not a SenML unit"),
        "{problem}"
    );
    assert!(gateway.publisher.tasks().is_empty());
    let (status, problem) = gateway.post("/v1/readings", "application/json", "{").await;
    assert_eq!((status, &problem["code"]), (400, &json!("malformed")));
    let (status, _) = gateway.post("/v1/readings", "text/csv", "a;b").await;
    assert_eq!(status, 415);
}

#[tokio::test]
async fn a_kind_that_no_lane_takes_is_refused_and_not_published() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let (status, problem) = gateway.post("/v1/tasks/spectrum.analyze", "application/json", "{}").await;
    assert_eq!(status, 422);
    assert_eq!(
        problem["detail"],
        "no lane takes kind \"spectrum.analyze\"; bindings are reading.#, bench.#, alert.#, window.#"
    );
    assert_eq!(gateway.post("/v1/tasks/a%20b", "application/json", "{}").await.0, 422);
    assert_eq!(gateway.post("/v1/tasks/bench.noop", "application/json", "{").await.0, 400);
    assert!(gateway.publisher.tasks().is_empty());
    assert_eq!(gateway.post("/v1/tasks/bench.noop", "application/json", "{}").await.0, 202);
    assert_eq!(gateway.publisher.tasks()[0].kind.as_str(), "bench.noop");
}

/// A worker would make a dead letter of it, after its sender has a receipt.
#[tokio::test]
async fn readings_that_are_invalid_are_refused_also_as_a_task_or_an_event() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let event = |data: &str| {
        format!(r#"{{"specversion":"1.0","id":"1","source":"s","type":"reading.process"{data}}}"#)
    };
    let of_device = event(r#","data":{"device":"ce1"}"#);
    for (path, content_type, body, code, detail) in [
        (
            "/v1/tasks/reading.process",
            "application/json",
            r#"{"device":"tk9"}"#,
            "missing-field",
            "record 0: metric: ",
        ),
        (
            "/v1/tasks/reading.process",
            "application/json",
            "null",
            "wrong-type",
            "record 0: body: null is not a valid",
        ),
        (
            "/v1/events",
            "application/cloudevents+json",
            &of_device,
            "missing-field",
            "record 0: reading 0: metric: ",
        ),
        (
            "/v1/events",
            "application/cloudevents+json",
            &event(""),
            "wrong-type",
            "record 0: reading 0: body: null is",
        ),
        (
            "/v1/events",
            "application/cloudevents-batch+json",
            &format!("[{of_device}]"),
            "missing-field",
            "record 0: ",
        ),
    ] {
        let (status, problem) = gateway.post(path, content_type, body).await;
        assert_eq!((status, &problem["code"]), (422, &json!(code)), "{body}: {problem}");
        assert!(problem["detail"].as_str().unwrap().starts_with(detail), "{problem}");
    }
    let client = reqwest::Client::new().post(format!("http://{}/v1/events", gateway.address));
    let headers =
        [("ce-specversion", "1.0"), ("ce-id", "2"), ("ce-source", "s"), ("ce-type", "reading.process")];
    let request = headers.into_iter().fold(client, |request, (name, value)| request.header(name, value));
    assert_eq!(request.send().await.unwrap().status(), 422, "an event without data");
    assert!(gateway.publisher.tasks().is_empty());
    let valid = event(&format!(",\"data\":{READING}"));
    assert_eq!(gateway.post("/v1/events", "application/cloudevents+json", &valid).await.0, 202);
    assert_eq!(gateway.post("/v1/tasks/reading.process", "application/json", READING).await.0, 202);
}

/// A parameter that is misspelt would be ignored without a word.
#[tokio::test]
async fn an_unknown_query_parameter_is_refused_by_name_and_those_of_writers_are_not() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    for path in [
        "/v1/readings",
        "/v1/tasks/bench.noop",
        "/v1/events",
        "/v1/metrics",
        "/write",
        "/api/v2/write",
        "/query",
        "/v1/map/ttn",
        "/v1/map/chirpstack",
    ] {
        let (status, problem) =
            gateway.post(&format!("{path}?atomc=true"), "application/json", READING).await;
        let text = problem.to_string();
        assert!(
            status == 400 && text.contains("query: unknown parameter \\\"atomc\\\""),
            "{path}: {status} {text}"
        );
    }
    let twice = gateway.post("/v1/readings?atomic=true&atomic=false", "application/json", READING).await;
    assert_eq!((twice.0, &twice.1["detail"]), (400, &json!("atomic: given twice")));
    assert!(gateway.publisher.tasks().is_empty());
    let client = reqwest::Client::new();
    for path in [
        "/write?db=d&rp=autogen&precision=s&consistency=one&u=a&p=b",
        "/api/v2/write?org=o&orgID=1&bucket=b&precision=ns&atomic=true",
    ] {
        let request = client.post(format!("http://{}{path}", gateway.address)).body("m a=1");
        assert_eq!(request.send().await.unwrap().status(), 204, "{path}");
    }
    let path = "/query?q=CREATE%20DATABASE%20d&db=d&u=a&p=b&epoch=ms&pretty=true&chunked=false&chunk_size=1&rp=a&params=%7B%7D";
    assert_eq!(gateway.post(path, "text/plain", "").await.0, 200);
    // ChirpStack adds the event.
    let map = "/v1/map/chirpstack?event=up&atomic=maybe";
    let (status, problem) = gateway.post(map, "application/json", "{}").await;
    assert_eq!((status, &problem["field"]), (400, &json!("atomic")), "{problem}");
}

#[tokio::test]
async fn a_header_that_is_given_twice_is_refused_and_codings_have_no_case() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let post = |path: &str| reqwest::Client::new().post(format!("http://{}{path}", gateway.address));
    let twice =
        post("/v1/readings").header("idempotency-key", "a").header("idempotency-key", "b").body(READING);
    let answer = twice.send().await.unwrap();
    assert_eq!(answer.status(), 400);
    let problem: Value = answer.json().await.unwrap();
    assert_eq!(problem["detail"], "idempotency-key: given more than once");
    let event = [
        ("ce-specversion", "1.0"),
        ("ce-id", "1"),
        ("ce-id", "2"),
        ("ce-source", "s"),
        ("ce-type", "bench.noop"),
    ];
    let request =
        event.into_iter().fold(post("/v1/events"), |request, (name, value)| request.header(name, value));
    assert_eq!(request.body("{}").send().await.unwrap().status(), 400);
    assert!(gateway.publisher.tasks().is_empty());
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, READING.as_bytes()).unwrap();
    let body = encoder.finish().unwrap();
    for coding in ["GZIP", "X-Gzip"] {
        let request = post("/v1/readings").header("content-encoding", coding).body(body.clone());
        assert_eq!(request.send().await.unwrap().status(), 202, "{coding}");
    }
    assert_eq!(
        post("/v1/readings")
            .header("content-encoding", "Identity")
            .body(READING)
            .send()
            .await
            .unwrap()
            .status(),
        202
    );
}

#[tokio::test]
async fn no_success_is_answered_while_the_broker_refuses_messages() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    gateway
        .publisher
        .fail(Some(PublishError::Refused { exchange: String::new(), routing_key: "reading.process".into() }));
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
    gateway.publisher.fail(None);
    lines.write_all(format!("{READING}\n").as_bytes()).await.unwrap();
    assert!(line(&mut lines).await.starts_with("ok "));
}

#[tokio::test]
async fn a_message_above_the_frame_limit_is_too_large_and_not_retryable() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let error = PublishError::TooLarge { what: "header frame", bytes: 131_073, limit: 131_072 };
    gateway.publisher.fail(Some(error));
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
async fn an_empty_line_before_a_request_is_ignored() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let mut connection = gateway.lines().await;
    let request = format!(
        "POST /v1/readings HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{READING}",
        READING.len()
    );
    for part in ["\r", "\n", &request] {
        connection.write_all(part.as_bytes()).await.unwrap();
    }
    assert_eq!(line(&mut connection).await, "HTTP/1.1 202 Accepted");
}

#[tokio::test]
async fn the_openapi_document_names_every_route() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let url = format!("http://{}/openapi.json", gateway.address);
    let document: Value = reqwest::get(url).await.unwrap().json().await.unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let paths: Vec<_> = document["paths"].as_object().unwrap().keys().collect();
    assert_eq!(
        paths,
        [
            "/api/v2/write",
            "/openapi.json",
            "/v1/events",
            "/v1/map/{name}",
            "/v1/metrics",
            "/v1/readings",
            "/v1/tasks",
            "/v1/tasks/{kind}",
            "/write"
        ]
    );
    // Every path of the document is a route that takes the method.
    let client = reqwest::Client::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            let method = method.to_uppercase().parse().unwrap();
            let url = format!(
                "http://{}{}",
                gateway.address,
                path.replace("{kind}", "bench.noop").replace("{name}", "ttn")
            );
            let status = client.request(method, url).body("{").send().await.unwrap().status();
            assert!(![404, 405].contains(&status.as_u16()), "{path}: {status}");
        }
    }
}
