//! Payloads of other projects at `/v1/map/{name}`.

use garenne_protocol::task::TaskId;

use super::{
    security::{entry, with_senders},
    *,
};

const TTN: &str = include_str!("../../../../common/map/tests/fixtures/ttn-uplink.json");
const TTN_JOIN: &str = include_str!("../../../../common/map/tests/fixtures/ttn-join.json");
const CHIRPSTACK: &str = include_str!("../../../../common/map/tests/fixtures/chirpstack-up.json");

#[tokio::test]
async fn webhooks_of_network_servers_become_readings_and_a_repeat_has_the_same_ids() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    for (path, body, count) in [("/v1/map/ttn", TTN, 5), ("/v1/map/chirpstack?event=up", CHIRPSTACK, 4)] {
        let (status, answer) = gateway.post(path, "application/json", body).await;
        assert_eq!((status, &answer["accepted"]), (202, &json!(count)), "{answer}");
        assert_eq!(gateway.post(path, "application/json", body).await.1["ids"], answer["ids"]);
    }
    let expected = json!({"device": "soil-1", "metric": "temperature", "value": 7.5, "time": "2026-11-24T09:15:30.875123Z"});
    assert_eq!(gateway.bodies()[2], expected);
    let tasks = gateway.publisher.tasks();
    assert!(tasks.iter().all(|task| task.kind.as_str() == "reading.process"));
    let ids: std::collections::BTreeSet<_> = tasks.iter().map(|task| TaskId::as_str(&task.id)).collect();
    assert_eq!((tasks.len(), ids.len()), (18, 9));
}

#[tokio::test]
async fn a_byte_order_mark_is_skipped_before_a_command_and_before_a_body_of_any_route() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let mut lines = gateway.lines().await;
    lines.write_all("\u{feff}map ttn\n".as_bytes()).await.unwrap();
    assert_eq!(line(&mut lines).await, "ok ttn");
    for first in ["m,device=d v=1 1763600000000000000", "# comment", "influx s"] {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        let text = format!("\u{feff}{first}\nm,device=d v=1\n");
        stream.write_all(text.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answers = String::new();
        stream.read_to_string(&mut answers).await.unwrap();
        assert_eq!(answers, "", "{first}");
        assert_eq!(gateway.bodies().last().unwrap()["metric"], "m.v");
    }
    let before = gateway.publisher.tasks().len();
    let event = r#"{"specversion":"1.0","id":"1","source":"s","type":"bench.noop","data":{}}"#;
    for (path, content_type, body) in [
        ("/v1/tasks/reading.process", "application/json", READING),
        ("/v1/tasks/bench.noop", "application/json", "{}"),
        ("/v1/events", "application/cloudevents+json", event),
        ("/v1/events", "application/cloudevents-batch+json", &format!("[{event}]")),
        ("/v1/readings", "application/x-ndjson", &format!("{READING}\n\u{feff}{READING}\n\u{feff}\n")),
        ("/v1/map/ttn", "application/json", TTN),
    ] {
        let (status, answer) = gateway.post(path, content_type, &format!("\u{feff}{body}")).await;
        assert_eq!((status, answer.get("refused")), (202, None), "{path}: {answer}");
    }
    let tasks = gateway.publisher.tasks().split_off(before);
    assert_eq!(tasks.len(), 11);
    assert!(tasks.iter().all(|task| task.body.starts_with(b"{")));
}

#[tokio::test]
async fn what_a_map_skips_is_accepted_without_readings() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let (status, answer) = gateway.post("/v1/map/ttn", "application/json", TTN_JOIN).await;
    assert_eq!((status, answer), (202, json!({"accepted": 0, "ids": []})));
    assert!(gateway.publisher.tasks().is_empty());
    let unmeasured = TTN.replace("\"frm_payload\"", "\"other\"");
    let (status, answer) = gateway.post("/v1/map/ttn", "application/json", &unmeasured).await;
    assert_eq!((status, &answer["accepted"]), (202, &json!(2)), "only the signal was measured");
    let counted = "garenne_gateway_unmeasured_total 1\n";
    assert!(gateway.metrics.encode().contains(counted));
}

#[tokio::test]
async fn an_unmapped_payload_is_refused_with_the_rule_and_the_reason() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let unnamed = TTN.replace("device_id", "other");
    for (path, body, status, code, detail) in [
        (
            "/v1/map/ttn",
            unnamed.as_str(),
            422,
            "unmapped",
            "rule 2: device: /end_device_ids/device_id is missing",
        ),
        ("/v1/map/ttn", "{}", 422, "unmapped", "no rule matches"),
        ("/v1/map/zigbee2mqtt", "{}", 422, "unmapped", "no rule matches"),
        ("/v1/map/nothing", "{}", 404, "no-map", "no map has the name \"nothing\""),
    ] {
        let (given, problem) = gateway.post(path, "application/json", body).await;
        assert_eq!((given, &problem["code"], &problem["detail"]), (status, &json!(code), &json!(detail)));
    }
    let (_, problem) = gateway.post("/v1/map/ttn", "application/json", "{\"a\"").await;
    assert!(problem["detail"].as_str().unwrap().starts_with("rule 1: not JSON: "), "{problem}");
    assert!(gateway.publisher.tasks().is_empty());
    let counted = r#"garenne_gateway_refusals_total{protocol="http",reason="unmapped"} 4"#;
    assert!(gateway.metrics.encode().contains(counted), "{}", gateway.metrics.encode());
}

#[tokio::test]
async fn a_sender_may_send_only_its_devices_and_kinds_through_a_map() {
    let post = async |gateway: &Running, token: &str, path: &str, body: &str| {
        let url = format!("http://{}{path}", gateway.address);
        let request = reqwest::Client::new().post(url).bearer_auth(token).body(body.to_owned());
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap()["code"].clone())
    };
    let senders = [
        entry("farm", "f", "devices = [\"soil-*\"]"),
        entry("other", "o", "devices = [\"pump-*\"]"),
        entry("windows", "w", "devices = [\"*\"]\nkinds = [\"window.analyze\"]"),
    ];
    let (gateway, _folder) = with_senders(&senders.concat()).await;
    assert_eq!(post(&gateway, "o", "/v1/map/ttn", TTN).await, (403, json!("foreign-device")));
    assert_eq!(post(&gateway, "w", "/v1/map/ttn", TTN).await, (403, json!("foreign-kind")));
    assert_eq!(post(&gateway, "?", "/v1/map/ttn", TTN).await, (401, json!("unauthorized")));
    assert_eq!(post(&gateway, "?", "/v1/map/nothing", TTN).await, (401, json!("unauthorized")));
    assert!(gateway.publisher.tasks().is_empty());
    assert_eq!(post(&gateway, "f", "/v1/map/ttn", TTN).await.0, 202);
    assert_eq!(gateway.publisher.tasks().len(), 5);
}

#[tokio::test]
async fn a_map_of_a_file_is_used_and_an_idempotency_key_belongs_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let rule =
        |metric: &str| format!("[[map]]\npath = \"/v1/map/+\"\ndevice = \"{{1}}\"\nmetric = {metric:?}\n");
    let files = ["a", "b"].map(|name| {
        let file = folder.path().join(format!("{name}.toml"));
        let parameters = if name == "b" { "parameters = [\"LrnDevEui\"]\n" } else { "" };
        std::fs::write(&file, format!("{parameters}{}", rule(name))).unwrap();
        file
    });
    let settings = GatewaySettings { maps: files.to_vec(), ..GatewaySettings::default() };
    let security = (Access::default(), None);
    let gateway = start_with(settings, MemorySender::new(), security, Traces::default()).await;
    let post = async |name: &str| {
        let url = format!("http://{}/v1/map/{name}", gateway.address);
        let request = reqwest::Client::new().post(url).header("idempotency-key", "k").body("21.5");
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    let (status, answer) = post("a").await;
    assert_eq!(status, 202);
    assert_eq!(post("a").await, (202, answer));
    let (status, problem) = post("b").await;
    assert_eq!((status, &problem["code"]), (422, &json!("key-reused")));
    assert_eq!(post("a?LrnDevEui=1&atomic=true").await.1["detail"], "query: unknown parameter \"LrnDevEui\"");
    assert_eq!(post("b?LrnDevEui=1&atomic=true").await.1["code"], "key-reused");
    let body = &gateway.bodies()[0];
    assert_eq!((&body["device"], &body["metric"], &body["value"]), (&json!("a"), &json!("a"), &json!(21.5)));
}

#[tokio::test]
async fn a_mapped_body_may_have_no_more_records_than_another_one() {
    let limits = Limits { max_records: 2, ..Limits::default() };
    let gateway = start(MemorySender::new(), limits).await;
    let (status, problem) = gateway.post("/v1/map/ttn", "application/json", TTN).await;
    assert_eq!((status, &problem["detail"]), (422, &json!("rule 2: more than 2 readings")));
}

#[tokio::test]
async fn lines_after_a_map_command_are_payloads_for_it() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let (ttn, join) = (TTN.replace('\n', ""), TTN_JOIN.replace('\n', ""));
    let (status, answer) = gateway.post("/v1/map/ttn", "application/json", TTN).await;
    assert_eq!(status, 202);
    let ids: Vec<&str> = answer["ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    let mut lines = gateway.lines().await;
    let sent =
        format!("map ttn\n{ttn}\n{{}}\n{join}\nmap chirpstack\n{ttn}\n{}\n", CHIRPSTACK.replace('\n', ""));
    lines.write_all(sent.as_bytes()).await.unwrap();
    assert_eq!(line(&mut lines).await, "ok ttn");
    assert_eq!(line(&mut lines).await, format!("ok {}", ids.join(" ")), "the same ids as over HTTP");
    assert_eq!(line(&mut lines).await, "error unmapped no rule matches");
    assert_eq!(line(&mut lines).await, "ok", "a join is skipped");
    assert_eq!(line(&mut lines).await, "ok chirpstack");
    assert!(line(&mut lines).await.starts_with("error unmapped "));
    assert_eq!(line(&mut lines).await.split(' ').count(), 5);
    let counted = r#"garenne_gateway_refusals_total{protocol="tcp",reason="unmapped"} 2"#;
    assert!(gateway.metrics.encode().contains(counted));
}

#[tokio::test]
async fn a_map_that_does_not_exist_ends_the_connection() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let mut lines = gateway.lines().await;
    lines.write_all(format!("map nothing\n{READING}\n").as_bytes()).await.unwrap();
    assert_eq!(line(&mut lines).await, "error no-map no map has the name \"nothing\"");
    assert_eq!(line(&mut lines).await, "", "a payload is not taken for another format");
    assert!(gateway.publisher.tasks().is_empty());
}

#[tokio::test]
async fn a_line_for_a_map_may_be_any_payload_and_needs_its_senders_rights() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plant.toml");
    std::fs::write(&file, "[[map]]\npath = \"/v1/map/+\"\ndevice = \"{1}\"\nmetric = \"level\"\n").unwrap();
    let senders = folder.path().join("senders.toml");
    let entries =
        entry("plant", "p", "devices = [\"plant\"]") + &entry("farm", "f", "devices = [\"soil-*\"]");
    std::fs::write(&senders, entries).unwrap();
    let settings = GatewaySettings { maps: vec![file], ..GatewaySettings::default() };
    let security = (Access::new(Some(&senders), false, 100).unwrap(), None);
    let gateway = start_with(settings, MemorySender::new(), security, Traces::default()).await;
    let mut lines = gateway.lines().await;
    lines.write_all(b"auth p\nmap plant\n21.5\nm v=1\nauth f\n22\n").await.unwrap();
    assert_eq!((line(&mut lines).await, line(&mut lines).await), ("ok plant".into(), "ok plant".into()));
    assert!(line(&mut lines).await.starts_with("ok "));
    assert!(line(&mut lines).await.starts_with("error unmapped "), "it is not taken for InfluxDB's protocol");
    assert_eq!(line(&mut lines).await, "ok farm");
    assert_eq!(
        line(&mut lines).await,
        "error foreign-device record 0: device: sender \"farm\" may not send \"plant\""
    );
    assert_eq!(gateway.bodies().len(), 1);
    let mut lines = gateway.lines().await;
    lines.write_all(b"map plant\n21.5\n").await.unwrap();
    assert_eq!(
        line(&mut lines).await,
        "error unauthorized not authenticated: the first line must be auth TOKEN"
    );
}
