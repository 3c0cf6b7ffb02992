//! InfluxDB's line protocol over TCP.

use super::{
    security::{entry, with_senders},
    *,
};

/// The lines of one connection that closes its sending side, and all answers.
async fn send(gateway: &Running, lines: &str) -> String {
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(lines.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answers = String::new();
    let reading = tokio::time::timeout(Duration::from_secs(30), stream.read_to_string(&mut answers));
    reading.await.expect("the connection ends").unwrap();
    answers
}

fn ids(gateway: &Running) -> Vec<String> {
    gateway.publisher.tasks().iter().map(|task| task.id.to_string()).collect()
}

#[tokio::test]
async fn lines_are_the_same_tasks_as_over_http_and_have_no_answer() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let lines = "cpu,cpu=cpu0,host=h1 usage_idle=99.5,usage_user=1i 1763600000000000000\n\
                 # a comment\n\n\
                 T value=21.5 1763600000000000000\n";
    assert_eq!(send(&gateway, &lines.replace('\n', "\r\n")).await, "");
    let over_tcp = (gateway.bodies(), ids(&gateway));
    assert_eq!(over_tcp.0.len(), 3);
    assert_eq!((&over_tcp.0[2]["device"], &over_tcp.0[2]["value"]), (&json!("T"), &json!(21.5)));
    let request = reqwest::Client::new().post(format!("http://{}/write", gateway.address));
    assert_eq!(request.body(lines).send().await.unwrap().status(), 204);
    assert_eq!(gateway.bodies()[3..], over_tcp.0);
    assert_eq!(ids(&gateway)[3..], over_tcp.1);
    let metrics = gateway.metrics.encode();
    assert!(metrics.contains(r#"garenne_gateway_records_total{protocol="influx-tcp"} 3"#), "{metrics}");
    assert!(
        metrics.contains(r#"garenne_gateway_requests_total{protocol="influx-tcp",status="ok"} 3"#),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_refused_line_is_named_and_the_connection_continues() {
    let limits = Limits { max_line: Size::kib(1), ..Limits::default() };
    let gateway = start(MemorySender::new(), limits).await;
    let long = "x".repeat(5000);
    let lines = format!(
        "m,device=d v=1 1763600000000000000\n\nm nonsense\nm,device=d v=2 1763600000000000001\n{long}\n\
         m v=1 4070908800000000000\ntemperature,unit=C value=1\n\u{80}\nm,device=d v=3 1763600000000000002\nm v=4"
    );
    let lines: Vec<u8> = lines.into_bytes().iter().copied().filter(|byte| *byte != 0xc2).collect();
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(&lines).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.unwrap();
    // Lines that are too long are refused as they are read, the others when they are stored.
    let mut answers: Vec<&str> = answers.lines().collect();
    answers.sort_unstable();
    let starts = [
        "error clock-skew line 6: timestamp: 4070908800000000000 as nanoseconds is 2099-01-01T00:00:00Z, more than 10m",
        "error malformed line 10: line: the connection ended before the line did",
        "error malformed line 3: line: not line protocol: ",
        "error malformed line 8: line: not UTF-8 from byte 0 on",
        "error too-large line 5: line is larger than 1KiB",
        "error wrong-unit line 7: unit: \"C\" is the coulomb",
    ];
    assert_eq!(answers.len(), starts.len(), "{answers:?}");
    for (answer, start) in answers.iter().zip(starts) {
        assert!(answer.starts_with(start), "{answer}");
    }
    let values: Vec<Value> = gateway.bodies().iter().map(|body| body["value"].clone()).collect();
    assert_eq!(values, [json!(1.0), json!(2.0), json!(3.0)]);
    let counted = r#"garenne_gateway_refusals_total{protocol="influx-tcp",reason="malformed"} 3"#;
    assert!(gateway.metrics.encode().contains(counted), "{}", gateway.metrics.encode());
}

#[tokio::test]
async fn lines_wait_while_the_broker_is_away_and_are_stored_once() {
    let limits = Limits { retry_after: Duration::from_millis(5), ..Limits::default() };
    let publisher = MemorySender::new();
    let gateway = start(publisher.clone(), limits).await;
    publisher.fail(Some(PublishError::Blocked));
    // The first one is published alone or with the second one, and the others after both.
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(b"m,device=d v=1\nm,device=d v=2 1763600000000000001\n").await.unwrap();
    publisher.received(3).await;
    stream.write_all(b"m,device=d v=3\nm,device=d v=4 1763600000000000001\n").await.unwrap();
    stream.shutdown().await.unwrap();
    publisher.fail(None);
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.unwrap();
    assert_eq!(answers, "", "the sender is not asked to send them again");
    let values: Vec<Value> = gateway.bodies().iter().map(|body| body["value"].clone()).collect();
    assert_eq!(values, [json!(1.0), json!(2.0), json!(3.0), json!(4.0)]);
    let ids: std::collections::BTreeSet<_> = ids(&gateway).into_iter().collect();
    assert_eq!(ids.len(), 4);
    assert!(gateway.metrics.encode().contains(r#"protocol="influx-tcp",status="delayed""#));
}

#[tokio::test]
async fn lines_that_wait_at_a_stop_are_named() {
    let publisher = MemorySender::new();
    let gateway = start(publisher.clone(), Limits::default()).await;
    publisher.fail(Some(PublishError::Blocked));
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(b"m,device=d v=1\nm,device=d v=2\n").await.unwrap();
    publisher.received(1).await;
    gateway.stop.cancel();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.unwrap();
    let lines: Vec<&str> = answers.lines().collect();
    assert!(lines[0].starts_with("error busy line 1: ") && lines.len() <= 2, "{answers}");
    assert!(gateway.serving.await.unwrap());
}

/// The sender reads no answers, so that its receive window is full.
#[tokio::test]
async fn a_sender_that_reads_nothing_is_not_blocked() {
    let limits = Limits { write_timeout: Duration::from_millis(300), ..Limits::default() };
    let gateway = start(MemorySender::new(), limits).await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut sender = socket.connect(gateway.address).await.unwrap();
    sender.write_all(b"m,device=d v=1 1763600000000000001\n").await.unwrap();
    let refused = "m,device=d nonsense\n".repeat(1000);
    for _ in 0..50 {
        sender.write_all(refused.as_bytes()).await.unwrap();
    }
    sender.write_all(b"m,device=d v=2 1763600000000000001\n").await.unwrap();
    gateway.publisher.received(2).await;
    assert_eq!(gateway.bodies().len(), 2);
    let counted = r#"garenne_gateway_refusals_total{protocol="influx-tcp",reason="malformed"} 50000"#;
    assert!(gateway.metrics.encode().contains(counted));
    drop(sender);
}

#[tokio::test]
async fn a_line_may_be_sent_by_known_senders_of_its_device_only() {
    let (gateway, _folder) = with_senders(&entry("roof", "s3cret", "devices = [\"roof-*\"]")).await;
    assert_eq!(
        send(&gateway, "m,device=roof-1 v=1 1763600000000000001\n").await,
        "error unauthorized not authenticated: the first line must be auth TOKEN\n"
    );
    let lines = "auth s3cret\nm,device=roof-1 v=1 1763600000000000001\nm,device=cellar v=1 1763600000000000001\nauth v=1 1763600000000000001\nm,device=roof-2 v=1 1763600000000000001\n";
    assert_eq!(
        send(&gateway, lines).await,
        "ok roof\n\
         error foreign-device line 3: device: sender \"roof\" may not send \"cellar\"\n\
         error foreign-device line 4: device: sender \"roof\" may not send \"auth\"\n"
    );
    let devices: Vec<Value> = gateway.bodies().iter().map(|body| body["device"].clone()).collect();
    assert_eq!(devices, [json!("roof-1"), json!("roof-2")]);
}

#[tokio::test]
async fn lines_above_a_rate_wait() {
    let (gateway, _folder) = with_senders(&entry("roof", "s3cret", "devices = [\"*\"]\nrate = 4")).await;
    // The burst is 100 lines. A slow machine needs less than the time for ten further ones.
    let lines: String = (0..110).map(|n| format!("m,device=d v={n} 1763600{n:06}000000\n")).collect();
    assert_eq!(send(&gateway, &format!("auth s3cret\n{lines}")).await, "ok roof\n");
    assert_eq!(gateway.publisher.tasks().len(), 110);
    // The sender's own limit is no fault of the gateway, which an alert would name.
    let metrics = gateway.metrics.encode();
    assert!(metrics.contains(r#"protocol="influx-tcp",status="rate-limited""#), "{metrics}");
    assert!(!metrics.contains(r#"status="delayed""#), "{metrics}");
}

#[tokio::test]
async fn a_command_names_the_precision() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    assert_eq!(send(&gateway, "influx s\nm,device=d v=1 1763600000\n").await, "");
    assert_eq!(gateway.bodies()[0]["time"], json!("2025-11-20T00:53:20Z"));
    let refused = "error bad-field precision: \"week\" is unknown, expected ns, us, ms, s, m or h\n";
    assert_eq!(send(&gateway, "influx week\n").await, refused);
}

#[tokio::test]
async fn a_connection_of_json_stays_one() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let mut lines = gateway.lines().await;
    lines.write_all(format!("{READING}\nm v=1\n{READING}\n").as_bytes()).await.unwrap();
    assert!(line(&mut lines).await.starts_with("ok "));
    assert!(line(&mut lines).await.starts_with("error malformed record 0: body: not JSON"));
    assert!(line(&mut lines).await.starts_with("ok "));
}
