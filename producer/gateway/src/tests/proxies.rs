//! Senders behind proxies: the PROXY protocol and `X-Forwarded-For`.

use garenne_common::telemetry::traces::Recorder;

use super::*;

async fn behind(proxy: &str, proxy_protocol: bool, most: usize) -> (Running, Recorder) {
    let limits = Limits {
        max_connections_per_source: most,
        first_byte_timeout: Duration::from_millis(200),
        ..Limits::default()
    };
    let trusted_proxies = vec![proxy.parse().unwrap()];
    let settings = GatewaySettings { trusted_proxies, proxy_protocol, limits, ..GatewaySettings::default() };
    let (traces, recorder) = Traces::recorded();
    let gateway = start_with(settings, MemorySender::new(), (Access::default(), None), traces).await;
    (gateway, recorder)
}

/// Opens a connection that starts with these bytes.
async fn open(gateway: &Running, start: &[u8]) -> BufReader<TcpStream> {
    let mut lines = gateway.lines().await;
    lines.write_all(start).await.unwrap();
    lines
}

async fn exchange(lines: &mut BufReader<TcpStream>) -> String {
    lines.write_all(format!("{READING}\n").as_bytes()).await.unwrap();
    line(lines).await
}

fn header(sender: &str) -> String {
    format!("PROXY TCP4 {sender} 10.0.0.1 4567 8080\r\n")
}

#[tokio::test]
async fn the_connections_of_each_sender_behind_a_proxy_are_counted() {
    let (gateway, _) = behind("127.0.0.0/8", true, 1).await;
    let mut first = open(&gateway, header("192.0.2.1").as_bytes()).await;
    assert!(exchange(&mut first).await.starts_with("ok "));
    let mut other = open(&gateway, header("192.0.2.2").as_bytes()).await;
    assert!(exchange(&mut other).await.starts_with("ok "), "another sender behind the same proxy");
    let mut second = open(&gateway, header("192.0.2.1").as_bytes()).await;
    assert_eq!(
        exchange(&mut second).await,
        "error busy too many connections from this address (gateway.max_connections_per_source 1)"
    );
    // Health checks of the proxy itself are not counted.
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";
    let mut checks = [open(&gateway, local).await, open(&gateway, local).await];
    for check in &mut checks {
        assert!(exchange(check).await.starts_with("ok "));
    }
    let counted = r#"garenne_gateway_refused_connections_total{reason="source",server="connection-pool"} 1"#;
    assert!(gateway.metrics.encode().contains(counted));
}

#[tokio::test]
async fn http_after_a_proxy_header_has_the_senders_address_in_its_span() {
    let (gateway, recorder) = behind("127.0.0.0/8", true, 0).await;
    let head = format!("POST /v1/readings HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", READING.len());
    let mut stream = open(&gateway, (header("192.0.2.1") + &head + READING).as_bytes()).await;
    assert_eq!(line(&mut stream).await, "HTTP/1.1 202 Accepted");
    assert_eq!(recorder.only("POST /v1/readings").attributes["client.address"], "192.0.2.1");
}

#[tokio::test]
async fn influx_lines_after_a_proxy_header_are_those_of_the_sender() {
    let (gateway, _) = behind("127.0.0.0/8", true, 1).await;
    let mut stream =
        open(&gateway, (header("192.0.2.1") + "T value=1 1763600000000000001\nT nonsense\n").as_bytes())
            .await;
    assert!(line(&mut stream).await.starts_with("error malformed line 2: "));
    assert_eq!(gateway.bodies()[0]["device"], "T");
}

#[tokio::test]
async fn a_trusted_proxy_must_send_a_header_in_time() {
    let (gateway, _) = behind("127.0.0.0/8", true, 0).await;
    for start in [&b"{\"device\""[..], b"PROXY TCP4 192.0.2.1 ", b""] {
        let mut stream = open(&gateway, start).await;
        let mut answer = Vec::new();
        // A connection that is closed with unread bytes is reset.
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.is_empty(), "{start:?}");
    }
    let counted = r#"garenne_gateway_refusals_total{protocol="proxy",reason="proxy-header"} 3"#;
    assert!(gateway.metrics.encode().contains(counted));
    assert!(gateway.publisher.tasks().is_empty());
}

#[tokio::test]
async fn a_header_from_elsewhere_is_not_believed() {
    let (gateway, recorder) = behind("10.0.0.0/8", true, 1).await;
    let mut direct = gateway.lines().await;
    assert!(exchange(&mut direct).await.starts_with("ok "), "a direct connection needs no header");
    let mut forged = open(&gateway, header("192.0.2.1").as_bytes()).await;
    assert!(
        line(&mut forged).await.starts_with("HTTP/1.1 503"),
        "it is the second connection of its own address"
    );
    drop(direct);
    let (gateway, _) = behind("10.0.0.0/8", false, 0).await;
    let request = reqwest::Client::new().post(format!("http://{}/v1/readings", gateway.address));
    assert_eq!(
        request.header("x-forwarded-for", "192.0.2.1").body(READING).send().await.unwrap().status(),
        202
    );
    assert!(
        recorder
            .spans()
            .iter()
            .all(|span| span.attributes.get("client.address").is_none_or(|it| it == "127.0.0.1"))
    );
}

#[tokio::test]
async fn requests_behind_an_http_proxy_have_the_address_of_the_last_untrusted_hop() {
    let (gateway, recorder) = behind("127.0.0.0/8", false, 1).await;
    let client = reqwest::Client::new();
    let post = |sender: &str| {
        let request = client.post(format!("http://{}/v1/readings", gateway.address));
        request.header("x-forwarded-for", format!("6.6.6.6, {sender}, 127.0.0.9")).body(READING).send()
    };
    assert_eq!(post("192.0.2.1").await.unwrap().status(), 202);
    assert_eq!(recorder.only("POST /v1/readings").attributes["client.address"], "192.0.2.1");
}

#[tokio::test]
async fn the_requests_in_progress_of_each_sender_behind_an_http_proxy_are_counted() {
    let publisher = MemorySender::gated();
    let settings = GatewaySettings {
        trusted_proxies: vec!["127.0.0.0/8".parse().unwrap()],
        limits: Limits { max_connections_per_source: 1, ..Limits::default() },
        ..GatewaySettings::default()
    };
    let gateway = start_with(settings, publisher.clone(), (Access::default(), None), Traces::default()).await;
    let url = format!("http://{}/v1/readings", gateway.address);
    let post = async |sender: &'static str| {
        let request = reqwest::Client::new().post(&url).header("x-forwarded-for", sender);
        request.body(READING).send().await.unwrap().status().as_u16()
    };
    let all = futures_util::future::join3(
        post("192.0.2.1"),
        async {
            publisher.received(1).await;
            post("192.0.2.1").await
        },
        async {
            publisher.received(1).await;
            let (status, ()) = tokio::join!(post("192.0.2.2"), async {
                publisher.received(2).await;
                publisher.confirm(2);
            });
            status
        },
    );
    let (first, refused, other) =
        tokio::time::timeout(Duration::from_secs(30), all).await.expect("all are answered");
    assert_eq!((first, refused, other), (202, 503, 202));
    publisher.confirm(1);
    assert_eq!(post("192.0.2.1").await, 202, "its request has ended");
}
