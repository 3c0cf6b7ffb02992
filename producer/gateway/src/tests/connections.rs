//! Connections: order of answers, limits, timeouts and servers.

use super::*;

#[tokio::test]
async fn pipelined_lines_are_answered_in_order() {
    let publisher = MemorySender::gated();
    let gateway = start(publisher.clone(), Limits::default()).await;
    let mut lines = gateway.lines().await;
    let input = format!("{READING}\nnonsense\n{{\"device\":\"d\"}}\n[{READING},{READING}]\n");
    lines.write_all(input.as_bytes()).await.unwrap();
    publisher.confirm(2);
    let first = line(&mut lines).await;
    assert_eq!(first, format!("ok {}", publisher.tasks()[0].id));
    assert!(line(&mut lines).await.starts_with("error malformed record 0: body: not JSON"));
    assert!(
        line(&mut lines).await.starts_with("error missing-field record 0: metric: required field is missing")
    );
    assert_eq!(line(&mut lines).await.split(' ').count(), 3);
}

#[tokio::test]
async fn a_line_or_body_above_its_limit_is_refused_with_the_limit() {
    let limits = Limits { max_line: Size(64), max_body: Size(256), ..Limits::default() };
    let gateway = start(MemorySender::new(), limits).await;
    let mut lines = gateway.lines().await;
    let short = r#"{"device":"d","metric":"m","value":1}"#;
    let input = format!("{}\n{short}\n", "x".repeat(100_000));
    lines.write_all(input.as_bytes()).await.unwrap();
    assert_eq!(line(&mut lines).await, "error too-large line is larger than 64B");
    assert!(line(&mut lines).await.starts_with("ok "));
    let (status, problem) = gateway.post("/v1/readings", "application/json", &" ".repeat(300)).await;
    assert_eq!((status, &problem["detail"]), (413, &json!("body is larger than 256B")));
}

#[tokio::test]
async fn a_stop_answers_open_requests_and_accepts_no_new_connections() {
    let publisher = MemorySender::gated();
    let gateway = start(publisher.clone(), Limits::default()).await;
    let mut lines = gateway.lines().await;
    lines.write_all(format!("{READING}\n").as_bytes()).await.unwrap();
    let posting = {
        let url = format!("http://{}/v1/readings", gateway.address);
        tokio::spawn(async move { reqwest::Client::new().post(url).body(READING).send().await.unwrap() })
    };
    publisher.received(2).await;
    gateway.stop.cancel();
    publisher.confirm(2);
    assert_eq!(posting.await.unwrap().status(), 202);
    assert!(line(&mut lines).await.starts_with("ok "));
    assert_eq!(lines.read_to_end(&mut Vec::new()).await.unwrap(), 0);
    assert!(gateway.serving.await.unwrap());
    assert!(TcpStream::connect(gateway.address).await.is_err());
}

#[tokio::test]
async fn a_connection_above_the_limit_is_answered_busy_in_its_protocol() {
    let limits = Limits { max_connections: 1, ..Limits::default() };
    let gateway = start(MemorySender::new(), limits).await;
    let mut first = gateway.lines().await;
    first.write_all(format!("{READING}\n").as_bytes()).await.unwrap();
    assert!(line(&mut first).await.starts_with("ok "));
    let mut second = gateway.lines().await;
    second.write_all(b"{}\n").await.unwrap();
    assert_eq!(line(&mut second).await, "error busy too many connections (1)");
    let (status, problem) = gateway.post("/v1/readings", "application/json", READING).await;
    assert_eq!((status, &problem["code"]), (503, &json!("busy")));
    assert!(
        gateway.metrics.encode().contains(
            r#"garenne_gateway_refused_connections_total{reason="full",server="connection-pool"} 2"#
        )
    );
}

#[tokio::test]
async fn silent_and_slow_senders_are_closed_after_their_timeouts() {
    let short = Duration::from_millis(50);
    let limits = Limits {
        first_byte_timeout: short,
        header_timeout: short,
        body_timeout: short,
        idle_timeout: short,
        ..Limits::default()
    };
    let gateway = start(MemorySender::new(), limits).await;
    for (sent, answer) in [
        ("", ""),
        ("{\"device\"", "error timeout line did not arrive within 50ms\n"),
        ("\n", ""),
        ("POST /v1/readings HTTP/1.1\r\nhost:", ""),
    ] {
        let mut sender = TcpStream::connect(gateway.address).await.unwrap();
        sender.write_all(sent.as_bytes()).await.unwrap();
        let mut got = String::new();
        sender.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, answer, "{sent:?}");
    }
    let mut sender = TcpStream::connect(gateway.address).await.unwrap();
    let head = "POST /v1/readings HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{";
    sender.write_all(head.as_bytes()).await.unwrap();
    let mut got = String::new();
    sender.read_to_string(&mut got).await.unwrap();
    assert!(got.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{got}");
}

/// The sender sends requests and reads no answers. Once a write stalls, nothing is read from it, and the connection
/// is closed after the timeout.
#[tokio::test]
async fn a_sender_that_reads_no_answers_is_closed() {
    let limits = Limits { write_timeout: Duration::from_millis(300), ..Limits::default() };
    let gateway = start(MemorySender::new(), limits).await;
    let requests = "GET /ping HTTP/1.1\r\nhost: x\r\n\r\n".repeat(1000);
    let lines = format!("{READING}\n").repeat(1000);
    for asked in [requests, lines] {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        // A small buffer in the kernel, so that the gateway's writes stall soon.
        socket.set_recv_buffer_size(4096).unwrap();
        let mut sender = socket.connect(gateway.address).await.unwrap();
        let mut sent = 0;
        let ended = loop {
            match sender.write_all(asked.as_bytes()).await {
                Ok(()) => sent += asked.len(),
                Err(error) => break error,
            }
        };
        assert!(
            [std::io::ErrorKind::ConnectionReset, std::io::ErrorKind::BrokenPipe].contains(&ended.kind()),
            "{ended}"
        );
        // Only the buffers of both sockets and little in the gateway.
        assert!(sent < 24 << 20, "{sent} bytes were taken");
    }
    let mut lines = gateway.lines().await;
    lines.write_all(format!("{READING}\n").as_bytes()).await.unwrap();
    assert!(line(&mut lines).await.starts_with("ok "));
}

#[tokio::test]
async fn both_servers_serve_and_drain_alike() {
    for kind in [ServerKind::WorkerPool, ServerKind::ConnectionPool] {
        let publisher = MemorySender::gated();
        let gateway = start_on(kind, publisher.clone(), Limits::default()).await;
        let mut lines = gateway.lines().await;
        lines.write_all(format!("{READING}\n{READING}\n").as_bytes()).await.unwrap();
        publisher.received(2).await;
        publisher.confirm(2);
        for _ in 0..2 {
            assert!(line(&mut lines).await.starts_with("ok "), "{kind}");
        }
        drop(lines);
        publisher.confirm(1);
        assert_eq!(gateway.post("/v1/readings", "application/json", READING).await.0, 202, "{kind}");
        let mut waiting = gateway.lines().await;
        waiting.write_all(format!("{READING}\n").as_bytes()).await.unwrap();
        publisher.received(4).await;
        gateway.stop.cancel();
        publisher.confirm(1);
        assert!(line(&mut waiting).await.starts_with("ok "), "{kind}");
        assert!(gateway.serving.await.unwrap(), "{kind}");
        let active = format!(r#"garenne_gateway_connections{{server="{kind}",state="active"}} 0"#);
        assert!(gateway.metrics.encode().contains(&active), "{kind}");
    }
}

#[tokio::test]
async fn idle_connections_occupy_no_worker() {
    let limits = Limits { workers: Concurrency { min: 1, max: 1 }, ..Limits::default() };
    let publisher = MemorySender::gated();
    let gateway = start_on(ServerKind::WorkerPool, publisher.clone(), limits).await;
    let mut idle = Vec::new();
    for sent in ["", "{", "POST /v1/readings HTTP/1.1\r\n", READING] {
        let mut sender = gateway.lines().await;
        sender.write_all(sent.as_bytes()).await.unwrap();
        idle.push(sender);
    }
    // Neither does a connection that waits for a confirm.
    idle[3].write_all(b"\n").await.unwrap();
    publisher.received(1).await;
    let mut lines = gateway.lines().await;
    lines.write_all(format!("{READING}\n").as_bytes()).await.unwrap();
    publisher.received(2).await;
    publisher.confirm(2);
    assert!(line(&mut lines).await.starts_with("ok "));
    assert!(line(&mut idle[3]).await.starts_with("ok "));
}
