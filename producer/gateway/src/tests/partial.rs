//! A record that is refused does not take the others with it, at every door.

use super::*;

const NAN: &str = r#"{"device":"d1","metric":"m","value":NaN,"time":1790000000}"#;
const COULOMBS: &str = r#"{"device":"d1","metric":"temperature","value":21,"unit":"C","time":1790000000}"#;

async fn posted(gateway: &Running, path: &str, key: Option<&str>, body: &[u8]) -> (u16, Value) {
    let mut request = reqwest::Client::new().post(format!("http://{}{path}", gateway.address));
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    let response = request.body(body.to_vec()).send().await.unwrap();
    let status = response.status().as_u16();
    (status, serde_json::from_slice(&response.bytes().await.unwrap()).unwrap_or_default())
}

fn left_out(gateway: &Running, door: &str, reason: &str) -> u64 {
    let start = format!("garenne_records_refused_total{{door=\"{door}\",reason=\"{reason}\"}} ");
    let metrics = gateway.metrics.encode();
    metrics.lines().find_map(|line| line.strip_prefix(&start)).map_or(0, |count| count.parse().unwrap())
}

#[tokio::test]
async fn the_ids_of_readings_follow_their_positions_and_refused_ones_are_named() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let body = format!("[{NAN},{READING},{COULOMBS},{}]", READING.replace("temperature", "t"));
    let (status, answer) = posted(&gateway, "/v1/readings", None, body.as_bytes()).await;
    assert_eq!((status, &answer["accepted"]), (202, &json!(2)), "{answer}");
    let ids: Vec<_> = gateway.publisher.tasks().iter().map(|task| json!(task.id.as_str())).collect();
    assert_eq!(answer["ids"], json!([null, ids[0], null, ids[1]]));
    assert_eq!(
        answer["refused"],
        json!([
            {"record": 0, "field": "value", "code": "not-finite", "detail": "record 0: value: not a finite number"},
            {"record": 2, "field": "unit", "code": "wrong-unit",
             "detail": "record 2: unit: \"C\" is the coulomb, which does not fit the metric \"temperature\"; did you mean \"Cel\" (degrees Celsius)?"},
        ])
    );
    assert_eq!((left_out(&gateway, "http", "not-finite"), left_out(&gateway, "http", "wrong-unit")), (1, 1));
    let pack = br#"[{"bn":"d1:","bt":1790000000},{"n":"a","v":1,"s":5},{"n":"b","vs":"x"}]"#;
    let (status, answer) = posted(&gateway, "/v1/readings", None, pack).await;
    // The value and the sum of record 1. The ids of sums follow those of the records.
    assert_eq!((status, &answer["accepted"]), (202, &json!(2)));
    let is_null: Vec<_> = answer["ids"].as_array().unwrap().iter().map(Value::is_null).collect();
    assert_eq!(is_null, [true, false, true, false], "{answer}");
    assert_eq!(
        (&answer["refused"][0]["record"], &answer["refused"][0]["code"]),
        (&json!(2), &json!("not-numeric"))
    );
}

#[tokio::test]
async fn a_key_with_an_accepted_record_is_used_up_and_one_without_is_not() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let untimed = |value: &str| format!(r#"{{"device":"d1","metric":"m","value":{value}}}"#);
    let both = format!("[{},{}]", untimed("NaN"), untimed("1"));
    let (status, answer) = posted(&gateway, "/v1/readings", Some("k"), both.as_bytes()).await;
    assert_eq!((status, &answer["accepted"]), (202, &json!(1)));
    assert_eq!(posted(&gateway, "/v1/readings", Some("k"), both.as_bytes()).await.1["ids"], answer["ids"]);
    let (status, problem) = posted(&gateway, "/v1/readings", Some("k"), untimed("2").as_bytes()).await;
    assert_eq!((status, &problem["code"]), (422, &json!("key-reused")));
    assert_eq!(posted(&gateway, "/v1/readings", Some("k2"), untimed("2").as_bytes()).await.0, 202);
    let (status, problem) = posted(&gateway, "/v1/readings", Some("k3"), untimed("NaN").as_bytes()).await;
    assert_eq!((status, &problem["code"], &problem["record"]), (422, &json!("not-finite"), &json!(0)));
    assert_eq!(posted(&gateway, "/v1/readings", Some("k3"), untimed("3").as_bytes()).await.0, 202);
}

/// Two values of a device and a metric at one time would be a conflict at the worker. One rule holds at every door.
#[tokio::test]
async fn another_value_for_the_same_key_is_refused_by_position_and_a_repetition_is_not() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let of = |metric: &str, value: u32| {
        format!(r#"{{"device":"d","metric":"{metric}","value":{value},"time":1790000000}}"#)
    };
    let five = [of("m", 1), of("k", 1), of("m", 2), of("m", 1), of("m", 3)];
    let pack = r#"[{"bn":"d:","bt":1790000000,"n":"m","v":1},{"n":"k","v":1},{"n":"m","v":2},{"n":"m","v":1},{"n":"m","v":3}]"#;
    for (content_type, body) in [
        ("application/json", format!("[{}]", five.join(","))),
        ("application/x-ndjson", five.join("\n")),
        ("application/senml+json", pack.to_owned()),
    ] {
        let before = gateway.publisher.tasks().len();
        let (status, answer) = gateway.post("/v1/readings", content_type, &body).await;
        assert_eq!((status, &answer["accepted"]), (202, &json!(3)), "{answer}");
        let refused = answer["refused"].as_array().unwrap();
        let refused: Vec<_> = refused.iter().map(|entry| (&entry["record"], &entry["code"])).collect();
        assert_eq!(refused, [(&json!(2), &json!("duplicate")), (&json!(4), &json!("duplicate"))]);
        let values: Vec<_> =
            gateway.bodies().split_off(before).iter().map(|body| body["value"].clone()).collect();
        assert_eq!(values, [1.0, 1.0, 1.0].map(Value::from));
    }
    // Readings without a time have the same one.
    let untimed = r#"[{"device":"d","metric":"m","value":1},{"device":"d","metric":"m","value":2}]"#;
    assert_eq!(gateway.post("/v1/readings", "application/json", untimed).await.1["accepted"], 1);
    let mut lines = gateway.lines().await;
    lines.write_all(format!("{untimed}\n").as_bytes()).await.unwrap();
    assert!(line(&mut lines).await.contains("; error duplicate record 1: value: "));
    let (status, problem) = gateway.post("/v1/tasks/reading.process", "application/json", untimed).await;
    assert_eq!((status, &problem["code"], &problem["record"]), (422, &json!("duplicate"), &json!(1)));

    let before = gateway.publisher.tasks().len();
    let body = b"m,host=h a=1,b=1 1790000000\nm,host=h a=1,b=2 1790000000\nm,host=h c=1,c=1,c=2 1790000000";
    let (status, answer) = posted(&gateway, "/write?precision=s", None, body).await;
    let message = answer["error"].as_str().unwrap();
    assert_eq!(status, 400, "{message}");
    assert!(message.contains("line 2: value: device \"h\" has another value of metric \"m.b\""), "{message}");
    assert!(
        message.contains("line 3: c: the line has this field twice") && message.ends_with("dropped=2"),
        "{message}"
    );
    assert_eq!(gateway.publisher.tasks().len(), before + 4);
}

#[tokio::test]
async fn an_atomic_request_is_accepted_as_a_whole_or_not_at_all() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let body = format!("[{READING},{NAN},{COULOMBS}]");
    let (status, problem) = posted(&gateway, "/v1/readings?atomic=true", None, body.as_bytes()).await;
    assert_eq!((status, &problem["record"], &problem["code"]), (422, &json!(1), &json!("not-finite")));
    assert_eq!(problem["refused"].as_array().unwrap().len(), 2);
    let lines = b"m v=1 1790000000\nm v=2,w=NaN 1790000001";
    let (status, refused) = posted(&gateway, "/write?precision=s&atomic=true", None, lines).await;
    assert_eq!(
        (status, &refused["error"]),
        (400, &json!("line 2: w: not a finite number, or beyond what 64 bits hold"))
    );
    let (status, problem) = posted(&gateway, "/v1/readings?atomic=yes", None, READING.as_bytes()).await;
    assert_eq!((status, &problem["detail"]), (400, &json!("atomic: \"yes\": expected true or false")));
    let sum = br#"[{"n":"d:m","v":1,"s":NaN}]"#;
    let (status, problem) = posted(&gateway, "/v1/readings?atomic=true", None, sum).await;
    assert_eq!((status, &problem["field"]), (422, &json!("s")), "a sum is a reading too");
    assert!(gateway.publisher.tasks().is_empty());
    assert_eq!(posted(&gateway, "/v1/readings?atomic=true", None, READING.as_bytes()).await.0, 202);
}

#[tokio::test]
async fn a_write_of_influxdb_is_partial_after_the_good_lines_are_stored() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let lines = b"m,host=h a=1,b=1e400,c=3 1790000000\nm,host=h a=4 4070908800\n# comment\n\nm,host=K\xfcche a=5\nm,host=h a=6 1790000001\n\0";
    for path in ["/write?precision=s", "/api/v2/write?precision=s"] {
        let (status, answer) = posted(&gateway, path, None, lines).await;
        assert_eq!((status, &answer["code"]), (400, &json!("invalid")));
        let error = answer["error"].as_str().unwrap();
        assert!(
            error.starts_with(
                "partial write: line 1: b: not a finite number, or beyond what 64 bits hold; line 2: timestamp: "
            ),
            "{error}"
        );
        assert!(error.ends_with("; line 5: line: not UTF-8 from byte 8 on dropped=3"), "{error}");
        assert_eq!(answer["message"], answer["error"]);
        let lines: Vec<_> =
            answer["refused"].as_array().unwrap().iter().map(|entry| entry["line"].clone()).collect();
        assert_eq!(lines, [json!(1), json!(2), json!(5)]);
    }
    let values: Vec<Value> = gateway.bodies().iter().map(|body| body["value"].clone()).collect();
    assert_eq!(values, [1.0, 3.0, 6.0, 1.0, 3.0, 6.0].map(Value::from));
    assert_eq!(
        (left_out(&gateway, "influx", "not-finite"), left_out(&gateway, "influx", "clock-skew")),
        (2, 2)
    );
    let counted = r#"garenne_gateway_records_total{protocol="influx"} 6"#;
    assert!(gateway.metrics.encode().contains(counted));
    // Many bad lines need little memory, and each is counted.
    let bad = "x\n".repeat(20_000) + "m v=1 1790000000";
    let (status, answer) = posted(&gateway, "/write?precision=s", None, bad.as_bytes()).await;
    assert_eq!((status, answer["refused"].as_array().unwrap().len()), (400, 100));
    assert!(answer["error"].as_str().unwrap().ends_with("; and others dropped=20000"), "{answer}");
}

#[tokio::test]
async fn a_line_over_tcp_is_answered_by_position() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let mut lines = gateway.lines().await;
    lines.write_all(format!("[{NAN},{READING}]\n{NAN}\n{READING}\n").as_bytes()).await.unwrap();
    let id = gateway_id(&gateway, &mut lines).await;
    assert_eq!(line(&mut lines).await, "error not-finite record 0: value: not a finite number");
    assert_eq!(line(&mut lines).await, format!("ok {id}"));
    assert_eq!(left_out(&gateway, "tcp", "not-finite"), 2);
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(b"m,device=d v=1,w=inf 1790000000000000000\n").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "error not-finite line 1: w: not a finite number, or beyond what 64 bits hold\n");
    assert_eq!(gateway.bodies().last().unwrap()["metric"], "m.v");
}

/// The id in the answer to a line with two records, of which the first is refused.
async fn gateway_id(gateway: &Running, lines: &mut BufReader<TcpStream>) -> String {
    let answer = line(lines).await;
    let id = gateway.publisher.tasks()[0].id.to_string();
    assert_eq!(answer, format!("ok - {id}; error not-finite record 0: value: not a finite number"));
    id
}

#[tokio::test]
async fn a_value_that_a_map_refuses_is_named_and_the_others_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plant.toml");
    std::fs::write(&file, "[[map]]\ndevice = \"d\"\nmetric = \"{name}\"\nvalues = \"\"\n").unwrap();
    let settings = GatewaySettings { maps: vec![file], ..GatewaySettings::default() };
    let security = (Access::default(), None);
    let gateway = start_with(settings, MemorySender::new(), security, Traces::default()).await;
    let body = b"{\"a\":1,\"b\":nan,\"c\xe9\":2,\"d\":4}\0";
    let (status, answer) = posted(&gateway, "/v1/map/plant", None, body).await;
    assert_eq!((status, &answer["accepted"]), (202, &json!(2)), "{answer}");
    assert_eq!((&answer["ids"][1], &answer["ids"][2]), (&Value::Null, &Value::Null));
    assert_eq!(
        answer["refused"][0],
        json!({"record": 1, "field": "b", "code": "not-finite", "detail": "record 1: b: not a finite number"})
    );
    assert_eq!(answer["refused"][1]["field"], "c?");
    assert_eq!((left_out(&gateway, "map", "not-finite"), left_out(&gateway, "map", "bad-name")), (1, 1));
    let (status, problem) = posted(&gateway, "/v1/map/plant?atomic=true", None, body).await;
    assert_eq!((status, &problem["code"]), (422, &json!("not-finite")));
    assert_eq!(gateway.publisher.tasks().len(), 2);
}
