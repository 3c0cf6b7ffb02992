//! Clients that take places and send or read nothing.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// A client that has sent these lines and reads nothing.
async fn silent(addr: SocketAddr, lines: &str) -> TcpStream {
    let mut client = TcpStream::connect(addr).await.unwrap();
    client.write_all(lines.as_bytes()).await.unwrap();
    client
}

#[tokio::test]
async fn clients_that_send_half_a_request_keep_no_probe_out() {
    let (addr, _port, _received) = opened(None, Duration::from_secs(10)).await;
    // Each connection takes as long as it wants: nothing, half a head, one byte of a body.
    let mut silent_ones = Vec::new();
    for _ in 0..100 {
        silent_ones.push(silent(addr, "").await);
        silent_ones.push(silent(addr, "GET /livez HTTP/1.1\r\nhost: ").await);
        let body = "POST /quiet HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{";
        silent_ones.push(silent(addr, body).await);
    }
    let began = std::time::Instant::now();
    for path in ["/livez", "/readyz", "/metrics"] {
        let answer = answered(addr, &format!("GET {path} HTTP/1.1\r\n")).await;
        let status = if path == "/readyz" { "503" } else { "200" };
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
    }
    // With the token, a command too.
    let answer = answered(addr, "POST /quiet HTTP/1.1\r\nauthorization: Bearer t\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    // Others of this address wait their turn.
    let answer = answered(addr, "GET /pool HTTP/1.1\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 429 ") && answer.contains("\r\nretry-after: 1\r\n"), "{answer}");
    assert!(answer.contains("32 requests of your address are in progress, 32 are allowed"), "{answer}");
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_refused_and_frees_its_place() {
    let (addr, _port, _received) = opened(None, Duration::from_millis(20)).await;
    let half = "POST /quiet HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{";
    for (request, status, detail) in [
        (half.to_owned(), 408, "the body did not arrive within 20ms"),
        (
            half.replace("100", "65537").replace('{', &"x".repeat(65_537)),
            413,
            "the body has more than 65536 bytes",
        ),
    ] {
        let mut client = silent(addr, &request).await;
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(detail), "{answer}");
    }
    for _ in 0..100 {
        let answer = answered(addr, "GET /pool HTTP/1.1\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

#[tokio::test]
async fn requests_sent_ahead_keep_no_probe_waiting() {
    let (metrics, encoded) = (Metrics::new("test"), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&encoded);
    metrics.before_encode(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let (addr, _port, _received) = opened_with(metrics, None, Duration::from_secs(10)).await;
    let ahead = "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(40);
    for _ in 0..60 {
        let mut client = silent(addr, &ahead).await;
        tokio::spawn(async move { tokio::io::copy(&mut client, &mut tokio::io::sink()).await });
    }
    while encoded.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    let before = encoded.load(Ordering::Relaxed);
    let answer = answered(addr, "GET /livez HTTP/1.1\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let meanwhile = encoded.load(Ordering::Relaxed) - before;
    assert!(meanwhile < 60, "{meanwhile} answers of others came first");
    // All requests are answered.
    while encoded.load(Ordering::Relaxed) < 60 * 40 {
        tokio::task::yield_now().await;
    }
}
