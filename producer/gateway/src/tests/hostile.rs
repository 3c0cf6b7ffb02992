//! Senders that try to exhaust memory, time or connections.

use std::{io::Write, net::SocketAddr};

use flate2::{Compression, write::GzEncoder};
use tokio::{
    io::{BufStream, duplex},
    net::TcpSocket,
};

use super::{
    security::{ANY, entry, with_senders_and},
    *,
};
use crate::{auth::Peer, tcp};

/// Polls until `holds`, for work of the gateway that has no event.
pub(super) async fn until(what: &str, holds: impl Fn() -> bool) {
    let looking = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), looking).await.unwrap_or_else(|_| panic!("never: {what}"));
}

async fn with_tokens(limits: Limits) -> (Running, tempfile::TempDir) {
    with_senders_and(&entry("roof", "s3cret", ANY), limits).await
}

impl Running {
    pub(super) fn reserved(&self) -> usize {
        self.context.budget.used()
    }

    /// Opens a connection and sends these bytes.
    pub(super) async fn raw(&self, sent: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(sent).await.unwrap();
        stream
    }
}

/// Everything that the gateway sends until it closes the connection.
pub(super) async fn all(stream: &mut TcpStream) -> String {
    let mut got = Vec::new();
    tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut got))
        .await
        .expect("it closes")
        .expect("it is not reset");
    String::from_utf8(got).unwrap()
}

pub(super) fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn head(path: &str, headers: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n")
}

#[tokio::test]
async fn no_route_reads_a_body_before_authentication() {
    let (gateway, _folder) = with_tokens(Limits::default()).await;
    for path in [
        "/v1/readings",
        "/v1/tasks/bench.noop",
        "/v1/events",
        "/v1/metrics",
        "/api/v2/write",
        "/write",
        "/query",
    ] {
        // The body is announced and not sent: the answer does not wait for it.
        let mut stream = gateway.raw(head(path, "content-length: 4000000\r\n").as_bytes()).await;
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        assert_eq!(&status, b"HTTP/1.1 401", "{path}");
        // The body is sent: the answer is not lost by a reset.
        let mut stream = gateway.raw(head(path, "content-length: 1000000\r\n").as_bytes()).await;
        stream.write_all(&vec![b' '; 1_000_000]).await.unwrap();
        assert!(all(&mut stream).await.starts_with("HTTP/1.1 401"), "{path}");
    }
    assert_eq!(gateway.reserved(), 0);
    let ping = reqwest::get(format!("http://{}/ping", gateway.address)).await.unwrap();
    assert_eq!(ping.status(), 204, "no authentication for /ping");
}

#[tokio::test]
async fn a_body_in_one_byte_chunks_reserves_its_bytes_until_the_sender_disconnects() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let mut senders = Vec::new();
    for path in ["/v1/readings", "/v1/tasks/bench.noop", "/api/v2/write", "/query"] {
        let chunks = "1\r\nx\r\n".repeat(5000);
        let sent = head(path, "transfer-encoding: chunked\r\n") + &chunks;
        senders.push(gateway.raw(sent.as_bytes()).await);
    }
    until("all bytes are read", || gateway.reserved() >= 4 * 5000).await;
    assert!(gateway.reserved() <= 4 * 16 * 1024, "{} bytes for 20,000", gateway.reserved());
    drop(senders);
    until("all memory is released", || gateway.reserved() == 0).await;
}

#[tokio::test]
async fn an_influx_statement_has_a_limit_of_its_own() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let url = format!("http://{}/query", gateway.address);
    let post =
        async |body: String| reqwest::Client::new().post(&url).body(body).send().await.unwrap().status();
    assert_eq!(post("q=CREATE+DATABASE+x".to_owned()).await, 200);
    assert_eq!(post("x".repeat(20_000)).await, 413);
}

#[tokio::test]
async fn tasks_reserve_memory_until_their_confirm_even_if_the_sender_disconnects() {
    let publisher = MemorySender::gated();
    let limits = Limits { memory_budget: Size::mib(1), ..Limits::default() };
    let gateway = start(publisher.clone(), limits).await;
    let many = format!("[{}]", vec![READING; 100].join(","));
    let headers = format!("connection: close\r\ncontent-length: {}\r\n", many.len());
    let request = head("/v1/readings", &headers) + &many;
    let mut waiting = 0;
    let mut senders = Vec::new();
    let refused = loop {
        let mut sender = gateway.raw(request.as_bytes()).await;
        tokio::select! {
            () = publisher.received(waiting + 1) => (),
            answer = all(&mut sender) => break answer,
        }
        waiting += 1;
        senders.push(sender);
        assert!(waiting < 100, "the budget is never used up");
    };
    assert!(waiting > 1, "{waiting}");
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("\r\nretry-after: 1\r\n"), "{refused}");
    assert!(refused.contains("the memory for requests is in use (gateway.memory_budget 1MiB)"), "{refused}");
    let held = gateway.reserved();
    assert!((waiting * 100 * READING.len()..=1 << 20).contains(&held), "{held}");

    // Lines get the same answer, and single readings are still accepted.
    let mut lines = gateway.lines().await;
    lines.write_all(format!("{many}\n").as_bytes()).await.unwrap();
    assert_eq!(
        line(&mut lines).await,
        "error busy the memory for requests is in use (gateway.memory_budget 1MiB)"
    );
    lines.write_all(format!("{READING}\n").as_bytes()).await.unwrap();
    publisher.received(waiting + 1).await;

    let with_line = gateway.reserved();
    drop(senders);
    // The gauge changes after the gateway has noticed the disconnects.
    let active = r#"garenne_gateway_connections{server="connection-pool",state="active"} 1"#;
    until("only the line connection is open", || gateway.metrics.encode().contains(active)).await;
    assert_eq!(gateway.reserved(), with_line, "unconfirmed tasks stay reserved");
    publisher.confirm(waiting + 1);
    assert!(line(&mut lines).await.starts_with("ok "));
    drop(lines);
    until("all memory is released", || gateway.reserved() == 0).await;
    assert_eq!(publisher.tasks().len(), waiting * 100 + 1);
}

#[tokio::test]
async fn decompression_bombs_are_refused_and_release_their_memory() {
    let publisher = MemorySender::gated();
    let gateway = start(publisher.clone(), Limits::default()).await;
    let post = async |body: Vec<u8>| {
        let request = reqwest::Client::new().post(format!("http://{}/v1/readings", gateway.address));
        let request =
            request.header("content-type", "application/senml+json").header("content-encoding", "gzip");
        request.body(body).send().await.unwrap()
    };
    let inflated = post(gzip(&vec![b' '; 16 << 20])).await;
    assert_eq!(inflated.status(), 413);
    // A field name of 4 MB is neither compared with known names nor quoted.
    let name = format!(r#"[{{"n":"a","v":1,"{}_":1}}]"#, "x".repeat(4 << 20).split_off(100));
    let refused = post(gzip(name.as_bytes())).await;
    let status = refused.status();
    let problem: Value = refused.json().await.unwrap();
    assert_eq!(status, 422, "{problem}");
    assert!(problem.to_string().len() < 500, "{problem}");
    assert_eq!(gateway.reserved(), 0);

    // Small bodies that become 10,000 tasks each: unconfirmed tasks stay within the budget.
    let pack = format!(r#"[{{"bn":"a","v":1}}{}]"#, r#",{"v":1}"#.repeat(9_999));
    let pack = gzip(pack.as_bytes());
    assert!(pack.len() < 25_000);
    let posts: Vec<_> = (0..6).map(|_| post(pack.clone())).collect();
    let watching = async {
        publisher.received(1).await;
        let peak = gateway.reserved();
        assert!(peak <= Limits::default().memory_budget.bytes(), "{peak}");
        publisher.confirm(6);
    };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(posts), watching);
    let accepted = answers.iter().filter(|answer| answer.status() == 202).count();
    let refused = answers.iter().filter(|answer| answer.status() == 503).count();
    assert!(accepted > 0 && accepted + refused == 6, "{accepted} accepted, {refused} refused");
    drop(answers);
    until("all memory is released", || gateway.reserved() == 0).await;
}

#[tokio::test]
async fn a_connection_without_authentication_is_closed_after_the_timeout() {
    let limits = Limits { auth_timeout: Duration::from_millis(400), ..Limits::default() };
    let (gateway, _folder) = with_tokens(limits).await;
    let mut known = gateway.lines().await;
    known.write_all(b"auth s3cret\n").await.unwrap();
    assert_eq!(line(&mut known).await, "ok roof");
    let wrong = "GET /query?q=x HTTP/1.1\r\nhost: x\r\nauthorization: Bearer wrong\r\n\r\n";
    for sent in
        ["\n", "{", "POST /v1/readings HTTP/1.1\r\n", "GET /health HTTP/1.1\r\nhost: x\r\n\r\n", wrong]
    {
        let mut stream = gateway.raw(sent.as_bytes()).await;
        let (mut reader, mut writer) = stream.split();
        let more = if sent.starts_with("GET") {
            sent
        } else if sent == "\n" {
            "\n"
        } else {
            "x"
        };
        let going_on = async {
            loop {
                tokio::time::sleep(Duration::from_millis(50)).await;
                if writer.write_all(more.as_bytes()).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let mut got = Vec::new();
        tokio::select! {
            // The result may be a reset, if bytes were in flight.
            _ = tokio::time::timeout(Duration::from_secs(30), reader.read_to_end(&mut got)) => {}
            () = going_on => unreachable!(),
        }
    }
    known.write_all(format!("{READING}\n").as_bytes()).await.unwrap();
    assert!(line(&mut known).await.starts_with("ok "), "an authenticated connection stays open");
    drop(known);
    let active = r#"garenne_gateway_connections{server="connection-pool",state="active"} 0"#;
    until("no connection is active", || gateway.metrics.encode().contains(active)).await;
}

#[tokio::test]
async fn a_line_before_authentication_is_limited_to_4_kib() {
    let (gateway, _folder) = with_tokens(Limits::default()).await;
    let mut stream = gateway.raw(format!("auth {}\n", "x".repeat(5000)).as_bytes()).await;
    assert_eq!(
        all(&mut stream).await,
        "error unauthorized not authenticated: the first line must be auth TOKEN\n"
    );
    let mut lines = gateway.lines().await;
    let long = format!("[{}]", vec![READING; 60].join(","));
    lines.write_all(format!("auth s3cret\n{long}\n").as_bytes()).await.unwrap();
    assert_eq!(line(&mut lines).await, "ok roof");
    assert_eq!(line(&mut lines).await.split(' ').count(), 61, "the limit is higher after authentication");
}

#[tokio::test]
async fn connections_of_one_source_are_limited() {
    let limits = Limits { max_connections_per_source: 2, ..Limits::default() };
    let gateway = start(MemorySender::new(), limits).await;
    let from = async |address: [u8; 4]| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((address, 0))).unwrap();
        let mut stream = BufReader::new(socket.connect(gateway.address).await.unwrap());
        stream.write_all(format!("{READING}\n").as_bytes()).await.unwrap();
        let answer = line(&mut stream).await;
        (stream, answer)
    };
    let first = from([127, 0, 0, 1]).await;
    let second = from([127, 0, 0, 1]).await;
    assert!(first.1.starts_with("ok ") && second.1.starts_with("ok "));
    assert_eq!(
        from([127, 0, 0, 1]).await.1,
        "error busy too many connections from this address (gateway.max_connections_per_source 2)"
    );
    assert!(from([127, 0, 0, 2]).await.1.starts_with("ok "), "another source has its own limit");
    let (status, problem) = gateway.post("/v1/readings", "application/json", READING).await;
    assert_eq!((status, &problem["code"]), (503, &json!("busy")));
    assert!(gateway.metrics.encode().contains(
        r#"garenne_gateway_refused_connections_total{reason="source",server="connection-pool"} 2"#
    ));
    drop(first);
    let active = r#"garenne_gateway_connections{server="connection-pool",state="active"} 1"#;
    until("the closed connection is not counted", || gateway.metrics.encode().contains(active)).await;
    assert!(from([127, 0, 0, 1]).await.1.starts_with("ok "));
}

/// A transport such as TLS buffers writes until it is flushed.
#[tokio::test]
async fn answers_are_flushed_before_the_next_read() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let (sensor, ours) = duplex(64 * 1024);
    let (context, stop) = (Arc::clone(&gateway.context), gateway.stop.clone());
    let peer = Peer::new(SocketAddr::from(([127, 0, 0, 1], 1)));
    let serving = tokio::spawn(async move {
        tcp::serve(BufStream::new(ours), &context, &peer, &context.budget.account(None), &stop).await
    });
    let mut sensor = BufReader::new(sensor);
    for _ in 0..2 {
        sensor.write_all(format!("{READING}\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        let reading = tokio::time::timeout(Duration::from_secs(30), sensor.read_line(&mut answer));
        reading.await.expect("an answer while the connection is open").unwrap();
        assert!(answer.starts_with("ok "), "{answer}");
    }
    drop(sensor);
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_reading_from_the_future_is_refused_on_every_protocol() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let future = READING.replace("2026-11-20T07:30:00Z", "2099-01-01T00:00:00Z");
    let words = "time: 2099-01-01T00:00:00Z is more than 10m ahead of the local clock, ";
    let body = format!("[{READING},{future}]");
    let (status, problem) = gateway.post("/v1/readings?atomic=true", "application/json", &body).await;
    assert_eq!((status, &problem["code"]), (422, &json!("clock-skew")));
    assert_eq!((&problem["record"], &problem["field"]), (&json!(1), &json!("time")));
    assert!(problem["detail"].as_str().unwrap().starts_with(&format!("record 1: {words}")), "{problem}");
    let mut lines = gateway.lines().await;
    lines.write_all(format!("{future}\n").as_bytes()).await.unwrap();
    let answer = line(&mut lines).await;
    assert!(answer.starts_with(&format!("error clock-skew record 0: {words}")), "{answer}");
    let (status, problem) = gateway.post("/api/v2/write?precision=s", "text/plain", "m f=1 4070908800").await;
    assert_eq!(status, 400, "{problem}");
    let message = problem["message"].as_str().unwrap();
    assert!(
        message
            .starts_with("line 1: timestamp: 4070908800 as seconds is 2099-01-01T00:00:00Z, more than 10m"),
        "{message}"
    );
    assert!(gateway.publisher.tasks().is_empty());
}

#[tokio::test]
async fn quotes_of_the_request_are_short() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let long = "x".repeat(8000);
    for (path, header) in [
        ("/v1/readings", "content-type"),
        ("/v1/readings", "content-encoding"),
        ("/v1/tasks/bench.noop", "content-type"),
        ("/v1/tasks/bench.noop", "garenne-delay-ms"),
        ("/v1/tasks/bench.noop", "garenne-group"),
        ("/v1/events", "content-type"),
        ("/v1/events", "ce-specversion"),
        (&*format!("/v1/tasks/{long}"), "x"),
        (&*format!("/v1/tasks/{}%1b", "y".repeat(120)), "x"),
        (&*format!("/api/v2/write?precision={long}"), "x"),
    ] {
        let request = reqwest::Client::new().post(format!("http://{}{path}", gateway.address));
        let response = request.header(header, &long).body("{}").send().await.unwrap();
        assert!(response.status().is_client_error(), "{header}: {}", response.status());
        let answer = response.text().await.unwrap();
        assert!(!answer.contains(&long[..65]) && !answer.contains(&"y".repeat(65)), "{header}: {answer}");
        assert!(answer.len() < 600, "{header}: {answer}");
    }
    // A head that is larger than any of these needs is refused as a whole.
    let mut stream =
        gateway.raw(head("/v1/readings", &format!("x: {}\r\n", "x".repeat(20_000))).as_bytes()).await;
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 431");
}
